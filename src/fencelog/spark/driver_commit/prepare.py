"""Whether a broker needs this way, and what would fail later, found before the first batch."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from fencelog.client.cluster import Cluster
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.spark.driver_commit import ledger_topic
from fencelog.spark.driver_commit.ledger import LEDGER
from fencelog.spark.driver_commit.staging import staging_of
from fencelog.spark.limits import check_timeout, timeout_ms_max
from fencelog.spark.options import OptionError, SinkOptions
from fencelog.spark.planning import connect
from fencelog.wire.api_versions import ApiKey

if TYPE_CHECKING:
    from fencelog.client.blocking import Client

INIT_VERSION_MIN = 3
"""Of Kafka 2.5, the oldest whose coordinators fence as this needs it (KIP-360)."""
PRODUCE_VERSION_MIN = 3
ACCESS = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
    }
)

_versioned: dict[tuple[int, str], bool] = {}
_prepared: set[tuple[int, SinkOptions]] = set()
"""What this process has asked already."""


def through_driver(options: SinkOptions, *, retry: bool = True) -> bool:
    """Whether the driver has to commit this write. Raises RequestError."""
    if not options.exactly_once:
        return False
    key = (os.getpid(), options.connection.bootstrap_servers)
    if key not in _versioned:
        _versioned[key] = has_versioned_transactions(connect(options.connection), retry=retry)
    return not _versioned[key]


def has_versioned_transactions(client: "Client", *, retry: bool = True) -> bool:
    """Whether tasks can write by themselves; else the driver commits.

    Raises FencelogError if the broker is too old for that too, RequestError if none answers.
    """
    versions = client.run(_versions if retry else _versions_now)
    if ApiKey.JOIN_TRANSACTION in versions:
        return True
    _check_versions(versions)
    return False


async def _versions(cluster: Cluster) -> dict[int, tuple[int, int]]:
    return await retrying(lambda: _versions_now(cluster), cluster.deadline())


async def _versions_now(cluster: Cluster) -> dict[int, tuple[int, int]]:
    return (await cluster.any_broker(cluster.deadline())).versions


def _check_versions(versions: dict[int, tuple[int, int]]) -> None:
    _, init = versions.get(ApiKey.INIT_PRODUCER_ID, (0, -1))
    _, produce = versions.get(ApiKey.PRODUCE, (0, -1))
    if init < INIT_VERSION_MIN or produce < PRODUCE_VERSION_MIN:
        raise FencelogError(
            "this broker is too old for delivery exactly-once, which needs Kafka 2.5 or later"
            f" (InitProducerId {INIT_VERSION_MIN}; it has {init}): write with delivery"
            " at-least-once"
        )


def prepare(options: SinkOptions, *, streaming: bool) -> None:
    """Check what a write through the driver needs, once in each process; on the driver.

    Raises OptionError, FencelogError.
    """
    alike = replace(options, app=None, batch=None if options.batch is None else 0)
    key = (os.getpid(), alike)  # a batch function makes a write for each batch
    if key in _prepared or not through_driver(options, retry=False):
        return
    staging = None
    try:
        staging = staging_of(options)
    except OptionError:
        if streaming or options.staging_location is not None:
            raise
    if staging is not None:
        staging.prepare()
    elif streaming:
        raise OptionError(
            "this broker has no versioned transactions, so delivery exactly-once passes large"
            " batches to the driver in files: set option 'checkpointLocation' on the query, beside"
            " which they are put, or 'stagingLocation'"
        )
    client = connect(options.connection)
    _check_timeout(client, options)
    if streaming or options.batch is not None:
        _ensure_ledger(client)
    _prepared.add(key)


def _ensure_ledger(client: "Client") -> None:
    try:
        ledger_topic.ensure(client)
    except RequestError as error:
        raise access_explained(error) from error


def _check_timeout(client: "Client", options: SinkOptions) -> None:
    try:
        allowed_ms = timeout_ms_max(client)
    except RequestError as error:
        if error.code not in ACCESS:
            raise
        return  # InitProducerId will say it
    check_timeout(options, allowed_ms)


def access_explained(error: RequestError, transactional_id: str = "") -> FencelogError:
    """The error with the rights that a write needs, where they are missing."""
    if error.code not in ACCESS:
        return error
    return FencelogError(
        f"{error}. Delivery exactly-once on this broker needs: Write and Describe on the"
        f" transactional id {transactional_id or 'fencelog-spark-*'}; Create, Describe,"
        f" DescribeConfigs, Read and Write on topic {LEDGER.topic} (or let an administrator create"
        " it with one partition and cleanup.policy=compact); Write and Describe on the topics that"
        " are written"
    )
