"""Runs coordinator shards on internal partitions: decide → append → replay → answer once committed.

A shard is loaded by replaying its partition, lives in memory, and is thrown away (never rolled
back) when its partition fails. Between a rule's reading of the state and the replay of its records
nothing else runs, so every decision sees all appended state (E16); what it answers leaves when that
is committed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fencelog.broker.log_flusher import LogFlusher
from fencelog.broker.partition import Partition
from fencelog.coordination.shard import Decision, LogRecord, Shard, partition_for
from fencelog.errors import CorruptionError, FencelogError, NotLeaderError
from fencelog.log.values import Appended, Isolation, ReadPlan
from fencelog.ports import WallClock
from fencelog.types import CoordinatorEpoch, Instant, Offset
from fencelog.wire.batch import iterate, read_header
from fencelog.wire.records import RecordToWrite, build_batch, read_records

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
R = TypeVar("R")

LOAD_BYTES = 1024 * 1024
OpenPartition = Callable[[str, int], Awaitable[Partition]]
NextEpoch = Callable[[str], Awaitable[CoordinatorEpoch]]


@dataclass(slots=True, eq=False)
class Loaded(Generic[S]):
    """A shard in service and the partition that holds its records."""

    index: int
    shard: S
    partition: Partition
    timer: asyncio.TimerHandle | None = None


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
        flusher: LogFlusher,
        clock: WallClock,
    ) -> None:
        """Nothing is loaded before it is asked for."""
        self.topic = topic
        self.partition_count = partition_count
        self._new_shard = new_shard
        self._open_partition = open_partition
        self._next_epoch = next_epoch
        self._flusher = flusher
        self._clock = clock
        self._loading: dict[int, asyncio.Task[Loaded[S]]] = {}
        self._expiries: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.on_committed: Callable[[Loaded[S]], None] = lambda loaded: None

    def loaded(self) -> list[Loaded[S]]:
        """Every shard in service now."""
        return [
            task.result()
            for task in self._loading.values()
            if task.done() and not task.cancelled() and task.exception() is None
        ]

    async def shard_of(self, key: str) -> Loaded[S]:
        """The shard that a transactional id, app or group belongs to; loads it first if need be."""
        return await self.load(partition_for(key, self.partition_count))

    async def load(self, index: int) -> Loaded[S]:
        """The shard on one partition. Raises NotLeaderError when it cannot be loaded."""
        if self._stopped:
            raise NotLeaderError(f"{self.topic} is stopping")
        task = self._loading.get(index)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(index))
            self._loading[index] = task
        try:
            return await asyncio.shield(task)
        except FencelogError as error:
            if self._loading.get(index) is task:
                del self._loading[index]
            raise NotLeaderError(f"{self.topic}-{index} cannot be loaded: {error}") from error

    async def decide(self, key: str, rule: Callable[[S, Instant], Decision[R]]) -> R:
        """Apply a rule to the shard of a key; returns its response once all it saw is committed.

        Raises NotLeaderError when the decision could not be stored: it may or may not stand, and
        the shard is loaded anew, so the caller answers COORDINATOR_NOT_AVAILABLE.
        """
        return await self.decide_on(await self.shard_of(key), rule)

    async def decide_on(self, loaded: Loaded[S], rule: Callable[[S, Instant], Decision[R]]) -> R:
        """Apply a rule to a loaded shard, as ``decide`` does."""
        now = Instant(asyncio.get_running_loop().time())
        decision = rule(loaded.shard, now)
        if decision.records:
            self._append(loaded, decision.records, now)
        await self._settled(loaded)
        return decision.response

    async def read(self, key: str, question: Callable[[S], R]) -> R:
        """Ask the shard of a key; the answer leaves once what it reveals is committed (E16)."""
        loaded = await self.shard_of(key)
        answer = question(loaded.shard)
        await self._settled(loaded)
        return answer

    async def read_all(self, question: Callable[[S], list[R]]) -> list[R]:
        """Ask every shard that has ever been used."""
        answers: list[R] = []
        for loaded in self.loaded():
            answers.extend(question(loaded.shard))
            await self._settled(loaded)
        return answers

    async def stop(self) -> None:
        """Decide nothing more."""
        self._stopped = True
        for loaded in self.loaded():
            self._cancel_timer(loaded)
        for task in [*self._expiries, *self._loading.values()]:
            task.cancel()

    # -- inside --------------------------------------------------------------------------------

    async def _settled(self, loaded: Loaded[S]) -> None:
        try:
            await loaded.partition.purgatory.committed(loaded.partition.log.log_end_offset)
        except FencelogError as error:
            self._unload(loaded)
            raise NotLeaderError(f"{loaded.partition.name}: {error}") from error

    def _append(self, loaded: Loaded[S], records: tuple[LogRecord, ...], now: Instant) -> None:
        """Store and replay one decision, in one step."""
        wall_ms = self._clock.now_ms()
        batch = build_batch(
            [RecordToWrite(key=r.key, value=r.value, timestamp_ms=wall_ms) for r in records]
        )
        view = memoryview(batch)
        outcome = loaded.partition.log.append(
            view, read_header(view), now_ms=wall_ms, internal=True
        )
        if not isinstance(outcome, Appended):
            self._unload(loaded)
            raise NotLeaderError(f"{loaded.partition.name} takes no records: {outcome}")
        for position, record in enumerate(records):
            loaded.shard.replay(record, Offset(outcome.base_offset + position), now)
        self._flusher.dirty(loaded.partition)
        self._schedule(loaded)
        loaded.partition.purgatory.when_committed(
            outcome.end_offset, lambda error: self._committed(loaded, error)
        )

    def _committed(self, loaded: Loaded[S], error: Exception | None) -> None:
        if error is None and not self._stopped:
            self.on_committed(loaded)

    async def _load(self, index: int) -> Loaded[S]:
        partition = await self._open_partition(self.topic, index)
        epoch = await self._next_epoch(f"{self.topic}-{index}")
        loaded = Loaded(index=index, shard=self._new_shard(epoch), partition=partition)
        now = Instant(asyncio.get_running_loop().time())
        offset = partition.log.log_start_offset
        while offset < partition.log.high_watermark:
            plan = partition.log.read(offset, LOAD_BYTES, Isolation.REPLICATED)
            assert isinstance(plan, ReadPlan), plan
            data = await partition.store.read(plan)
            if not data:
                raise CorruptionError(f"{partition.name}: there is no record at offset {offset}")
            for header, batch in iterate(data):
                if not header.is_control:
                    for record in read_records(batch):
                        loaded.shard.replay(
                            LogRecord(key=record.key or b"", value=record.value),
                            record.offset,
                            now,
                        )
                offset = header.next_offset
        # What ran out by the wall clock while nobody looked is due now.
        self._expire(loaded)
        return loaded

    def _unload(self, loaded: Loaded[S]) -> None:
        """Throw the shard away; the next request loads it from what is stored."""
        self._cancel_timer(loaded)
        if any(each is loaded for each in self.loaded()):
            del self._loading[loaded.index]

    # -- deadlines -----------------------------------------------------------------------------

    def _cancel_timer(self, loaded: Loaded[S]) -> None:
        if loaded.timer is not None:
            loaded.timer.cancel()
            loaded.timer = None

    def _schedule(self, loaded: Loaded[S]) -> None:
        self._cancel_timer(loaded)
        deadline = loaded.shard.next_deadline()
        if deadline is not None and not self._stopped:
            loop = asyncio.get_running_loop()
            loaded.timer = loop.call_at(deadline, self._expire, loaded)

    def _expire(self, loaded: Loaded[S]) -> None:
        loaded.timer = None
        task = asyncio.get_running_loop().create_task(self._expire_now(loaded))
        self._expiries.add(task)
        task.add_done_callback(self._expiries.discard)

    async def _expire_now(self, loaded: Loaded[S]) -> None:
        try:
            await self.decide_on(loaded, lambda shard, now: shard.expire(now, self._clock.now_ms()))
        except NotLeaderError as error:
            log.warning("a timeout could not be recorded: %s", error)
            return
        if loaded.timer is None:
            self._schedule(loaded)
