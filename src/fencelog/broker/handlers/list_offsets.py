"""ListOffsets, OffsetForLeaderEpoch.

Version notes: each special timestamp of ListOffsets has a first version. There is one tier, the
data directory: its local log begins at the log start, and nothing is in remote storage.
"""

from fencelog.broker.context import Broker
from fencelog.broker.fetching.interest import epoch_error
from fencelog.broker.handlers.brokers import missing
from fencelog.broker.network.connection import Request
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import CorruptionError, ErrorCode, StorageError, WireError
from fencelog.log.values import Isolation
from fencelog.types import LeaderEpoch, Offset, TimestampMs, TopicPartition
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from fencelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
FROM_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version that has each special timestamp."""
NEVER = 1 << 15
DEBUGGING_CONSUMER = -2
"""A replica id with which Kafka's tools ask any replica, not only the leader."""
NO_TIMESTAMP = TimestampMs(-1)
UNUSED_EPOCH = LeaderEpoch(0)
"""What Metadata says of a partition without files."""


async def list_offsets(
    broker: Broker, message: ListOffsetsRequest, request: Request
) -> ListOffsetsResponse:
    """Return the earliest, the latest (LSO in ``transactional``) or a timestamp's offset."""
    version = request.header.api_version
    of_any = message.replica_id == DEBUGGING_CONSUMER
    topics = []
    async for topic in broker.time_slices.each(message.topics):
        answers = [
            _of_replica(broker, topic.name, part, message.isolation_level)
            if of_any
            else await _one(broker, topic.name, part, message.isolation_level, version)
            async for part in broker.time_slices.each(topic.partitions)
        ]
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


async def _one(
    broker: Broker, topic: str, requested: ListOffsetsPartition, isolation: int, version: int
) -> ListOffsetsPartitionResponse:
    index = requested.partition_index
    partition = broker.logs.get(topic, index)
    error = _refusal(broker, topic, requested, partition, isolation, version)
    if error is not ErrorCode.NONE:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error)
    if partition is None:
        is_end = requested.timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST)
        end = {"offset": 0, "leader_epoch": UNUSED_EPOCH} if is_end else {}
        return ListOffsetsPartitionResponse(partition_index=index, **end)
    before = partition.read_error
    try:
        found = await _find(
            broker, partition, TimestampMs(requested.timestamp), Isolation(isolation)
        )
    except (CorruptionError, StorageError):
        return ListOffsetsPartitionResponse(
            partition_index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR
        )
    except WireError:
        # Batches are stored without decoding them: malformed records are their producer's mistake.
        return ListOffsetsPartitionResponse(
            partition_index=index, error_code=ErrorCode.CORRUPT_MESSAGE
        )
    if found is None:
        return ListOffsetsPartitionResponse(
            partition_index=index, error_code=before or _gone(broker, topic, index, partition)
        )
    offset, timestamp = found
    return ListOffsetsPartitionResponse(
        partition_index=index,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=partition.log.leader_epoch,
    )


def _refusal(
    broker: Broker,
    topic: str,
    requested: ListOffsetsPartition,
    partition: Partition | None,
    isolation: int,
    version: int,
) -> ErrorCode:
    """Return why nothing is looked up; NONE if something is.

    As long as a new leader does not know all that is committed, a later answer could be another one
    (F8, KIP-207). Not for the log start, which does not depend on it, nor for a record that is
    found below the high watermark as it is known: there is none before it.
    """
    if partition is None and not _is_unused(broker, topic, requested.partition_index):
        return missing(broker, topic, requested.partition_index)
    if isolation not in tuple(Isolation):
        return ErrorCode.INVALID_REQUEST
    if requested.timestamp < 0 and version < FROM_VERSION.get(requested.timestamp, NEVER):
        return ErrorCode.UNSUPPORTED_VERSION
    epoch = UNUSED_EPOCH if partition is None else partition.log.leader_epoch
    error = epoch_error(requested.current_leader_epoch, epoch)
    if partition is None or error is not ErrorCode.NONE:
        return error
    if partition.read_error is ErrorCode.OFFSET_NOT_AVAILABLE and requested.timestamp != LATEST:
        return ErrorCode.NONE
    return partition.read_error


def _gone(broker: Broker, topic: str, index: int, partition: Partition) -> ErrorCode:
    """Return the error if the partition was closed during a lookup, which then found nothing."""
    if broker.logs.get(topic, index) is partition:
        return ErrorCode.NONE
    return missing(broker, topic, index) or ErrorCode.NOT_LEADER_OR_FOLLOWER


def _of_replica(
    broker: Broker, topic: str, requested: ListOffsetsPartition, isolation: int
) -> ListOffsetsPartitionResponse:
    """Return where this broker's own replica begins or ends, whoever leads the partition.

    With the leader epoch of its last batch. It is what an operator compares before an unclean
    election. The level is heeded: the end is the high watermark as this replica knows it, the last
    stable offset, or the end of its log. (Kafka answers the latter at every level.)
    """
    index = requested.partition_index
    partition = broker.logs.replica(TopicPartition(topic, index))
    error = ErrorCode.NONE
    if partition is None:
        error = missing(broker, topic, index)
    elif isolation not in tuple(Isolation) or requested.timestamp not in (LATEST, EARLIEST):
        error = ErrorCode.INVALID_REQUEST
    if partition is None or error is not ErrorCode.NONE:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error)
    log = partition.log
    is_end = requested.timestamp == LATEST
    return ListOffsetsPartitionResponse(
        partition_index=index,
        offset=partition.end_offset(Isolation(isolation)) if is_end else log.log_start_offset,
        leader_epoch=log.last_epoch,
    )


def _is_unused(broker: Broker, topic: str, index: int) -> bool:
    """Whether this partition of an internal topic has no files yet.

    Metadata has it from the topic's creation on, as with Kafka, where it is an empty partition.
    """
    found = broker.catalog.get(topic)
    is_there = found is not None and found.internal and 0 <= index < found.partitions
    if broker.placement is not None:
        return False  # in a cluster every partition has its replicas from the beginning
    return is_there and broker.logs.missing(topic, index) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _find(
    broker: Broker, partition: Partition, requested: TimestampMs, isolation: Isolation
) -> tuple[Offset, TimestampMs] | None:
    """Return the offset and timestamp for a request; start and end have no timestamp (-1)."""
    if requested in (EARLIEST, EARLIEST_LOCAL):
        return partition.log.log_start_offset, NO_TIMESTAMP
    if requested == LATEST:
        return partition.end_offset(isolation), NO_TIMESTAMP
    if requested in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    wanted = partition.log.max_timestamp if requested == MAX_TIMESTAMP else requested
    return await partition.find_timestamp(wanted, isolation, broker.time_slices.next)


async def offset_for_leader_epoch(
    broker: Broker, message: OffsetForLeaderEpochRequest, request: Request
) -> OffsetForLeaderEpochResponse:
    """Return where epochs end in this log, so that readers detect truncation (F7)."""
    del request
    topics = []
    async for topic in broker.time_slices.each(message.topics):
        requested = broker.time_slices.each(topic.partitions)
        ends = [_epoch_end(broker, topic.topic, part) async for part in requested]
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends))
    return OffsetForLeaderEpochResponse(topics=topics)


def _epoch_end(broker: Broker, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = broker.logs.get(topic, requested.partition)
    if partition is None:
        error = missing(broker, topic, requested.partition)
    else:
        error = epoch_error(requested.current_leader_epoch, partition.log.leader_epoch)
        if partition.read_error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            error = error or partition.read_error
    if partition is None or error is not ErrorCode.NONE:
        return EpochEndOffset(partition=requested.partition, error_code=error)
    found = partition.log.end_of_epoch(requested.leader_epoch)
    if found is None:
        return EpochEndOffset(partition=requested.partition)
    return EpochEndOffset(
        partition=requested.partition, leader_epoch=found.epoch, end_offset=found.offset
    )
