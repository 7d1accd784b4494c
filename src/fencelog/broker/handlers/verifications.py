"""Verification of a transaction with its coordinator, and what a produce request says of it."""

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.leaders import Verified
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.types import CoordinatorEpoch, TopicPartition
from fencelog.wire.api_versions import PRODUCE_ADDS_PARTITIONS_FROM

ABORTABLE_FROM = 11
"""From here on a client knows TRANSACTION_ABORTABLE (KIP-890)."""


async def verify(
    broker: Broker,
    transactional_id: str | None,
    producer: ProducerIdAndEpoch,
    names: list[TopicPartition],
    version: int,
) -> Verified:
    """Verify that the transaction has these partitions (E14); V5 and version 2 add them."""
    if not transactional_id:
        return _unverified(names, ErrorCode.TRANSACTION_ABORTABLE)
    client = ClientVersion.V2 if version >= PRODUCE_ADDS_PARTITIONS_FROM else ClientVersion.V1
    try:
        return await broker.leaders.verify(transactional_id, producer, names, client)
    except NotLeaderError:
        return _unverified(names, ErrorCode.NOT_ENOUGH_REPLICAS)


def _unverified(names: list[TopicPartition], error: ErrorCode) -> Verified:
    return Verified(dict.fromkeys(names, error), CoordinatorEpoch(-1))


def for_producer(error: ErrorCode, version: int) -> ErrorCode:
    """Map the coordinator's error to the codes that a produce request may return."""
    if error in (ErrorCode.PRODUCER_FENCED, ErrorCode.RUN_FENCED):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < PRODUCE_ADDS_PARTITIONS_FROM:
        return ErrorCode.NOT_ENOUGH_REPLICAS  # until the markers are written: retriable
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return error
