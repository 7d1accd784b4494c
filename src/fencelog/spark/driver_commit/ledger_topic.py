"""The ledger's topic: made where it is missing, and read up to its end."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.reader import FETCH_BYTES_MAX, FetchOptions, PartitionReader
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.spark.driver_commit.ledger import (
    LEDGER,
    LEDGER_CONFIGS,
    AppState,
    LedgerScan,
)
from fencelog.types import TopicId

if TYPE_CHECKING:
    from fencelog.client.blocking import Client

REPLICAS: Final = 3
"""As many as the cluster has brokers, but no more than this."""


@dataclass
class _Position:
    topic_id: TopicId
    offset: int
    scan: LedgerScan


_read: dict[tuple[int, str, str], _Position] = {}
"""What this process has read: Spark's worker for commits lives on between batches."""


def ensure(client: "Client") -> None:
    """Create the topic if it is missing. Raises RequestError, or FencelogError for a wrong one."""
    found = {topic.name for topic in client.topics() if topic.name == LEDGER.topic}
    if not found:
        replicas = min(REPLICAS, len(client.cluster().brokers))
        safe = {"min.insync.replicas": "2"} if replicas == REPLICAS else {}
        try:
            client.create_topic(LEDGER.topic, 1, {**LEDGER_CONFIGS, **safe}, replicas)
        except RequestError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        return
    try:
        policy = client.describe_topic(LEDGER.topic).configs.get("cleanup.policy")
    except RequestError as error:
        if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        return
    if policy != "compact":
        raise FencelogError(
            f"topic {LEDGER.topic} has cleanup.policy={policy}: it says which batches are written,"
            " and must not lose records. Set its cleanup.policy to compact"
        )


def read(client: "Client", servers: str, app: str) -> AppState | None:
    """Read on up to the high watermark; None while a transaction of the app is open there.

    Nothing that a producer wrote whose transaction had ended before is missing.
    """
    key = (os.getpid(), servers, app)
    ends = client.submit(lambda cluster: Admin(cluster).offsets([LEDGER], "latest", "replicated"))
    topic_id = client.topics([LEDGER.topic])[0].topic_id
    end = ends.result()[LEDGER]
    position = client.run(lambda cluster: _read_on(cluster, app, _read.get(key), topic_id, end))
    _read[key] = position
    return position.scan.state if position.scan.is_settled else None


async def _read_on(
    cluster: Cluster, app: str, known: _Position | None, topic_id: TopicId, end: int
) -> _Position:
    admin = Admin(cluster)
    if known is None or known.topic_id != topic_id or known.offset > end:
        start = (await admin.offsets([LEDGER], "earliest", "replicated"))[LEDGER]
        known = _Position(topic_id, start, LedgerScan(app))
    options = FetchOptions(isolation="replicated", max_bytes=FETCH_BYTES_MAX)
    reader = PartitionReader(cluster, LEDGER, known.offset, end, options)
    while (chunk := await reader.next_chunk()) is not None:
        try:
            known.scan.feed(chunk.records)
        except (KeyError, TypeError, ValueError) as error:
            raise FencelogError(
                f"{LEDGER} has a record of app '{app}' before offset {chunk.next_offset} that"
                f" cannot be read ({error}): something else wrote it, or a later release"
            ) from error
        known.offset = chunk.next_offset
    return known
