"""Runs coordinator shards on internal partitions: decide → append → replay → answer once committed.

A shard is loaded by replaying its partition, lives in memory, and is unloaded (never rolled back)
when its partition fails. From a rule's reading of the state to the replay of its records there is
no await, so every decision sees all appended state (E16); its response is sent once that is
committed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.observer import Observer
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.timer import Timer
from fencelog.coordination.shard import Decision, LogRecord, Shard, partition_for
from fencelog.errors import (
    CorruptionError,
    ErrorCode,
    FencelogError,
    NotCoordinatorError,
    NotLeaderError,
)
from fencelog.log.values import Appended, Isolation, MarkerToWrite, Rejected
from fencelog.log.verification import VerificationGuard
from fencelog.ports import WallClock
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    Instant,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from fencelog.wire.batch import BatchHeader, iterate
from fencelog.wire.control import read_marker
from fencelog.wire.records import RecordToWrite, build_batch, read_records

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
R = TypeVar("R")

LOAD_BYTES = 1024 * 1024
LOAD_RETRY_S = 0.5
OpenPartition = Callable[[str, int], Awaitable[Partition]]
NextEpoch = Callable[[TopicPartition], Awaitable[CoordinatorEpoch]]
ReplayMarker = Callable[[S, ProducerId, bool], None]
"""Tells a shard how a transaction with records on its partition has ended: ``True`` is commit."""


@dataclass(frozen=True, slots=True)
class InTransaction:
    """The producer whose transaction a decision's records belong to, and its guard (E14)."""

    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    guard: VerificationGuard | None = None

    def __bool__(self) -> bool:
        """Tell whether there is a transaction."""
        return self.producer_id != NO_PRODUCER_ID


NO_TRANSACTION = InTransaction()


class CoordinatorRuntime(Generic[S]):
    """All shards of one internal topic."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        new_shard: Callable[[CoordinatorEpoch], S],
        *,
        open_partition: OpenPartition,
        next_epoch: NextEpoch,
        clock: WallClock,
        observer: Observer | None,
        replay_marker: ReplayMarker[S] | None = None,
    ) -> None:
        """Start without shards; each is loaded on first use.

        ``open_partition`` raises NotCoordinatorError for a partition that another broker leads.
        """
        self.topic = topic
        self.partition_count = partition_count
        self._new_shard = new_shard
        self._open_partition = open_partition
        self._next_epoch = next_epoch
        self._clock = clock
        self._observer = observer
        self._replay_marker = replay_marker
        self._loading: dict[int, asyncio.Task[Loaded[S]]] = {}
        self._reloading: set[asyncio.Task[None]] = set()
        self._at_load: dict[object, list[Callable[[S, Instant], Decision[None]]]] = {}
        """Rules to apply at the end of a load, by its task."""
        self._stopped = False
        self.key_of: Callable[[str], str] = str
        """What of a transactional id, app or group selects its shard; set before the first use."""
        self.on_loaded: Callable[[Loaded[S]], None] = lambda loaded: None
        self.on_committed: Callable[[Loaded[S]], None] = lambda loaded: None
        self.on_expired: Callable[[object], None] = lambda response: None
        """Gets the response of ``expire``, once that is committed."""
        self.on_unloaded: Callable[[Loaded[S]], None] = lambda loaded: None
        """A shard was unloaded: its waiting requests get no response."""
        self.before_expiry: Callable[[], None] = lambda: None
        """Called before a shard decides what has timed out."""

    def loaded(self) -> list[Loaded[S]]:
        """Return every loaded shard."""
        return [
            task.result()
            for task in self._loading.values()
            if task.done() and not task.cancelled() and task.exception() is None
        ]

    async def shard_of(self, key: str) -> Loaded[S]:
        """Return the shard of a transactional id, app or group; load it if necessary."""
        return await self.load(partition_for(self.key_of(key), self.partition_count))

    async def load(self, index: int) -> Loaded[S]:
        """Return the shard on one partition. Raises NotLeaderError if it cannot be loaded."""
        if self._stopped:
            raise NotLeaderError(f"{self.topic} is stopping")
        task = self._loading.get(index)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(index))
            self._loading[index] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            assert caller is not None
            if caller.cancelling() or not task.cancelled():
                raise
            raise NotCoordinatorError(f"{self.topic}-{index} is led by another broker") from None
        except FencelogError as error:
            if self._loading.get(index) is task:
                del self._loading[index]
            kind = NotCoordinatorError if isinstance(error, NotCoordinatorError) else NotLeaderError
            raise kind(f"{self.topic}-{index} cannot be loaded: {error}") from error

    def lead(self, index: int) -> None:
        """This broker leads a partition from now on: load its shard, which waits for no request."""
        self._begin(self._load_led(index))

    def resign(self, index: int) -> None:
        """Another broker leads a partition: nothing more is decided or answered by its shard here.

        Waiting requests get NOT_COORDINATOR, in this step.
        """
        task = self._loading.get(index)
        if task is None:
            return
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            loaded = task.result()
            loaded.moved = True
            loaded.partition.markers_appended = None
            loaded.partition.resumed = lambda: None
            self._unload(loaded)
        self._loading.pop(index, None)

    async def decide(self, key: str, rule: Callable[[S, Instant], Decision[R]]) -> R:
        """Apply a rule to the shard of a key; return its response once all it saw is committed.

        Raises NotLeaderError if the decision could not be stored: it may or may not be in the log,
        and the shard is loaded again, so the caller answers COORDINATOR_NOT_AVAILABLE.
        """
        return await self.decide_on(await self.shard_of(key), rule)

    async def decide_on(self, loaded: Loaded[S], rule: Callable[[S, Instant], Decision[R]]) -> R:
        """Apply a rule to a loaded shard, as ``decide`` does."""
        response = self._apply(loaded, rule, NO_TRANSACTION)
        assert not isinstance(response, Rejected), response
        end_offset = loaded.partition.log.log_end_offset
        await self.await_commit(loaded)
        self._answered(loaded, end_offset, None)
        return response

    async def decide_in(
        self,
        loaded: Loaded[S],
        transaction: InTransaction,
        rule: Callable[[S, Instant], Decision[R]],
    ) -> R | Rejected:
        """Apply a rule whose records are part of a producer's transaction.

        Returns Rejected, with nothing changed, if the log rejects that producer.
        """
        response = self._apply(loaded, rule, transaction)
        if not isinstance(response, Rejected):
            end_offset = loaded.partition.log.log_end_offset
            await self.await_commit(loaded)
            self._answered(loaded, end_offset, None)
        return response

    def decide_then(
        self,
        loaded: Loaded[S],
        rule: Callable[[S, Instant], Decision[R]],
        then: Callable[[R], None],
    ) -> None:
        """Apply a rule and call ``then`` with its response once all it saw is committed.

        The response may be for other requests than the one that caused it. ``then`` is not called
        if the shard is unloaded first. Raises NotLeaderError as ``decide`` does.
        """
        response = self._apply(loaded, rule, NO_TRANSACTION)
        assert not isinstance(response, Rejected), response
        end_offset = loaded.partition.log.log_end_offset

        def done(error: Exception | None) -> None:
            if error is None:
                self._answered(loaded, end_offset, response)
                then(response)
            else:
                self._unload(loaded)

        loaded.partition.when_committed(end_offset, done)

    def decide_everywhere(
        self,
        rule: Callable[[S, Instant], Decision[None]],
        failed: Callable[[NotLeaderError], None],
    ) -> list[Loaded[S]]:
        """Apply a rule to each shard in this step, and to one that is being loaded once it is.

        Returns the loaded ones; ``failed`` is told why others could not store it.
        """
        for task in self._loading.values():
            if not task.done():
                self._at_load.setdefault(task, []).append(rule)
                task.add_done_callback(lambda done: self._at_load.pop(done, None))
        decided = []
        for loaded in self.loaded():
            try:
                self._apply(loaded, rule, NO_TRANSACTION)
            except NotLeaderError as error:
                failed(error)
            else:
                decided.append(loaded)
        return decided

    def note(self, fact: Callable[[S, Instant], bool]) -> None:
        """Tell every loaded shard what no record says; ``fact`` returns whether a deadline moved.

        An unloaded shard is not told: a load begins sessions anew.
        """
        now = Instant(asyncio.get_running_loop().time())
        for loaded in self.loaded():
            if fact(loaded.shard, now):
                self._schedule(loaded)

    async def read(self, key: str, query: Callable[[S], R]) -> R:
        """Query the shard of a key; return the result once what it reveals is committed (E16)."""
        return await self.read_on(await self.shard_of(key), query)

    async def read_on(self, loaded: Loaded[S], query: Callable[[S], R]) -> R:
        """Query a loaded shard, as ``read`` does."""
        answer = query(loaded.in_service())
        end_offset = loaded.partition.log.log_end_offset
        await self.await_commit(loaded)
        self._answered(loaded, end_offset, None)
        return answer

    async def read_all(self, query: Callable[[S], list[R]]) -> list[R]:
        """Query every loaded shard. Raises NotLeaderError if one is unloaded meanwhile."""
        answers: list[R] = []
        for loaded in self.loaded():
            answers.extend(query(loaded.in_service()))
            await self.await_commit(loaded)
        return answers

    async def stop(self) -> None:
        """Accept no more decisions."""
        self._stopped = True
        for loaded in self.loaded():
            loaded.timer.cancel()
        for task in self._loading.values():
            task.cancel()
        for each in self._reloading:
            each.cancel()

    # -- inside --------------------------------------------------------------------------------

    async def await_commit(self, loaded: Loaded[S]) -> None:
        """Wait until all that a shard has decided is committed. Raises NotLeaderError."""
        try:
            await loaded.partition.committed(loaded.partition.log.log_end_offset)
        except FencelogError as error:
            self._unload(loaded)
            raise NotLeaderError(f"{loaded.partition.name}: {error}") from error

    def _apply(
        self,
        loaded: Loaded[S],
        rule: Callable[[S, Instant], Decision[R]],
        transaction: InTransaction,
    ) -> R | Rejected:
        """Decide, append and replay, in one step."""
        now = Instant(asyncio.get_running_loop().time())
        decision = rule(loaded.in_service(), now)
        if decision.records:
            rejected = self._append(loaded, decision.records, now, transaction)
            if rejected is not None:
                return rejected
            if decision.must_sync:
                loaded.partition.sync_appended()
        elif decision.moves_deadline:
            self._schedule(loaded)
        return decision.response

    def _append(
        self,
        loaded: Loaded[S],
        records: tuple[LogRecord, ...],
        now: Instant,
        transaction: InTransaction = NO_TRANSACTION,
    ) -> Rejected | None:
        """Store and replay one decision, in one step; Rejected only for a rejected producer."""
        wall_ms = self._clock.now_ms()
        batch = build_batch(
            [RecordToWrite(key=r.key, value=r.value, timestamp_ms=wall_ms) for r in records],
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transactional=bool(transaction),
        )
        outcome = loaded.partition.append_records(
            memoryview(batch), now_ms=wall_ms, guard=transaction.guard
        )
        if isinstance(outcome, Rejected) and transaction and loaded.partition.failure is None:
            return outcome
        if not isinstance(outcome, Appended):
            self._unload(loaded)
            raise NotLeaderError(f"{loaded.partition.name} rejected the records: {outcome}")
        for position, record in enumerate(records):
            loaded.shard.replay(record, Offset(outcome.base_offset + position), now)
        if self._observer is not None:
            self._observer.decided(loaded.partition.name, outcome.base_offset, records)
        self._schedule(loaded)
        loaded.partition.when_committed(
            outcome.end_offset, lambda error: self._committed(loaded, error)
        )
        return None

    def _committed(self, loaded: Loaded[S], error: Exception | None) -> None:
        if error is None and not (self._stopped or loaded.dropped):
            self.on_committed(loaded)

    def _answered(self, loaded: Loaded[S], end_offset: Offset, response: object) -> None:
        if self._observer is not None:
            self._observer.answered(loaded.partition.name, end_offset, response)

    async def _load(self, index: int) -> Loaded[S]:
        partition = await self._open_partition(self.topic, index)
        epoch = await self._next_epoch(partition.name)
        loaded = Loaded(
            index=index,
            shard=self._new_shard(epoch),
            partition=partition,
            timer=Timer(lambda: self._expire(loaded)),
        )
        now = Instant(asyncio.get_running_loop().time())
        offset = partition.log.log_start_offset
        # Up to the log end: markers may be appended while this reads.
        while offset < partition.log.log_end_offset:
            await partition.committed(partition.log.log_end_offset)
            found = await partition.read(offset, LOAD_BYTES, Isolation.REPLICATED)
            assert found.error is ErrorCode.NONE, found
            if not found.records:
                raise CorruptionError(f"{partition.name}: no record at offset {offset}")
            for header, batch in iterate(found.records):
                self._replay(loaded, header, batch, now)
                offset = header.next_offset
        partition.resumed = lambda: self._reload(index)
        partition.markers_appended = lambda markers: self._replay_markers(loaded, markers)
        # Timeouts that passed while the shard was not loaded are due now.
        asyncio.get_running_loop().call_soon(self._expire, loaded)
        if self._observer is not None:
            self._observer.shard_loaded(partition.name, epoch)
        for rule in self._at_load.pop(asyncio.current_task(), ()):
            self._apply(loaded, rule, NO_TRANSACTION)
        self.on_loaded(loaded)
        return loaded

    def _replay(
        self, loaded: Loaded[S], header: BatchHeader, batch: memoryview, now: Instant
    ) -> None:
        if header.is_control:
            if self._replay_marker is not None:
                self._replay_marker(loaded.shard, header.producer_id, read_marker(batch).commit)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for stored in read_records(batch):
            record = LogRecord(stored.key or b"", stored.value, producer_id)
            loaded.shard.replay(record, stored.offset, now)

    def _replay_markers(self, loaded: Loaded[S], markers: Sequence[MarkerToWrite]) -> None:
        """Replay markers in the same step in which the partition appended them."""
        if self._replay_marker is not None:
            for marker in markers:
                self._replay_marker(loaded.shard, marker.producer_id, marker.commit)

    def _unload(self, loaded: Loaded[S]) -> None:
        """Drop the shard; the next request loads it from the log."""
        loaded.timer.cancel()
        loaded.dropped = True
        if any(each is loaded for each in self.loaded()):
            del self._loading[loaded.index]
            self.on_unloaded(loaded)
            if self._observer is not None:
                self._observer.shard_unloaded(loaded.partition.name)

    async def _load_led(self, index: int) -> None:
        """Load a shard for as long as its partition is led here."""
        while not self._stopped:
            try:
                self.on_committed(await self.load(index))
            except NotCoordinatorError:
                return
            except NotLeaderError as error:
                log.warning("%s", error)
                await asyncio.sleep(LOAD_RETRY_S)
            else:
                return

    def _reload(self, index: int) -> None:
        """Load a shard whose log was stalled: its timeouts and markers wait for no request."""

        async def load() -> None:
            try:
                self.on_committed(await self.load(index))
            except NotLeaderError as error:
                log.warning("%s", error)

        self._begin(load())

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    # -- deadlines -----------------------------------------------------------------------------

    def _schedule(self, loaded: Loaded[S]) -> None:
        deadline = loaded.shard.next_deadline()
        if deadline is None or self._stopped or loaded.dropped:
            loaded.timer.cancel()
        else:
            loaded.timer.set(deadline)

    def _expire(self, loaded: Loaded[S]) -> None:
        if self._stopped:
            return
        self.before_expiry()
        try:
            self.decide_then(
                loaded,
                lambda shard, now: shard.expire(now, self._clock.now_ms()),
                self.on_expired,
            )
        except NotLeaderError as error:
            log.warning("cannot record a timeout, retrying after the next load: %s", error)
        finally:
            # Also where nothing was due yet, or an answer to what has expired failed.
            self._schedule(loaded)
