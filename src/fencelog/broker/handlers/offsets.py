"""ListOffsets, and the offsets that groups commit."""

from fencelog.broker.connection import Request
from fencelog.broker.context import Broker
from fencelog.broker.handlers.fetch import epoch_error
from fencelog.errors import CorruptionError, ErrorCode, StorageError
from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import Isolation
from fencelog.types import Offset, TimestampMs
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


async def list_offsets(
    broker: Broker, message: ListOffsetsRequest, request: Request
) -> ListOffsetsResponse:
    """Earliest, latest (for a transactional reader the LSO), or the first at or after a time."""
    del request
    topics = []
    for topic in message.topics:
        answers = [
            await _one(broker, topic.name, part, message.isolation_level)
            for part in topic.partitions
        ]
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


async def _one(
    broker: Broker, topic: str, asked: ListOffsetsPartition, isolation: int
) -> ListOffsetsPartitionResponse:
    index = asked.partition_index

    def failed(error: ErrorCode) -> ListOffsetsPartitionResponse:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error)

    partition = broker.logs.get(topic, index)
    if partition is None:
        return failed(broker.logs.missing(topic, index))
    log = partition.log
    error = epoch_error(asked.current_leader_epoch, log.leader_epoch)
    if error is not ErrorCode.NONE:
        return failed(error)
    if isolation not in tuple(Isolation):
        return failed(ErrorCode.INVALID_REQUEST)
    level = Isolation(isolation)
    epoch = log.leader_epoch
    if asked.timestamp == EARLIEST:
        return ListOffsetsPartitionResponse(
            partition_index=index, offset=log.log_start_offset, leader_epoch=epoch
        )
    if asked.timestamp == LATEST:
        return ListOffsetsPartitionResponse(
            partition_index=index, offset=_end(log, level), leader_epoch=epoch
        )
    if asked.timestamp < MAX_TIMESTAMP:
        return failed(ErrorCode.UNSUPPORTED_VERSION)
    timestamp = TimestampMs(asked.timestamp)
    if timestamp == MAX_TIMESTAMP:
        timestamp = log.max_timestamp
    try:
        found = await partition.store.find_timestamp(timestamp, level)
    except (CorruptionError, StorageError):
        return failed(ErrorCode.KAFKA_STORAGE_ERROR)
    if found is None:
        return ListOffsetsPartitionResponse(partition_index=index)
    offset, timestamp = found
    return ListOffsetsPartitionResponse(
        partition_index=index, offset=offset, timestamp=timestamp, leader_epoch=epoch
    )


def _end(log: PartitionLog, isolation: Isolation) -> Offset:
    """Where a reader of this isolation finds the end (F6)."""
    match isolation:
        case Isolation.TRANSACTIONAL:
            return log.last_stable_offset
        case Isolation.REPLICATED:
            return log.high_watermark
        case Isolation.TAIL:
            return log.log_end_offset
