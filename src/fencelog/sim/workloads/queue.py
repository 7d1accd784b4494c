"""Jepsen's queue workload: clients send unique values to partitions and poll partitions.

An operation is one to four sends and polls, plain or in a transaction, some of which are aborted on
purpose at some step. Full partitions give way to new ones. Now and then a client assigns other
partitions, or meets a successor under its own transactional id.
"""

import asyncio
from dataclasses import dataclass

from fencelog.check.history import Event, Step, key_of
from fencelog.sim.workload import Stage
from fencelog.sim.workloads.library import Library, OpenLibrary, Rows, Writer
from fencelog.sim.workloads.own import ERRORS, OwnLibrary, open_cluster
from fencelog.sim.workloads.settling import (
    RETRY_S,
    come_to_rest,
    end_transactions,
    insist,
    read_all,
)
from fencelog.sim.workloads.topics import Generations
from fencelog.types import TopicPartition

STEPS_MAX = 4
SEND_SHARE = 0.6
TRANSACTION_SHARE = 0.6
ABORT_SHARE = 0.1
"""Of the steps of a transaction, after each of which it may be aborted."""
ASSIGN_SHARE = 1 / 32
OLD_KEY_SHARE = 1 / 3
"""Of the partitions assigned, those that may be of an earlier topic."""
OLD_SEND_SHARE = 1 / 20
SUCCESSOR_SHARE = 1 / 50


class _ChosenAbortError(Exception):
    """The workload wants this transaction aborted."""


@dataclass(frozen=True)
class _Send:
    partition: TopicPartition
    values: list[str]

    def steps(self, offsets: list[int] | None = None) -> list[Step]:
        key = key_of(*self.partition)
        if offsets is None:
            return [["send", key, value] for value in self.values]
        return [
            ["send", key, value, offset] for value, offset in zip(self.values, offsets, strict=True)
        ]

    def unknown(self) -> list[Step]:
        return [[*step, None] for step in self.steps()]


_Polled = dict[TopicPartition, Rows]
_Plan = list[_Send | None]
"""Sends, and None for each poll."""


class Queue:
    """The workload, on one client library."""

    def __init__(self, name: str, library: OpenLibrary) -> None:
        """``name`` is also the prefix of its topics and transactional ids."""
        self.name = name
        self._library = library

    async def prepare(self, stage: Stage) -> None:
        """Create the first topic."""
        cluster = open_cluster(stage)
        await insist(stage, "first topic", Generations(cluster, self.name, stage.scale).first)
        await cluster.close()

    async def client(self, stage: Stage, index: int) -> None:
        """Do operations until told to stop."""
        cluster = open_cluster(stage)
        library = self._library(stage)
        topics = Generations(cluster, self.name, stage.scale)
        client = _Client(stage, library, topics, self._transactional_id(index))
        try:
            await client.play()
        finally:
            await client.close()
            await library.close()
            await cluster.close()

    async def settle(self, stage: Stage) -> None:
        """Fence all clients and read everything."""
        cluster = open_cluster(stage)
        topics = Generations(cluster, self.name, stage.scale)
        try:
            identifiers = [self._transactional_id(index) for index in range(stage.scale.clients)]
            await end_transactions(stage, cluster, identifiers)
            await insist(stage, "list of topics", topics.find)
            ends = await come_to_rest(stage, cluster, topics.partitions())
            await read_all(stage, cluster, ends)
        finally:
            await cluster.close()

    def judge(self, events: list[Event]) -> list[str]:
        """Nothing: the checker's anomalies are this workload's claim."""
        return []

    def _transactional_id(self, index: int) -> str:
        return f"{self.name}-{index}"


class _Client:
    """One client from its start to its end or death."""

    def __init__(
        self, stage: Stage, library: Library, topics: Generations, transactional_id: str
    ) -> None:
        self._stage = stage
        self._random = stage.random
        self._history = stage.history
        self._library = library
        self._reader = library.reader
        self._topics = topics
        self._transactional_id = transactional_id
        self._writers: dict[bool, Writer] = {}
        self._values = 0

    async def play(self) -> None:
        """Go on from the newest topic."""
        while not self._stage.stopping:
            try:
                await self._topics.find()
                await self._assign()
                break
            except (*ERRORS, *self._library.errors):
                await asyncio.sleep(RETRY_S)
        while not self._stage.stopping:
            if not await self._operation():
                # What failed at once would fail at once again, and time would stand still.
                await asyncio.sleep(RETRY_S)
            await self._stage.pause()

    async def close(self) -> None:
        """Close the producers."""
        for transactional in list(self._writers):
            await self._drop(transactional)

    async def _operation(self) -> bool:
        """Do one operation; whether all went well."""
        transactional = self._random.random() < TRANSACTION_SHARE
        try:
            if self._random.random() < ASSIGN_SHARE:
                await self._assign()
            if transactional not in self._writers:
                identifier = self._transactional_id if transactional else None
                self._writers[transactional] = await self._library.writer(identifier)
        except (*ERRORS, *self._library.errors):
            return False
        if transactional:
            return await self._in_transaction(self._plan())
        return await self._plainly(self._plan())

    def _plan(self) -> _Plan:
        return [
            self._send() if self._random.random() < SEND_SHARE else None
            for _ in range(self._random.randint(1, STEPS_MAX))
        ]

    def _send(self) -> _Send:
        generation = self._topics.current
        if self._random.random() < OLD_SEND_SHARE:
            generation = self._random.randint(0, generation)
        number = self._random.randrange(self._stage.scale.partitions)
        count = self._random.randint(1, self._stage.scale.records_per_send)
        first, self._values = self._values, self._values + count
        process = self._history.process
        values = [f"{process}.{first + index}" for index in range(count)]
        return _Send(self._topics.partition(generation, number), values)

    # --- operations

    async def _in_transaction(self, plan: _Plan) -> bool:
        writer = self._writers[True]
        invocation = self._history.invoke(_invoked(plan), transactional=True)
        before = dict(self._reader.positions)
        polled: list[_Polled] = []
        aborting: tuple[type[Exception], ...] = (_ChosenAbortError, *self._library.errors)
        try:
            await writer.begin()
            for step in plan:
                await self._perform(step, writer, polled)
                self._maybe_abort()
                if self._random.random() < SUCCESSOR_SHARE:
                    self._writers[True] = await self._library.writer(self._transactional_id)
            offsets = await writer.flush()
        except aborting as error:
            chosen = isinstance(error, _ChosenAbortError)
            # No commit was attempted, so whatever becomes of the abort nothing will be visible.
            await self._abort(writer, keep=chosen)
            self._reader.rewind(before)
            invocation.failed(_unknown(plan), _name(error))
            return chosen
        try:
            await writer.commit()
        except self._library.errors as error:
            await self._retire(writer)
            self._reader.rewind(before)
            invocation.indeterminate(_unknown(plan), _name(error))
            return False
        invocation.ok(_completed(plan, offsets, polled))
        if self._writers.get(True) is not writer:
            await writer.close()
        await self._follow(plan, offsets)
        return True

    def _maybe_abort(self) -> None:
        if self._random.random() < ABORT_SHARE:
            raise _ChosenAbortError

    async def _plainly(self, plan: _Plan) -> bool:
        writer = self._writers[False]
        invocation = self._history.invoke(_invoked(plan))
        before = dict(self._reader.positions)
        polled: list[_Polled] = []
        try:
            for step in plan:
                if step is None:
                    await self._poll_or_nothing(polled)
                else:
                    await self._perform(step, writer, polled)
            offsets = await writer.flush()
        except self._library.errors as error:
            await self._drop(transactional=False)
            self._reader.rewind(before)
            invocation.indeterminate(_unknown(plan), _name(error))
            return False
        invocation.ok(_completed(plan, offsets, polled))
        await self._follow(plan, offsets)
        return True

    async def _perform(self, step: _Send | None, writer: Writer, polled: list[_Polled]) -> None:
        if step is None:
            polled.append(await self._reader.poll())
        else:
            await writer.send(step.partition, step.values)

    async def _poll_or_nothing(self, polled: list[_Polled]) -> None:
        """Outside a transaction a poll that fails says nothing of the sends around it."""
        try:
            polled.append(await self._reader.poll())
        except self._library.errors:
            polled.append({})

    # --- producers

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

    async def _drop(self, transactional: bool) -> None:
        await self._writers.pop(transactional).close()

    # --- keys

    async def _follow(self, plan: _Plan, offsets: list[list[int]]) -> None:
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
        """Read some partitions: from the beginning, from the end, or from where this one stood."""
        chosen: dict[TopicPartition, int] = {}
        for number in range(self._stage.scale.partitions):
            if chosen and self._random.random() < 0.5:
                continue
            generation = self._topics.current
            if self._random.random() < OLD_KEY_SHARE:
                generation = self._random.randint(0, generation)
            partition = self._topics.partition(generation, number)
            position = self._reader.positions.get(partition, 0)
            how = self._random.randrange(3)
            if how == 0:
                position = 0
            elif how == 1:
                position = await self._reader.end(partition)
            chosen[partition] = position
        await self._reader.assign(chosen)
        self._history.reset("assign")


def _invoked(plan: _Plan) -> list[Step]:
    """What an operation is about to do."""
    steps: list[Step] = []
    for step in plan:
        steps.extend([["poll", {}]] if step is None else step.steps())
    return steps


def _unknown(plan: _Plan) -> list[Step]:
    """The sends of an operation that did not succeed; its polls count as never made."""
    return [step for send in plan if send is not None for step in send.unknown()]


def _completed(plan: _Plan, offsets: list[list[int]], polled: list[_Polled]) -> list[Step]:
    """What an operation has done."""
    steps: list[Step] = []
    found, seen = iter(offsets), iter(polled)
    for step in plan:
        if step is None:
            shown = {
                key_of(*each): [list(row) for row in rows] for each, rows in next(seen).items()
            }
            steps.append(["poll", shown])
        else:
            steps.extend(step.steps(next(found)))
    return steps


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def queue() -> Queue:
    """The workload on fencelog's own client."""
    return Queue("queue", OwnLibrary)
