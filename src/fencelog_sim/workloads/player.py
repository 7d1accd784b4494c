"""One client that carries out plans, plainly or in transactions, and types their outcomes.

Now and then it aborts on purpose, assigns other partitions, or meets a successor under its own
transactional id.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from fencelog.types import TopicPartition
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.library import Library, Reader, Writer
from fencelog_sim.workloads.lingering import linger
from fencelog_sim.workloads.own import ERRORS
from fencelog_sim.workloads.plans import (
    Plan,
    Polled,
    Send,
    completed,
    invoked,
    named,
    unknown,
)
from fencelog_sim.workloads.settling import RETRY_S
from fencelog_sim.workloads.topics import Generations

ABORT_SHARE = 0.1
"""Of the steps of a transaction, after each of which it may be aborted."""
SUCCESSOR_SHARE = 1 / 50
LINGER_SHARE = 1 / 64
ASSIGN_SHARE = 1 / 32
OLD_KEY_SHARE = 1 / 3
"""Of the partitions assigned, those that may be of an earlier topic."""
OLD_SEND_SHARE = 1 / 20


class _ChosenAbortError(Exception):
    """The workload wants this transaction aborted."""


class Keys:
    """Where one client may write, and values that no other client writes."""

    def __init__(self, stage: Stage, topics: Generations) -> None:
        """Count from 0: the process's name makes the values unique."""
        self.scale = stage.scale
        self.random: Random = stage.random
        self.topics = topics
        self._process = stage.history.process
        self._values = 0

    def names(self, count: int) -> list[str]:
        """Return so many names that were never given before."""
        first, self._values = self._values, self._values + count
        return [f"{self._process}.{number}" for number in range(first, first + count)]

    def count(self) -> int:
        """Return how many records a send is to carry."""
        return self.random.randint(1, self.scale.records_per_send)

    def generation(self) -> int:
        """Return the current topic's number, sometimes an earlier one's."""
        if self.random.random() < OLD_SEND_SHARE:
            return self.random.randint(0, self.topics.current)
        return self.topics.current


@dataclass(frozen=True)
class Habit:
    """What distinguishes one workload's clients from another's."""

    plan: Callable[[Keys], Plan]
    transaction_share: float


async def choose_partitions(
    random: Random, topics: Generations, partitions: int, reader: Reader
) -> dict[TopicPartition, int]:
    """Return what to read: from the beginning, from the end, or from where the reader stood."""
    chosen: dict[TopicPartition, int] = {}
    for number in range(partitions):
        if chosen and random.random() < 0.5:
            continue
        generation = topics.current
        if random.random() < OLD_KEY_SHARE:
            generation = random.randint(0, generation)
        partition = topics.partition(generation, number)
        position = reader.positions.get(partition, 0)
        how = random.randrange(3)
        if how == 0:
            position = 0
        elif how == 1:
            position = await reader.end(partition)
        chosen[partition] = position
    return chosen


class Player:
    """One client from its start to its end or death."""

    def __init__(
        self,
        stage: Stage,
        library: Library,
        topics: Generations,
        transactional_id: str,
        habit: Habit,
    ) -> None:
        """Know nothing of an earlier client of this index; the log has what it did."""
        self._stage = stage
        self._random = stage.random
        self._history = stage.history
        self._library = library
        self._reader = library.reader
        self._topics = topics
        self._transactional_id = transactional_id
        self._habit = habit
        self._keys = Keys(stage, topics)
        self._writers: dict[bool, Writer] = {}
        self._lingered = 0

    async def play(self) -> None:
        """Do operations until the stage stops, beginning with the newest topic."""
        while not self._stage.stopping:
            try:
                await self._topics.find()
                await self._assign()
                break
            except (*ERRORS, *self._library.errors):
                await asyncio.sleep(RETRY_S)
        while not self._stage.stopping:
            if not await self.operation():
                # What failed at once would fail at once again without any time passing.
                await asyncio.sleep(RETRY_S)
            await self._stage.pause()

    async def close(self) -> None:
        """Close the producers."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            await writer.close()

    async def operation(self) -> bool:
        """Do one operation; whether the cluster did what it was asked."""
        transactional = self._random.random() < self._habit.transaction_share
        try:
            if self._random.random() < ASSIGN_SHARE:
                await self._assign()
            if transactional not in self._writers:
                identifier = self._transactional_id if transactional else None
                self._writers[transactional] = await self._library.writer(identifier)
        except (*ERRORS, *self._library.errors):
            return False
        plan = self._habit.plan(self._keys)
        sends = [step for step in plan if step is not None]
        if len(sends) > 1 and self._random.random() < LINGER_SHARE:
            self._lingered += 1
            alone = f"{self._transactional_id}-{self._history.process}-{self._lingered}"
            await linger(self._stage, self._topics.cluster, alone, sends)
            return True
        if transactional:
            return await self._in_transaction(plan)
        return await self._plainly(plan)

    async def _in_transaction(self, plan: Plan) -> bool:
        writer = self._writers[True]
        invocation = self._history.invoke(invoked(plan), transactional=True)
        before = dict(self._reader.positions)
        polled: list[Polled] = []
        aborting: tuple[type[Exception], ...] = (_ChosenAbortError, *self._library.errors)
        try:
            await writer.begin()
            for step in plan:
                await self._perform(step, writer, polled)
                self._maybe_abort()
                if self._random.random() < SUCCESSOR_SHARE:
                    await self._succeed(writer)
            offsets = await writer.flush()
        except aborting as error:
            chosen = isinstance(error, _ChosenAbortError)
            # No commit was attempted, so whatever becomes of the abort nothing will be visible.
            await self._abort(writer, keep=chosen)
            self._reader.rewind(before)
            invocation.failed(unknown(plan), named(error))
            return chosen
        invocation.committing()
        try:
            await writer.commit()
        except self._library.errors as error:
            await self._retire(writer)
            self._reader.rewind(before)
            invocation.indeterminate(unknown(plan), named(error))
            return False
        invocation.ok(completed(plan, offsets, polled))
        if self._writers.get(True) is not writer:
            await writer.close()
        await self._follow(plan, offsets)
        return True

    async def _succeed(self, writer: Writer) -> None:
        """Start a second producer under the same id; the first goes on as a zombie."""
        successor = await self._library.writer(self._transactional_id)
        last, self._writers[True] = self._writers[True], successor
        if last is not writer:
            await last.close()

    def _maybe_abort(self) -> None:
        if self._random.random() < ABORT_SHARE:
            raise _ChosenAbortError

    async def _plainly(self, plan: Plan) -> bool:
        writer = self._writers[False]
        invocation = self._history.invoke(invoked(plan))
        before = dict(self._reader.positions)
        polled: list[Polled] = []
        try:
            for step in plan:
                if step is None:
                    await self._poll_or_nothing(polled)
                else:
                    await self._perform(step, writer, polled)
            offsets = await writer.flush()
        except self._library.errors as error:
            await self._writers.pop(False).close()
            self._reader.rewind(before)
            invocation.indeterminate(unknown(plan), named(error))
            return False
        invocation.ok(completed(plan, offsets, polled))
        await self._follow(plan, offsets)
        return True

    async def _perform(self, step: Send | None, writer: Writer, polled: list[Polled]) -> None:
        if step is None:
            polled.append(await self._reader.poll())
        else:
            await writer.send(step.partition, step.values)

    async def _poll_or_nothing(self, polled: list[Polled]) -> None:
        """Outside a transaction a poll that fails says nothing of the sends around it."""
        try:
            polled.append(await self._reader.poll())
        except self._library.errors:
            polled.append({})

    async def _abort(self, writer: Writer, *, keep: bool) -> None:
        """Abort, and keep the producer only where that is known to have worked."""
        try:
            await writer.abort()
        except self._library.errors:
            keep = False
        if not keep or self._writers.get(True) is not writer:
            await self._retire(writer)

    async def _retire(self, writer: Writer) -> None:
        """Close a transactional producer, which may have a successor already."""
        if self._writers.get(True) is writer:
            del self._writers[True]
        await writer.close()

    async def _follow(self, plan: Plan, offsets: list[list[int]]) -> None:
        """Go on to the next topic where this one has had its values."""
        sends = [step for step in plan if step is not None]
        full = any(
            self._topics.is_full(send.partition, found[-1])
            for send, found in zip(sends, offsets, strict=True)
        )
        if not full:
            return
        try:
            await self._topics.rotate()
            if self._random.random() < 0.5:
                await self._assign()
        except (*ERRORS, *self._library.errors):
            return

    async def _assign(self) -> None:
        chosen = await choose_partitions(
            self._random, self._topics, self._stage.scale.partitions, self._reader
        )
        await self._reader.assign(chosen)
        self._history.reset("assign")
