"""The group coordinator: members, generations and offsets of the groups of one partition.

What is durable changes in ``replay`` only: committed offsets (``OffsetTable``), and of each group
its generation, protocol, leader and members with their subscriptions and assignments
(``StoredGroup``). Everything else of a group is soft (``SoftState``): who has joined the rebalance
under way, sessions, requests that wait, deadlines. Rules change it while they decide, which is safe
because a shard whose append fails is dropped with all of it.
"""

from collections.abc import Collection
from dataclasses import replace

from fencelog.coordination.group.commit import Answers, Commit, CommitOwners
from fencelog.coordination.group.group import Group
from fencelog.coordination.group.joining import join, validate_request
from fencelog.coordination.group.metadata import (
    StoredGroup,
    forget_group,
    read_group,
    read_group_key,
)
from fencelog.coordination.group.model import (
    JOIN,
    RETENTION,
    SESSION,
    SYNC,
    Alarm,
    Caller,
    GroupLimits,
    GroupState,
    GroupView,
    HeartbeatAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    Replies,
    Step,
    SyncAnswer,
    SyncRequest,
    Ticket,
    join_error,
)
from fencelog.coordination.group.offsets import Kept, OffsetTable
from fencelog.coordination.group.records import (
    CommittedOffset,
    forget_offset,
    read_key,
    read_value,
    write_offset,
)
from fencelog.coordination.group.retention import expired_offsets
from fencelog.coordination.group.soft_state import SoftState
from fencelog.coordination.owners import read_commits_key, read_owner
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.coordination.timers import Timers
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.types import (
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    Instant,
    Offset,
    ProducerId,
    TimestampMs,
    TopicPartition,
)


class GroupShard:
    """The groups of one partition of ``__consumer_offsets``."""

    def __init__(
        self, coordinator_epoch: CoordinatorEpoch, limits: GroupLimits | None = None
    ) -> None:
        """Begin empty, for the log to be replayed."""
        self.coordinator_epoch = coordinator_epoch
        self._limits = limits or GroupLimits()
        self._offsets = OffsetTable()
        self._owners = CommitOwners()
        self._stored_groups: dict[str, StoredGroup] = {}
        self._groups: dict[str, Group] = {}
        """Every stored group, and those that nothing is stored of yet; they hold soft state."""
        self._timers: Timers[Alarm] = Timers()

    # -- the only places where what is stored changes --------------------------------------------

    def replay(self, record: LogRecord, offset: Offset, now: Instant) -> None:
        """Apply one record of ``__consumer_offsets``; keys of unknown versions are ignored.

        Raises CorruptionError on bytes that are neither an offset nor a group.
        """
        name = read_group_key(record.key)
        if name is not None:
            self._replay_group(name, record.value, now)
            return
        owned = read_commits_key(record.key)
        if owned is not None:
            self._owners.store(*owned, read_owner(record.value))
            return
        key = read_key(record.key)
        if key is None:
            return
        group, partition = key
        if record.value is None:
            self._offsets.forget(group, partition)
            return
        kept = Kept(read_value(record.value), offset)
        if record.producer_id == NO_PRODUCER_ID:
            self._offsets.store(group, partition, kept)
        else:
            self._offsets.store_pending(record.producer_id, group, partition, kept)

    def _replay_group(self, name: str, value: bytes | None, now: Instant) -> None:
        group = self._groups.get(name)
        if value is None:
            self._stored_groups.pop(name, None)
            if group is not None:
                group.soft.close()
                del self._groups[name]
            return
        stored = read_group(name, value)
        self._stored_groups[name] = stored
        # The decision that led to this record has moved the soft state already; a load has not.
        if group is None or group.soft.last_record != stored:
            if group is not None:
                group.soft.close()
            soft = SoftState.restored(stored, self._timers, now)
            self._groups[name] = Group(name, self._stored_groups, soft, self._limits)

    def replay_marker(self, producer_id: ProducerId, *, commit: bool) -> None:
        """Apply a marker of this partition's log to the producer's pending offsets (E10)."""
        self._offsets.end_transaction(producer_id, commit=commit)

    # -- what members ask ------------------------------------------------------------------------

    def join(
        self,
        request: JoinRequest,
        ticket: Ticket,
        *,
        fresh_id: str,
        now: Instant,
        wall_ms: TimestampMs,
    ) -> Decision[Replies]:
        """JoinGroup: the answer is an error, or comes with the next generation.

        ``fresh_id``: the id for a new member; it must never have been used.
        """
        step = Step(now, wall_ms)
        error = validate_request(request, self._limits)
        group = self._groups.get(request.group)
        if error is ErrorCode.NONE and group is None:
            if request.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif self._is_full(request.group):
                error = ErrorCode.GROUP_MAX_SIZE_REACHED
        if error is not ErrorCode.NONE:
            step.reply(ticket, join_error(error, request.member_id))
            return step.decision()
        if group is None:
            group = Group.new(request.group, self._stored_groups, self._timers, self._limits)
            self._groups[request.group] = group
        join(group, step, request, ticket, fresh_id=fresh_id, limits=self._limits)
        self._drop_if_void(group)
        return step.decision()

    def sync(
        self, request: SyncRequest, ticket: Ticket, *, now: Instant, wall_ms: TimestampMs
    ) -> Decision[Replies]:
        """SyncGroup: the answer comes once the leader has sent the assignment."""
        step = Step(now, wall_ms)
        group = self._groups.get(request.group)
        if group is None:
            step.reply(ticket, SyncAnswer(error=self._unknown(request.group)))
        else:
            group.sync(step, request, ticket)
        return step.decision()

    def heartbeat(
        self, name: str, caller: Caller, ticket: Ticket, *, now: Instant
    ) -> Decision[Replies]:
        """Heartbeat: touch the member's session; REBALANCE_IN_PROGRESS makes it join again."""
        step = Step(now, TimestampMs(-1))
        group = self._groups.get(name)
        error = self._unknown(name) if group is None else group.heartbeat(caller, now)
        step.reply(ticket, HeartbeatAnswer(error))
        return step.decision()

    def leave(
        self,
        name: str,
        leavers: tuple[Leaver, ...],
        ticket: Ticket,
        *,
        now: Instant,
        wall_ms: TimestampMs,
    ) -> Decision[Replies]:
        """LeaveGroup: remove members, each with its own result."""
        step = Step(now, wall_ms)
        group = self._groups.get(name)
        if group is None:
            step.reply(ticket, LeaveAnswer(error=self._unknown(name)))
        else:
            step.reply(ticket, LeaveAnswer(group.leave(step, leavers)))
            self._drop_if_void(group)
        return step.decision()

    @staticmethod
    def _unknown(name: str) -> ErrorCode:
        return ErrorCode.UNKNOWN_MEMBER_ID if name else ErrorCode.INVALID_GROUP_ID

    def _drop_if_void(self, group: Group) -> None:
        if group.is_void and self._groups.get(group.name) is group:
            group.soft.close()  # or a deadline of its would meet the next group of this name
            del self._groups[group.name]

    # -- offsets ---------------------------------------------------------------------------------

    def set_owner(
        self, group: str, owner: Owner, partitions: Collection[TopicPartition]
    ) -> Decision[ErrorCode]:
        """Raise the epoch of the group's commits on these partitions, or end it (O8, O9).

        What is known already writes nothing. OWNER_FENCED if a later owner is known on any of
        them: it stays, and the others are raised. Repeating it cannot change that.
        """
        return self._owners.set_owner(group, owner, partitions)

    def commit(self, asked: Commit, *, now: Instant, wall_ms: TimestampMs) -> Decision[Answers]:
        """Commit offsets of a group; each partition has its own answer (rules E8, O8).

        In a transaction the offsets are pending until its marker is in this partition's log.
        """
        if not asked.group:
            return Decision((), dict.fromkeys(asked.offsets, ErrorCode.INVALID_GROUP_ID))
        error = self._validate_committer(asked)
        group = self._groups.get(asked.group)
        member = None if group is None else group.soft.members.get(asked.caller.member_id)
        if group is not None and member is not None and not error:
            group.soft.touch_session(member, now)
        room = self._validate_room(asked)
        answers: Answers = {}
        records: list[LogRecord] = []
        for partition, committed in asked.offsets.items():
            metadata_bytes = len(committed.metadata.encode())
            is_long = metadata_bytes > self._limits.metadata_bytes_max
            answers[partition] = (
                self._validate_on(partition, asked, error)
                or room
                or (ErrorCode.OFFSET_METADATA_TOO_LARGE if is_long else ErrorCode.NONE)
            )
            if not answers[partition]:
                stamped = replace(committed, commit_ms=wall_ms)
                record = write_offset(asked.group, partition, stamped)
                records.append(replace(record, producer_id=asked.producer_id))
        moves_deadline = member is not None and not error
        return Decision(tuple(records), answers, moves_deadline=moves_deadline)

    def _validate_on(self, partition: TopicPartition, asked: Commit, error: ErrorCode) -> ErrorCode:
        """Validate a commit on one partition; ``error``: that of its member and generation.

        The owner need not be a member: its claim fences better than a generation does.
        """
        by_owner = self._owners.judge(asked, partition)
        if by_owner is ErrorCode.NONE and asked.caller.names_no_member:
            return ErrorCode.NONE
        group = self._groups.get(asked.group)
        has_members = group is not None and group.had_members
        needs_member = has_members and asked.caller.names_no_member
        is_fenced = needs_member and partition in asked.fenced
        return by_owner or error or (ErrorCode.UNKNOWN_MEMBER_ID if is_fenced else ErrorCode.NONE)

    def _validate_room(self, asked: Commit) -> ErrorCode:
        all_partitions = self._offsets.partitions(asked.group).union(asked.offsets)
        if self._is_full(asked.group) or len(all_partitions) > self._limits.partitions_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _validate_committer(self, asked: Commit) -> ErrorCode:
        """Validate member and generation of a commit (rule E8, KIP-447)."""
        group, caller = self._groups.get(asked.group), asked.caller
        if caller.names_no_member and (group is None or not group.soft.members):
            return ErrorCode.NONE
        if group is None:
            is_named = bool(caller.member_id)
            return ErrorCode.UNKNOWN_MEMBER_ID if is_named else ErrorCode.ILLEGAL_GENERATION
        if not caller.names_no_member or caller.instance_id is not None:
            error = group.validate_caller(caller)
            if error is not ErrorCode.NONE:
                return error
        elif not asked.is_transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.soft.state is GroupState.COMPLETING and not asked.is_transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _is_full(self, group: str) -> bool:
        if group in self._groups or group in self._offsets:
            return False
        return max(len(self._groups), len(self._offsets)) >= self._limits.groups_max

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of a group: on these partitions, or on all that have one.

        Partitions without an offset are left out. The answer reveals state: it may be given once
        everything appended so far is committed (rule E16).
        """
        known = self._offsets.committed(group)
        wanted = known if partitions is None else partitions
        return {each: known[each].committed for each in wanted if each in known}

    def pending(self, group: str) -> frozenset[TopicPartition]:
        """The partitions with pending offsets, which ``fetch`` does not show yet (rule E8)."""
        return self._offsets.pending(group)

    def delete_offsets(
        self, name: str, partitions: Collection[TopicPartition]
    ) -> Decision[Answers | ErrorCode]:
        """Forget offsets of a group; not on topics that its members read (KIP-496)."""
        group = self._groups.get(name)
        if group is None and name not in self._offsets:
            return Decision(
                (), ErrorCode.GROUP_ID_NOT_FOUND if name else ErrorCode.INVALID_GROUP_ID
            )
        subscribed: frozenset[str] = frozenset()
        if group is not None and group.soft.members:
            topics = group.subscribed()
            if topics is None:
                return Decision((), ErrorCode.NON_EMPTY_GROUP)
            subscribed = topics
        known = self._offsets.partitions(name)
        answers: Answers = {}
        records = []
        for partition in partitions:
            is_read = partition.topic in subscribed
            answers[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
            if not is_read and partition in known:
                records.append(forget_offset(name, partition))
        return Decision(tuple(records), answers)

    def topics(self) -> frozenset[str]:
        """Every topic with an offset of some group."""
        groups = self._offsets.groups()
        return frozenset(each.topic for group in groups for each in self._offsets.partitions(group))

    def topics_deleted(self, topics: Collection[str]) -> Decision[None]:
        """Forget every group's offsets on deleted topics."""
        records = [
            forget_offset(group, partition)
            for group in self._offsets.groups()
            for partition in sorted(self._offsets.partitions(group))
            if partition.topic in topics
        ]
        return Decision(tuple(records), None)

    # -- what operators ask ----------------------------------------------------------------------

    def describe(self, name: str) -> GroupView:
        """One group; DEAD where there is none. Answer once all is committed (rule E16)."""
        group = self._groups.get(name)
        if group is not None:
            return group.view()
        state = GroupState.EMPTY if name in self._offsets else GroupState.DEAD
        return GroupView(group=name, state=state)

    def groups(self) -> list[GroupView]:
        """Every group, also those that only commit offsets; answered as ``describe`` is."""
        names = {**dict.fromkeys(self._groups), **dict.fromkeys(self._offsets.groups())}
        return [self.describe(name) for name in names]

    def delete_group(self, name: str) -> Decision[ErrorCode]:
        """Forget a group that has no members, and its offsets."""
        group = self._groups.get(name)
        if group is None and name not in self._offsets:
            return Decision(
                (), ErrorCode.GROUP_ID_NOT_FOUND if name else ErrorCode.INVALID_GROUP_ID
            )
        if group is not None and (group.soft.members or group.soft.pending):
            return Decision((), ErrorCode.NON_EMPTY_GROUP)
        return Decision(self._forget(name), ErrorCode.NONE)

    def _forget(self, name: str) -> tuple[LogRecord, ...]:
        records = [forget_offset(name, each) for each in sorted(self._offsets.partitions(name))]
        if name in self._stored_groups:
            records.append(forget_group(name))
        return tuple(records)

    # -- deadlines -------------------------------------------------------------------------------

    def next_deadline(self) -> Instant | None:
        """When a session, a rebalance or a check for old offsets may be due."""
        return self._timers.next_due()

    def expire(self, now: Instant, wall_ms: TimestampMs) -> Decision[Replies]:
        """Decide what is due: sessions, rebalances, and the periodic retention of offsets."""
        step = Step(now, wall_ms)
        is_retention_due = False
        for alarm in self._timers.take_due(now):
            group = self._groups.get(alarm.group)
            if alarm.kind == RETENTION:
                is_retention_due = True
            elif group is not None:
                if alarm.kind == SESSION:
                    group.session_due(step, alarm.member_id)
                elif alarm.kind == JOIN:
                    group.join_due(step)
                elif alarm.kind == SYNC:
                    group.sync_due(step)
                self._drop_if_void(group)
        check = Alarm(RETENTION, "")
        if not self._timers.has(check):
            self._timers.set(check, Instant(now + self._limits.retention_check_s))
        decision = step.decision()
        if not is_retention_due:
            return decision
        forgotten = self._expire_offsets(wall_ms, excluded=step.records)
        return replace(decision, records=(*decision.records, *forgotten))

    def _expire_offsets(self, wall_ms: TimestampMs, excluded: Collection[str]) -> list[LogRecord]:
        """Forget offsets and groups older than ``offsets.retention.minutes`` (KIP-211).

        ``excluded``: groups that this decision stores; their stored state is not replayed yet.
        """
        records: list[LogRecord] = []
        for name in {**dict.fromkeys(self._offsets.groups()), **dict.fromkeys(self._groups)}:
            if name in excluded or self._offsets.has_pending(name):
                continue
            group, known = self._groups.get(name), self._offsets.committed(name)
            gone = expired_offsets(group, known, wall_ms - self._limits.offsets_retention_ms)
            is_over = group is None or group.is_unused
            if is_over and len(gone) == len(known):
                records += self._forget(name)
            else:
                records += [forget_offset(name, each) for each in gone]
        return records
