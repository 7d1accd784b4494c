"""The group coordinator: committed offsets of groups without members."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fencelog.coordination.group.records import (
    CommittedOffset,
    forget_offset,
    read_key,
    read_value,
    write_offset,
)
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.errors import ErrorCode
from fencelog.types import CoordinatorEpoch, Instant, Offset, TimestampMs, TopicPartition

NO_GENERATION = -1
"""What a commit carries that comes from no member."""


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """What bounds the shard; beyond a count the answer is GROUP_MAX_SIZE_REACHED."""

    groups_max: int = 100_000
    partitions_max: int = 100_000
    """Of one group."""
    metadata_bytes_max: int = 4096
    """Kafka's ``offset.metadata.max.bytes``."""


class GroupShard:
    """The groups of one partition of ``__consumer_offsets``."""

    def __init__(
        self, coordinator_epoch: CoordinatorEpoch, limits: GroupLimits | None = None
    ) -> None:
        """Begin empty; the log is replayed into it."""
        self.coordinator_epoch = coordinator_epoch
        self._limits = limits or GroupLimits()
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record of ``__consumer_offsets``; those of members are left alone.

        Raises CorruptionError on bytes that are no offset commit.
        """
        key = read_key(record.key)
        if key is None:
            return
        group, partition = key
        offsets = self._offsets.setdefault(group, {})
        if record.value is None:
            offsets.pop(partition, None)
        else:
            offsets[partition] = read_value(record.value)
        if not offsets:
            del self._offsets[group]

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = NO_GENERATION,
        wall_ms: TimestampMs,
    ) -> Decision[dict[TopicPartition, ErrorCode]]:
        """Store how far a group has come; each partition has its own answer.

        No group here has members, so a commit in the name of one is refused: UNKNOWN_MEMBER_ID, or
        ILLEGAL_GENERATION where only the generation claims one.
        """
        error = self._refused(group, offsets, member_id, generation)
        if error is not None:
            return Decision((), dict.fromkeys(offsets, error))
        answers: dict[TopicPartition, ErrorCode] = {}
        records: list[LogRecord] = []
        for partition, committed in offsets.items():
            answers[partition] = ErrorCode.NONE
            if len(committed.metadata.encode()) > self._limits.metadata_bytes_max:
                answers[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                records.append(
                    write_offset(group, partition, replace(committed, commit_ms=wall_ms))
                )
        return Decision(tuple(records), answers)

    def _refused(
        self, group: str, offsets: Collection[TopicPartition], member_id: str, generation: int
    ) -> ErrorCode | None:
        known = self._offsets.get(group, {})
        is_full = group not in self._offsets and len(self._offsets) >= self._limits.groups_max
        if not group:
            return ErrorCode.INVALID_GROUP_ID
        if member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation >= 0:
            return ErrorCode.ILLEGAL_GENERATION
        if is_full or len({*known, *offsets}) > self._limits.partitions_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return None

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """How far the group has come: on these partitions, or on all that it has an offset for.

        Partitions without an offset are left out. The answer reveals state: it may be given once
        everything appended so far is committed (rule E16).
        """
        known = self._offsets.get(group, {})
        wanted = known if partitions is None else partitions
        return {partition: known[partition] for partition in wanted if partition in known}

    def partition_deleted(self, partition: TopicPartition) -> Decision[None]:
        """Forget every group's offset on a partition whose topic was deleted."""
        records = [
            forget_offset(group, partition)
            for group, offsets in self._offsets.items()
            if partition in offsets
        ]
        return Decision(tuple(records), None)

    def next_deadline(self) -> Instant | None:
        """None: nothing runs out while groups have no members."""
        return None

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[None]:
        """Nothing runs out while groups have no members."""
        return Decision((), None)
