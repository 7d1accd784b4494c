"""Committed offsets as Kafka's OffsetCommitKey (version 1) and OffsetCommitValue (version 3)."""

from dataclasses import dataclass

from fencelog.coordination.schemas.offset_commit import OffsetCommitKey, OffsetCommitValue
from fencelog.coordination.shard import LogRecord
from fencelog.types import LeaderEpoch, Offset, TimestampMs, TopicPartition

_KEY_VERSION = 1
_VALUE_VERSION = 3
NO_LEADER_EPOCH = LeaderEpoch(-1)
_NOT_STORED = TimestampMs(-1)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset on one partition."""

    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    commit_ms: TimestampMs = _NOT_STORED


def write_offset(group: str, partition: TopicPartition, committed: CommittedOffset) -> LogRecord:
    """Return the record of the group's offset on this partition."""
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
    )
    return LogRecord(write_key(group, partition), value.write(_VALUE_VERSION))


def forget_offset(group: str, partition: TopicPartition) -> LogRecord:
    """Return the tombstone of the group's offset on this partition."""
    return LogRecord(write_key(group, partition), None)


def write_key(group: str, partition: TopicPartition) -> bytes:
    """Return the key of a group's offset on this partition."""
    key = OffsetCommitKey(group=group, topic=partition.topic, partition=partition.partition)
    return key.write(_KEY_VERSION)


def read_key(key: bytes) -> tuple[str, TopicPartition] | None:
    """Return group and partition; None for a key of another kind, such as a group's members.

    Raises CorruptionError when the bytes are no key at all.
    """
    if not OffsetCommitKey.has_version_of(key):
        return None
    read = OffsetCommitKey.read(key)
    return read.group, TopicPartition(read.topic, read.partition)


def read_value(value: bytes) -> CommittedOffset:
    """Return the offset. Raises CorruptionError on anything but Kafka's versions 0 to 3."""
    read = OffsetCommitValue.read(value)
    return CommittedOffset(
        offset=Offset(read.offset),
        leader_epoch=LeaderEpoch(read.leader_epoch),
        metadata=read.metadata,
        commit_ms=TimestampMs(read.commit_timestamp),
    )
