"""What a task of the asyncio client leaves that is cancelled at any of its requests: nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import fencelog.aio
from fencelog.rpc.connection import Connection
from fencelog.testing import LocalBroker
from tests.support.reader_groups import next_events, until, write

REQUESTS_MAX = 100
"""More than any of these sends."""
Begin = Callable[[str], Awaitable[Coroutine[Any, Any, Any]]]
"""Makes ready what is cancelled, and returns it. It gets the address of the broker."""


async def joining(address: str) -> Coroutine[Any, Any, Any]:
    async def read() -> None:
        async with (
            await fencelog.aio.connect(address) as log,
            log.reader_group("g", "s").reader("r", commit_interval_s=None) as reader,
        ):
            await reader.next_batch(1)

    return read()


async def leaving(address: str) -> Coroutine[Any, Any, Any]:
    log = await fencelog.aio.connect(address)
    reader = log.reader_group("g", "s").reader("r", commit_interval_s=None)
    await reader.__aenter__()
    assert await next_events(reader, 1)

    return _ending(log, reader.close)


async def _ending(log: fencelog.aio.Client, end: Callable[[], Awaitable[None]]) -> None:
    async with log:
        await end()


async def owning(address: str) -> Coroutine[Any, Any, Any]:
    async def own() -> None:
        async with (
            await fencelog.aio.connect(address) as log,
            log.own(["t/0"]) as claim,
            await claim.producer() as producer,
        ):
            await producer.send("t", b"x")

    return own()


async def releasing(address: str) -> Coroutine[Any, Any, Any]:
    log = await fencelog.aio.connect(address)
    claim = await log.own(["t/0"], group="owners", transactional_id="x").__aenter__()
    producer = await claim.producer()
    await producer.send("t", b"x")
    await producer.flush()

    return _ending(log, claim.release)


async def committing(address: str) -> Coroutine[Any, Any, Any]:
    async def commit() -> None:
        async with (
            await fencelog.aio.connect(address) as log,
            await log.producer(transactional_id="y") as producer,
        ):
            await producer.begin()
            await producer.send("t", b"x")
            await producer.commit()

    return commit()


@pytest.mark.slow
@pytest.mark.parametrize("begin", [joining, leaving, owning, releasing, committing])
def test_a_task_that_is_cancelled_at_any_request_leaves_no_connection(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    # R9, O10
    start, made = Connection.start, Connection.connection_made
    opened: list[Connection] = []
    victim: asyncio.Task[Any] | None = None
    left = 0

    def counted(self: Connection, *args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and victim is not None:
            victim.cancel()
        return start(self, *args)

    def noted(self: Connection, transport: asyncio.BaseTransport) -> None:
        opened.append(self)
        made(self, transport)

    async def main() -> None:
        nonlocal victim, left
        address = fencelog_broker.bootstrap
        async with await fencelog.aio.connect(address) as log:
            await log.create_stream("s", 1)
            await log.create_topic("t")
            await write(log, "s", ["k"], range(5))
            async with log.reader_group("g", "s").reader("first"):
                pass
        monkeypatch.setattr(Connection, "start", counted)
        monkeypatch.setattr(Connection, "connection_made", noted)
        for number in range(1, REQUESTS_MAX):
            work = await begin(address)
            victim, left = asyncio.create_task(work), number
            await asyncio.wait([victim], timeout=20)
            assert victim.done(), f"it goes on after it was cancelled at request {number}"
            ended, victim = victim, None
            assert opened
            # One that was being opened is closed by a task of its own.
            await until(
                lambda: all(each.closed for each in opened),
                f"all are closed after it was cancelled at request {number}",
            )
            opened.clear()
            if not ended.cancelled():
                ended.result()
                break
        assert 1 < number < REQUESTS_MAX - 1, number

    asyncio.run(main())
