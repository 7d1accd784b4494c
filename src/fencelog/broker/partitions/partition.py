"""A replica of a partition: its log (rules), its files (store), its waits and its role.

Each change has one method here, which also takes the steps that follow: appends are queued to be
flushed, markers replayed by the coordinator, the role decides the high watermark, and waits end.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

from fencelog.broker.observer import Observer
from fencelog.broker.partitions.owners import OwnerChecks
from fencelog.broker.partitions.purgatory import Done, Purgatory
from fencelog.broker.partitions.reading import Fetched, Reads
from fencelog.broker.partitions.role import FollowerRole, LeaderRole, Progress, Role
from fencelog.broker.partitions.segment_load import SegmentLoad
from fencelog.broker.partitions.tail_cache import Tail, TailCache
from fencelog.errors import ErrorCode, ExhaustedError, NotLeaderError, StorageError
from fencelog.log.compaction_round import CompactionNeed, Round
from fencelog.log.config import LogConfig
from fencelog.log.ownership import Owner
from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import (
    Appended,
    Duplicate,
    Isolation,
    MarkerToWrite,
    Rejected,
    SegmentWrite,
)
from fencelog.log.verification import VerificationGuard
from fencelog.storage.clean_stop import CleanStop
from fencelog.storage.compaction import Compaction
from fencelog.storage.partition_store import PartitionStore
from fencelog.storage.seal_store import SealStore
from fencelog.types import LeaderEpoch, Offset, TopicPartition
from fencelog.wire.batch import BatchHeader, Compression, read_header
from fencelog.wire.hot.append_tags import Revision

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""After what time a write is tried again for which there was no room."""


class Partition:
    """One open replica. Read ``log`` freely; change it only through the methods here."""

    __slots__ = (
        "_enqueue",
        "_has_followers",
        "_observer",
        "_purgatory",
        "_reads",
        "_role",
        "_stalled_by",
        "_store",
        "_tail",
        "_unsynced",
        "_unwritten",
        "add_reader",
        "checks_batches",
        "codec",
        "committed",
        "durable_end",
        "failed",
        "failure",
        "find_timestamp",
        "is_compacted",
        "leads",
        "load",
        "log",
        "markers_appended",
        "name",
        "owners",
        "read_error",
        "remove_reader",
        "resumed",
        "role_changed",
        "stamps_on_append",
        "synced_below",
        "tell",
        "when_committed",
    )

    def __init__(
        self,
        name: TopicPartition,
        partition_log: PartitionLog,
        store: PartitionStore | SealStore,
        *,
        role: Role,
        enqueue: Callable[["Partition"], None],
        observer: Observer | None,
        tails: TailCache,
    ) -> None:
        """``enqueue`` queues the partition for the flusher."""
        self.name = name
        self.log = partition_log
        self.failure: Exception | None = None
        """Why the partition accepts no more writes."""
        self.markers_appended: Callable[[Sequence[MarkerToWrite]], None] | None = None
        """Replays markers in the coordinator whose records are in this log."""
        self.resumed: Callable[[], None] = lambda: None
        """Loads the coordinator of this log again, after the log was stalled."""
        self._stalled_by: ExhaustedError | None = None
        self._unwritten: list[SegmentWrite] = []
        self._unsynced: Offset | None = None
        self._store = store
        self._enqueue = enqueue
        self._observer = observer
        self._tail = Tail(tails)
        self.failed: list[Callable[[Exception], None]] = []
        """Told that a write has no room, that writing has failed, or that a read has (D2, D3)."""
        self._reads = Reads(partition_log, store, self._tail, self.failed)
        self.tell, self.find_timestamp = self._reads.tell, self._reads.find_timestamp
        self.durable_end = partition_log.log_end_offset
        """Everything below is durable here, in the mode in force (D1)."""
        self.role_changed: Callable[[Partition], None] = lambda partition: None
        """The replica leads or follows from this step on."""
        self.stamps_on_append = False
        """Whether the broker sets the timestamps."""
        self.synced_below = Offset(0)
        """What is committed below is on stable storage in every durability mode."""
        self.is_compacted = False
        """Whether every record must have a key."""
        self.codec: Compression | None = None
        """The codec that every produced batch is stored in; None if each keeps its own."""
        self.checks_batches = False
        """Whether the topic asks more of a produced batch than others do."""
        self.owners = OwnerChecks(name, partition_log)
        self.load: SegmentLoad | None = None
        """What is written to a segment of a stream; None before the first write."""
        self._purgatory = Purgatory(partition_log.high_watermark)
        self._use(role)
        self.reconfigure(partition_log.config)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply the topic's new settings."""
        self.log.reconfigure(config)
        self.stamps_on_append = config.message_timestamp_type == "LogAppendTime"
        self.is_compacted = "compact" in config.cleanup_policy
        self.codec = config.codec
        self.owners.reconfigure(config)
        self._purgatory.interrupt_readers()
        opens_batches = self.is_compacted or self.codec is not None
        self.checks_batches = opens_batches or self._has_followers or not self.has_enough_replicas

    # -- roles ---------------------------------------------------------------------------------

    def lead(self, progress: Progress) -> None:
        """Begin a leadership: whoever waits on an earlier one is told that it is over."""
        self.log.lead(progress.leader_epoch)
        self._begin(LeaderRole(progress))
        self._advance(progress.flushed(self.durable_end))

    def follow(self, leader_epoch: LeaderEpoch) -> None:
        """Take batches from the leader of this epoch only, and let nobody read here."""
        self.log.follow(leader_epoch)
        self._begin(FollowerRole(self.durable_end))

    def _begin(self, role: Role) -> None:
        """Change the role. Requests that wait fail, so that their clients look for the leader."""
        before, self._purgatory = self._purgatory, Purgatory(self.log.high_watermark)
        self._use(role)
        if (problem := self.failure or self._stalled_by) is not None:
            self._purgatory.fail(problem)
            self.log.refuse_appends(str(problem))
        self.reconfigure(self.log.config)
        self.role_changed(self)
        before.fail(NotLeaderError(f"{self.name} has another leader epoch"))

    def _use(self, role: Role) -> None:
        self._role, self._has_followers = role, role.leads and not role.is_alone
        self.leads = role.leads
        self.read_error = role.read_error
        """What a reader is told instead of data (F8)."""
        # The purgatory's own methods, for speed: a request calls them for each partition.
        self.when_committed: Callable[[Offset, Done], None] = self._purgatory.when_committed
        self.committed = self._purgatory.committed
        self.add_reader = self._purgatory.add_reader
        self.remove_reader = self._purgatory.remove_reader

    @property
    def has_enough_replicas(self) -> bool:
        """Whether ``min.insync.replicas`` are in sync: without them acks=all is refused."""
        return self._role.has_enough(self.log.config.min_insync_replicas)

    def advance(self, high_watermark: Offset) -> None:
        """Another broker has moved the high watermark: its leader, or an acknowledgement (F2)."""
        if self.failure is None:
            self._advance(self._role.told(high_watermark))

    def append_replicated(self, batch: memoryview, header: BatchHeader) -> Appended | Rejected:
        """Append a batch of the leader as it is; its form and CRC are checked (F7, D3)."""
        since, outcome = self.log.log_end_offset, self.log.append_replicated(batch, header)
        if isinstance(outcome, Appended):
            self.owners.replicated(batch, header)
            self._appended(since)
        return outcome

    # -- appending -----------------------------------------------------------------------------

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        now_ms: int,
        guard: VerificationGuard | None = None,
        condition: Revision | None = None,
    ) -> Appended | Duplicate | Rejected:
        """Append a producer's batch, whose form and CRC are checked (E2 to E6, E14, R4)."""
        since = Offset(0) if self._observer is None else self.log.log_end_offset
        outcome = self.log.append(batch, header, now_ms=now_ms, guard=guard, condition=condition)
        if isinstance(outcome, Appended):
            self._enqueue(self)
            if self._observer is not None:
                self._observer.appended(self.name, since, outcome.end_offset)
        elif self._observer is not None and isinstance(outcome, Rejected):
            self._observer.rejected(self.name, header.producer_id, outcome.error)
        return outcome

    def append_records(
        self, batch: memoryview, *, now_ms: int, guard: VerificationGuard | None = None
    ) -> Appended | Duplicate | Rejected:
        """Append records of a coordinator, without the limits for clients."""
        end_offset, header = self.log.log_end_offset, read_header(batch)
        outcome = self.log.append(batch, header, now_ms=now_ms, guard=guard, internal=True)
        if isinstance(outcome, Appended):
            self._appended(end_offset)
        return outcome

    def append_markers(
        self, markers: Sequence[MarkerToWrite], *, now_ms: int
    ) -> Appended | Rejected:
        """End transactions here, all or none (V6); ``end_offset`` covers what a repeat repeats."""
        end_offset = self.log.log_end_offset
        outcome = self.log.append_markers(markers, now_ms=now_ms)
        if isinstance(outcome, Rejected):
            if self._observer is not None:
                for marker in markers:
                    self._observer.rejected(self.name, marker.producer_id, outcome.error)
            return outcome
        if outcome.end_offset == outcome.base_offset:
            return outcome  # every marker repeats one that is stored
        if self.markers_appended is not None:
            self.markers_appended(markers)
        self._appended(end_offset)
        if self._observer is not None:
            self._observer.markers_appended(self.name, markers)
        return outcome

    def set_owner(self, owner: Owner, *, now_ms: int) -> Appended | Rejected:
        """Record a grant or its end (O9): in force at once, for ever once it is committed."""
        end_offset, outcome = self.log.log_end_offset, self.log.set_owner(owner, now_ms=now_ms)
        if self.log.log_end_offset > end_offset:
            self.owners.changed(owner)
            self._appended(end_offset)
            self._purgatory.interrupt_readers()
        return outcome

    def seal(self, *, now_ms: int) -> Appended | Rejected:
        """Seal a stream's segment (R2), on stable storage: the metadata say for ever where."""
        end_offset, outcome = self.log.log_end_offset, self.log.seal(now_ms=now_ms)
        if self.log.log_end_offset > end_offset:
            self.sync_appended()
            self._appended(end_offset)
        return outcome

    def keep_owners(self, log_start: Offset) -> Offset | Rejected:
        """Append what the log would lose of its owners by this log start (D4)."""
        end_offset, kept = self.log.log_end_offset, self.log.keep_owners(log_start)
        if self.log.log_end_offset > end_offset:
            self._appended(end_offset)
        return kept

    def refuse(self, header: BatchHeader, error: ErrorCode) -> None:
        """Record that a producer's batch was refused before ``append`` (E13)."""
        self.log.refused(header)
        if self._observer is not None:
            self._observer.rejected(self.name, header.producer_id, error)

    def roll_if_due(self, now_ms: int) -> None:
        """Roll the active segment if its age is above the limit."""
        end_offset = self.log.log_end_offset
        if self.log.roll_if_due(now_ms):
            self._appended(end_offset)

    def _appended(self, since: Offset) -> None:
        self._enqueue(self)
        if self._observer is not None:
            self._observer.appended(self.name, since, self.log.log_end_offset)

    def sync_appended(self) -> None:
        """Commit what was appended only once it is on stable storage, in ``os`` mode, too."""
        self.synced_below = max(self.synced_below, self.log.log_end_offset)

    # -- writing and syncing: the flusher, checkpoints and a clean stop ------------------------

    @property
    def recovery_point(self) -> Offset:
        """The offset below which everything is on stable storage."""
        return self._store.recovery_point

    @property
    def begins_segment(self) -> bool:
        """Whether the next write begins a segment: that changes files, and syncs them (D3)."""
        return self.log.begins_segment or any(each.roll for each in self._unwritten)

    async def write(self) -> Offset | None:
        """Write what was appended since the last write; return its end offset.

        None: nothing is to flush. A failed write fails the partition (D2), one without room stalls.
        """
        if self.failure is not None:
            return None
        unflushed = self.log.take_unflushed()
        if self._unwritten:
            unflushed, self._unwritten = [*self._unwritten, *unflushed], []
        if not unflushed:
            return self._unsynced
        end_offset = unflushed[-1].end_offset
        try:
            await self._store.write(unflushed)
        except ExhaustedError as error:
            self._unwritten = unflushed
            self.stall(error)
            return None
        except StorageError as error:
            self.fail(error)
            return None
        self.log.written(end_offset)
        self._tail.add(unflushed)
        if self._has_followers:
            self._purgatory.advance(self.log.high_watermark)  # followers read what is written
        return end_offset

    async def sync(self) -> bool:
        """Sync what is written to stable storage; False if the partition has failed.

        A failed sync fails it (D2). Raises ExhaustedError if it could not begin.
        """
        if self.failure is not None:
            return False
        try:
            await self._store.sync()
        except ExhaustedError:
            raise
        except StorageError as error:
            self.fail(error)
        return self.failure is None

    def stall(self, error: ExhaustedError, *, unsynced: Offset | None = None) -> None:
        """What is appended cannot be flushed now: refuse more, end all waits, and try it again.

        ``unsynced``: the end of what is written and not synced.
        """
        if self.failure is not None:
            return
        if self._stalled_by is None:
            log.error("%s refuses writes until there is room: %s", self.name, error)
        self._stalled_by, self._unsynced = error, unsynced
        self.log.refuse_appends(f"{error}; the broker tries again")
        self._purgatory.fail(error)
        self.tell(error)
        asyncio.get_running_loop().call_later(RETRY_S, self._enqueue, self)

    def _resume(self) -> None:
        """What was left is flushed: accept writes again."""
        log.warning("%s accepts writes again", self.name)
        self._stalled_by = self._unsynced = None
        self.log.accept_appends()
        self._purgatory.resume()
        self.resumed()

    def flushed(self, end_offset: Offset) -> None:
        """Everything below ``end_offset`` is durable (D1): advance the high watermark."""
        if self.failure is not None:
            return
        self.log.flushed(end_offset)
        self.durable_end = end_offset
        if self._observer is not None:
            self._observer.flushed(self.name, end_offset)
        self._advance(self._role.flushed(end_offset))
        if self._stalled_by is not None:
            self._resume()

    def _advance(self, high_watermark: Offset) -> None:
        before = self.log.high_watermark
        self.log.advance_high_watermark(high_watermark)
        if self._has_followers and self.read_error is not self._role.read_error:
            self.read_error = self._role.read_error
            self._purgatory.interrupt_readers()
        if self._observer is not None and self.log.high_watermark > before:
            self._observer.high_watermark_moved(self.name, self.log.high_watermark)
        if self.log.high_watermark > before or not self._has_followers:
            self._purgatory.advance(self.log.high_watermark)

    def fail(self, error: StorageError) -> None:
        """A write or sync failed: the partition acknowledges nothing any more (D2)."""
        if self.failure is not None:
            return  # of a deleted partition, say, whose files are closed
        advice = "" if self._has_followers else "; restart the broker"
        log.error("%s accepts no more writes: %s%s", self.name, error, advice)
        self._set_failure(error)
        self.tell(error)

    def remove(self, reason: str = "was deleted") -> None:
        """Fail all waiting requests: the topic was deleted, or the replica is opened anew."""
        self._set_failure(NotLeaderError(f"{self.name} {reason}"))

    def _set_failure(self, error: Exception) -> None:
        self.failure = error
        self._tail.clear()
        self.log.failed()
        if self._observer is not None:
            self._observer.failed(self.name, error)
        self._purgatory.fail(error)

    # -- reading -------------------------------------------------------------------------------

    def refusal(self, isolation: Isolation) -> ErrorCode:
        """Return why a reader of this isolation level gets nothing now, or NONE (F8)."""
        return ErrorCode.NONE if isolation is Isolation.TAIL and self.leads else self.read_error

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        isolation: Isolation,
        *,
        at_least_one: bool = True,
        to_send: bool = False,
    ) -> Coroutine[None, None, Fetched]:
        """Read whole batches from ``offset``, up to what the isolation level may read (F6).

        Raises CorruptionError and StorageError. The first batch is whole even above ``max_bytes``,
        unless ``at_least_one`` is false and that is 0 or less. ``to_send``: only to send it.
        """
        if error := self.refusal(isolation):
            return self._reads.refused(error)
        return self._reads.read(
            offset, max_bytes, isolation, at_least_one=at_least_one, to_send=to_send
        )

    def end_offset(self, isolation: Isolation) -> Offset:
        """Return the end offset for a reader of this isolation level (F6)."""
        if isolation is Isolation.TRANSACTIONAL:
            return self.log.last_stable_offset
        return self.log.log_end_offset if isolation is Isolation.TAIL else self.log.high_watermark

    @property
    def must_sync(self) -> bool:
        """Whether to sync before the next write, because the disk does not keep up."""
        return self._store.must_sync

    @property
    def needs_sync(self) -> bool:
        """Whether committed records are not on stable storage yet (``os`` mode)."""
        return self._store.recovery_point < self.log.high_watermark

    def compaction_need(self, first_dirty: Offset, now_ms: int) -> CompactionNeed:
        """Return what a round of compaction from ``first_dirty`` would do (D4)."""
        return self.log.compaction_need(first_dirty, self._store.recovery_point, now_ms)

    def compaction(self, due: Round, should_continue: Callable[[], bool]) -> Compaction:
        """Prepare a round of compaction of this partition's files."""
        return Compaction(self.files, due, should_continue)

    def compacted(self) -> None:
        """Files were replaced: readers that wait look again."""
        self._tail.clear()
        self._purgatory.interrupt_readers()

    def fail_with_store(self, error: StorageError) -> bool:
        """Fail the partition if its store has failed; return whether it has."""
        if has_failed := self._store.failure is not None:
            self.fail(error)
        return has_failed

    def advance_start(self, offset: Offset) -> list[Offset] | ErrorCode:
        """Raise the log start to ``offset`` (D4); return the segments to delete."""
        gone = self.log.advance_start(offset)
        self._purgatory.interrupt_readers()
        return gone

    async def close(self, *, clean: bool) -> CleanStop | None:
        """Close the files; ``clean`` syncs all of them, so that the next start may trust them.

        Returns how a clean stop left them. Raises StorageError: then it was no clean stop.
        """
        await self._store.close(clean=clean)
        return self._store.clean_stop if clean else None

    @property
    def files(self) -> PartitionStore:
        """The files, for ``log_starts`` and compaction: they change nothing that has none."""
        assert isinstance(self._store, PartitionStore), self.name
        return self._store
