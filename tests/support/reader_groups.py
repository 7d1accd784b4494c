"""Readers of groups for tests: events written and read with asyncio, and readers that crash."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import fencelog.aio
from fencelog.client.model import Record
from fencelog.client.streams.group_reader import GroupReader
from fencelog.client.streams.member import Member
from fencelog.client.streams.reader_group import ReaderGroup
from fencelog.errors import FencelogError
from fencelog.testing import LocalBroker

DEADLINE_S = 20.0
LEASE_S = 10.0
"""Long, for a busy machine: a crash breaks the connections, which ends claims at once."""
Scenario = Callable[[fencelog.aio.Client, ReaderGroup], Awaitable[None]]


def run(broker: LocalBroker, scenario: Scenario, segments: int = 4) -> None:
    """Run a scenario with the group ``g`` of the stream ``s``, which is empty."""

    async def main() -> None:
        async with await fencelog.aio.connect(broker.bootstrap) as log:
            await log.create_stream("s", segments)
            await scenario(log, log.reader_group("g", "s"))

    asyncio.run(main())


def run_with_events(broker: LocalBroker, scenario: Scenario) -> None:
    """The same, with ten events of the key ``k`` in one segment, and a topic ``out``."""

    async def with_events(log: fencelog.aio.Client, group: ReaderGroup) -> None:
        await log.create_topic("out")
        await write(log, "s", ["k"], range(10))
        await scenario(log, group)

    run(broker, with_events, segments=1)


async def write(
    log: fencelog.aio.Client, stream: str, keys: Sequence[str], numbers: Iterable[int]
) -> None:
    """Write ``KEY:NUMBER`` for each key and number."""
    async with await log.producer() as producer:
        for number in numbers:
            for key in keys:
                await producer.send(stream, f"{key}:{number}".encode(), key=key.encode())


def texts(events: Iterable[Record]) -> list[str]:
    """What ``write`` has written."""
    return [(each.value or b"").decode() for each in events]


async def next_events(reader: GroupReader, most: int = 1_000) -> list[str]:
    """What the next batch has. Raises TimeoutError."""
    batch = await asyncio.wait_for(reader.next_batch(most), DEADLINE_S)
    assert batch is not None
    return texts(batch.events)


def member_of(reader: GroupReader) -> Member:
    """The member that a reader is, which has joined."""
    assert reader._member is not None
    return reader._member


def expected(keys: Sequence[str], numbers: Iterable[int]) -> set[str]:
    """What ``write`` writes."""
    return {f"{key}:{number}" for number in numbers for key in keys}


def in_order(found: Iterable[str]) -> bool:
    """Whether the numbers of each key grow."""
    last: dict[str, int] = {}
    for text in found:
        key, number = text.split(":")
        if last.get(key, -1) >= int(number):
            return False
        last[key] = int(number)
    return True


class Reading:
    """A reader that reads in a task of its own, and what it has read."""

    def __init__(self, reader: GroupReader, most: int = 1_000) -> None:
        self.reader = reader
        self.found: list[Record] = []
        self.error: FencelogError | None = None
        self.is_finished = False
        self._most = most
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> "Reading":
        """Join, and read."""
        await self.reader.__aenter__()
        self._task = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        try:
            async for batch in self.reader.batches(self._most):
                self.found += batch.events
        except FencelogError as error:
            self.error = error
        else:
            self.is_finished = True

    @property
    def segments(self) -> set[int]:
        """Those that it has read from."""
        return {each.partition for each in self.found}

    async def stop(self, *, processed: bool = True) -> None:
        """Go offline."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.reader.close(processed=processed)

    async def crash(self) -> None:
        """End as the process ends that is killed: nothing is committed, its connections break."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        await crash(self.reader)


async def crash(reader: GroupReader) -> None:
    """Break all connections of a reader, and let it do nothing any more."""
    member, reader._member = reader._member, None
    assert member is not None
    await member._end_tasks()
    segments = {*member.segments.values(), *member._leaving}
    for each in segments:
        each._task.cancel()
        await asyncio.wait([each._task])
        if each._producer is not None:
            await each._producer[0].close()
    for claim in (member._claim, *(each._claim for each in segments if each._claim)):
        task, claim._task = claim._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        claim._disconnect("crashed")
        await claim.connections.close()
    await member._cluster.close()
    await member._watching.close()


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Wait for a condition. Raises TimeoutError with what was awaited."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = condition()
                if not isinstance(found, bool):
                    found = await found
                if found:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {DEADLINE_S:g} s: {what}") from None
