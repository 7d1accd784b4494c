"""Writes to streams, and conditional appends: what the tagged fields of Produce ask for (R2, R4).

A stream is written to by clients only that divide keys by its segments' ranges, which they say with
each batch. A condition may come with a batch of any topic; the log compares it.
"""

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.segment_load import SegmentLoad
from fencelog.coordination.streams.model import ENDED, SegmentState, Stream, StreamSegment
from fencelog.errors import ErrorCode
from fencelog.types import NO_SEQUENCE
from fencelog.wire.batch import BatchHeader
from fencelog.wire.hot import AppendTags, PartitionResult, SealedSegment, Successor


def refused_write(
    topic: Topic, partition: Partition, header: BatchHeader, tags: AppendTags
) -> PartitionResult | None:
    """Return why a batch is refused before its log is asked; None if it is not.

    Only what the log cannot know is judged here: whether its sender means this topic and knows
    ranges, and whether the segment is open yet.
    """
    index = partition.name.partition
    if (refused := _refused_tags(topic, index, header, tags)) is not None:
        return refused
    if topic.stream is None:
        return None
    if tags.median_hash is None:
        return _only_by_ranges(topic.name, index)
    segment = topic.stream.segments[index]
    if segment.state is SegmentState.OPENING:
        return _resizing(topic.name, index)
    if segment.state in ENDED and partition.log.sealed_at is None and partition.leads:
        # Its log lost its end and gets a new seal soon: nothing may be written instead.
        return _without_seal(topic.stream, segment, partition, header)
    if partition.load is None:
        partition.load = SegmentLoad(index)
    return None


def _refused_tags(
    topic: Topic, index: int, header: BatchHeader, tags: AppendTags
) -> PartitionResult | None:
    if tags.topic_id is not None and tags.topic_id != topic.topic_id:
        return PartitionResult(
            index,
            ErrorCode.UNKNOWN_TOPIC_ID,
            error_message=f"topic {topic.name} was deleted and created again: this is another one",
        )
    if tags.condition is not None and header.is_transactional:
        return PartitionResult(
            index,
            ErrorCode.INVALID_REQUEST,
            error_message="a transaction has no conditional appends: whether it commits is not "
            "known when they are compared, and its marker would make the next one stale",
        )
    return None


def sealed_write(topic: Topic | None, partition: Partition, header: BatchHeader) -> PartitionResult:
    """Return what follows for a batch that its sealed log has refused (R2).

    The successors are named once they are open: then the seal is committed, and what the log has
    of the producer is, too, if this is the log that has it. Until then the sender tries again.
    """
    index = partition.name.partition
    stream = None if topic is None else topic.stream
    segment = None if stream is None else stream.get(index)
    if stream is None or segment is None or segment.state not in ENDED:
        return _resizing(partition.name.topic, index)
    sealed_at = partition.log.sealed_at
    if sealed_at is None or partition.log.high_watermark <= sealed_at:
        # A deposed leader may hear of the seal before it hears of its successor: its own log may
        # have records and a seal that nobody else has.
        return _resizing(partition.name.topic, index)
    return _sealed(stream, segment, _last_sequence(partition, header))


def count_write(partition: Partition, header: BatchHeader, tags: AppendTags) -> None:
    """Count a batch that was appended to a segment (R3)."""
    if partition.load is not None and tags.median_hash is not None:
        partition.load.add(header.record_count, header.size, tags.median_hash)


def _without_seal(
    stream: Stream, segment: StreamSegment, partition: Partition, header: BatchHeader
) -> PartitionResult:
    """Return what follows for a batch of a sealed segment whose log has no seal."""
    log = partition.log
    if partition.read_error is not ErrorCode.NONE or log.high_watermark < log.log_end_offset:
        return _resizing(partition.name.topic, segment.index)  # another may lead, and have it (F8)
    return _sealed(stream, segment, _last_sequence(partition, header))


def _last_sequence(partition: Partition, header: BatchHeader) -> int:
    """Return the last sequence of a batch's producer and epoch that the log has, -1 without one."""
    producer = partition.log.producer(header.producer_id)
    is_known = producer is not None and producer.producer_epoch == header.producer_epoch
    return producer.last_sequence if producer is not None and is_known else NO_SEQUENCE


def _sealed(stream: Stream, segment: StreamSegment, last_sequence: int) -> PartitionResult:
    successors = stream.successors(segment.index)
    named = ", ".join(str(each.index) for each in successors)
    return PartitionResult(
        segment.index,
        ErrorCode.SEGMENT_SEALED,
        error_message=f"segment {segment.index} is sealed at offset {segment.end}: what it does "
        f"not have belongs to its successors, {named}",
        sealed=SealedSegment(
            segment.end,
            last_sequence,
            tuple(Successor(each.index, each.low, each.high) for each in successors),
        ),
    )


def _resizing(topic: str, index: int) -> PartitionResult:
    return PartitionResult(
        index,
        ErrorCode.RESIZE_IN_PROGRESS,
        error_message=f"stream {topic} is being resized, and segment {index} with it: send the "
        "batch again",
    )


def _only_by_ranges(topic: str, index: int) -> PartitionResult:
    return PartitionResult(
        index,
        ErrorCode.POLICY_VIOLATION,
        error_message=f"topic {topic} is a stream: only a client that divides keys by the ranges "
        "of its segments keeps them in order. Write to it with fencelog's client "
        "(fencelog.connect(...).producer()), with `fencelog topic produce`, or with the Spark sink",
    )
