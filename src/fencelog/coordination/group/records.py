"""Kafka's OffsetCommitKey (version 1) and OffsetCommitValue (versions 0 to 3; 3 is written)."""

from dataclasses import dataclass

from fencelog.coordination.encoding import Reader, Writer, stored
from fencelog.coordination.shard import LogRecord
from fencelog.errors import CorruptionError
from fencelog.types import LeaderEpoch, Offset, TimestampMs, TopicPartition

_KEY_VERSIONS_OF_OFFSETS = (0, 1)
_KEY_VERSION = 1
_VALUE_VERSION = 3
NO_LEADER_EPOCH = LeaderEpoch(-1)
_NOT_STORED = TimestampMs(-1)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has come on one partition."""

    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    commit_ms: TimestampMs = _NOT_STORED


def write_offset(group: str, partition: TopicPartition, committed: CommittedOffset) -> LogRecord:
    """Return the record that says how far the group has come on this partition."""
    value = Writer().int16(_VALUE_VERSION).int64(committed.offset).int32(committed.leader_epoch)
    value.text(committed.metadata).int64(committed.commit_ms)
    return LogRecord(write_key(group, partition), value.done())


def forget_offset(group: str, partition: TopicPartition) -> LogRecord:
    """Return the record after which the group has no offset on this partition."""
    return LogRecord(write_key(group, partition), None)


def write_key(group: str, partition: TopicPartition) -> bytes:
    """Return the key of a group's offset on this partition."""
    writer = Writer().int16(_KEY_VERSION).text(group).text(partition.topic)
    return writer.int32(partition.partition).done()


@stored()
def read_key(key: bytes) -> tuple[str, TopicPartition] | None:
    """Return group and partition; None for a key of another kind, such as a group's members.

    Raises CorruptionError when the bytes are no key at all.
    """
    reader = Reader(key)
    if reader.int16() not in _KEY_VERSIONS_OF_OFFSETS:
        return None
    group, topic = reader.text(), reader.text()
    partition = TopicPartition(topic, reader.int32())
    reader.expect_end()
    return group, partition


@stored()
def read_value(value: bytes) -> CommittedOffset:
    """Return the offset. Raises CorruptionError on anything but Kafka's versions 0 to 3."""
    reader = Reader(value)
    version = reader.int16()
    if version not in range(_VALUE_VERSION + 1):
        raise CorruptionError(f"offset commit value of version {version}")
    offset = Offset(reader.int64())
    leader_epoch = LeaderEpoch(reader.int32()) if version == 3 else NO_LEADER_EPOCH
    metadata = reader.text()
    commit_ms = TimestampMs(reader.int64())
    if version == 1:
        reader.int64()  # An expiry of its own, which Kafka gave up with version 2.
    reader.expect_end()
    return CommittedOffset(offset, leader_epoch, metadata, commit_ms)
