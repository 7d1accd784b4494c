"""What the broker and the client rely on of an event loop: asyncio's, uvloop's, the simulator's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from tests.support.loops import HOST, LOOPS, run_on
from tests.support.node import until

PORTS = {"asyncio": ("127.0.0.1", 0), "uvloop": ("127.0.0.1", 0), "simulated": (HOST, 0)}
EARLY_S = 0.0006
"""How much before its time a timer may run: uvloop rounds to milliseconds."""

everywhere = pytest.mark.parametrize("name", LOOPS)


# -- callbacks and timers --------------------------------------------------------------------------


@everywhere
def test_callbacks_run_in_order_and_what_they_ask_for_runs_in_the_next_iteration(name: str) -> None:
    async def scenario() -> None:
        loop, seen, over = asyncio.get_running_loop(), [], asyncio.Event()

        def first() -> None:
            loop.call_soon(seen.append, "asked for by the first")
            loop.call_soon(over.set)
            seen.append("first")

        loop.call_soon(first)
        loop.call_soon(seen.append, "second")
        assert seen == []
        await over.wait()
        assert seen == ["first", "second", "asked for by the first"]

    run_on(name, scenario)


@everywhere
@pytest.mark.parametrize("delay_s", [-1.0, 0.0, 1e-9, 0.0001, 0.0004, 0.0006, 0.001, 0.0015, 0.02])
def test_a_timer_runs_once_at_its_time_and_not_within_the_call(name: str, delay_s: float) -> None:
    async def scenario() -> None:
        loop, ran_at = asyncio.get_running_loop(), []
        over = asyncio.Event()

        def ring() -> None:
            ran_at.append(loop.time())
            over.set()

        due = loop.time() + delay_s
        handle = loop.call_at(due, ring)
        assert ran_at == []
        await over.wait()
        await asyncio.sleep(0.003)
        assert len(ran_at) == 1
        assert ran_at[0] >= due - EARLY_S
        handle.cancel()  # too late: nothing happens

    run_on(name, scenario)


@everywhere
@pytest.mark.parametrize("delay_s", [0.0, 0.0004, 0.001, 0.01])
def test_a_cancelled_timer_never_runs(name: str, delay_s: float) -> None:
    async def scenario() -> None:
        loop, ran = asyncio.get_running_loop(), []
        handle = loop.call_later(delay_s, ran.append, "cancelled")
        loop.call_later(delay_s, ran.append, "other")
        handle.cancel()
        handle.cancel()
        await asyncio.sleep(delay_s + 0.003)
        assert ran == ["other"]

    run_on(name, scenario)


@everywhere
def test_a_timer_may_be_cancelled_by_what_runs_before_it_in_the_same_iteration(name: str) -> None:
    async def scenario() -> None:
        loop, ran = asyncio.get_running_loop(), []
        handles: list[asyncio.Handle] = []

        def cancel() -> None:
            handles[0].cancel()

        loop.call_later(0.01, cancel)
        handles.append(loop.call_later(0.0101, ran.append, "cancelled"))
        await asyncio.sleep(0.03)
        assert ran == []

    run_on(name, scenario)


@everywhere
def test_timers_run_in_the_order_of_their_times(name: str) -> None:
    async def scenario() -> None:
        loop, ran = asyncio.get_running_loop(), []
        for delay_s in (0.012, 0.004, 0.008):
            loop.call_later(delay_s, ran.append, delay_s)
        await asyncio.sleep(0.03)
        assert ran == [0.004, 0.008, 0.012]

    run_on(name, scenario)


@everywhere
def test_the_clock_does_not_go_back_and_moves_on_while_callbacks_run(name: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        began = latest = loop.time()
        while latest < began + 0.005:
            await asyncio.sleep(0)
            now = loop.time()
            assert now >= latest
            latest = now

    run_on(name, scenario)


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_what_a_callback_raises_goes_to_the_handler_and_the_next_one_runs(name: str) -> None:
    async def scenario() -> None:
        loop, ran, errors = asyncio.get_running_loop(), [], []
        loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))
        loop.call_soon(partial(int, "x"))
        loop.call_soon(ran.append, "next")
        loop.call_later(0.001, partial(int, "y"))
        await asyncio.sleep(0.01)
        assert ran == ["next"]
        assert [type(error) for error in errors] == [ValueError, ValueError]

    run_on(name, scenario)


@everywhere
def test_a_task_begins_in_the_next_iteration_and_a_future_wakes_it_in_another(name: str) -> None:
    async def scenario() -> None:
        loop, seen = asyncio.get_running_loop(), []
        future = loop.create_future()

        async def work() -> None:
            seen.append("begun")
            await future
            seen.append("woken")

        task = loop.create_task(work())
        assert seen == []
        await asyncio.sleep(0)
        assert seen == ["begun"]
        future.set_result(None)
        assert seen == ["begun"]
        await task
        assert seen == ["begun", "woken"]

    run_on(name, scenario)


@everywhere
def test_what_an_executor_returns_or_raises_is_its_futures(name: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, int, "5") == 5
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(None, int, "x")

    run_on(name, scenario)


# -- transports ------------------------------------------------------------------------------------


class Receiver(asyncio.BufferedProtocol):
    """Takes a few bytes at a time into a buffer of its own, as a connection of the broker does."""

    def __init__(self, size: int, taken: Callable[["Receiver"], None]) -> None:
        self._buffer = bytearray(size)
        self._taken = taken
        self.received = bytearray()
        self.events: list[str] = []
        self.keeps_open = False
        self.transport: asyncio.Transport
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self._taken(self)

    def pause_writing(self) -> None:
        self.events.append("paused")

    def resume_writing(self) -> None:
        self.events.append("resumed")

    def eof_received(self) -> bool:
        self.events.append("ended")
        return self.keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@asynccontextmanager
async def pair(
    name: str, size: int, taken: Callable[[Receiver], None] = lambda _receiver: None
) -> AsyncIterator[tuple[Receiver, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server's side of a connection, and the client's streams."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[Receiver] = loop.create_future()

    def accept() -> Receiver:
        accepted.set_result(Receiver(size, taken))
        return accepted.result()

    server = await loop.create_server(accept, *PORTS[name])
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    receiver = await accepted
    try:
        yield receiver, reader, writer
    finally:
        writer.close()
        receiver.transport.abort()
        server.close()
        await receiver.lost


@everywhere
def test_a_paused_transport_delivers_nothing_until_it_is_resumed(name: str) -> None:
    async def scenario() -> None:
        def pause(receiver: Receiver) -> None:
            receiver.transport.pause_reading()

        sent = bytes(range(250))
        async with pair(name, 100, pause) as (receiver, _, writer):
            writer.write(sent)
            for expected in (100, 200, 250):
                await until(lambda n=expected: len(receiver.received) >= n, "bytes arrive")
                await asyncio.sleep(0.01)
                assert len(receiver.received) == expected
                receiver.transport.resume_reading()
            assert receiver.received == sent

    run_on(name, scenario)


@everywhere
def test_pausing_and_resuming_within_one_callback_leaves_the_order_of_bytes(name: str) -> None:
    async def scenario() -> None:
        def hesitate(receiver: Receiver) -> None:
            receiver.transport.pause_reading()
            receiver.transport.resume_reading()

        sent = bytes(number % 251 for number in range(50_000))
        async with pair(name, 100, hesitate) as (receiver, _, writer):
            writer.write(sent)
            await until(lambda: len(receiver.received) >= len(sent), "all bytes arrive")
            assert receiver.received == sent

    run_on(name, scenario)


@everywhere
def test_a_full_write_buffer_pauses_the_protocol_until_the_peer_has_read(name: str) -> None:
    async def scenario() -> None:
        async with pair(name, 100) as (receiver, reader, _):
            receiver.transport.set_write_buffer_limits(high=1 << 20)
            sent = 0
            while receiver.events != ["paused"]:
                receiver.transport.write(bytes(1 << 18))
                sent += 1 << 18
                await asyncio.sleep(0)
            await reader.readexactly(sent)
            await until(lambda: receiver.events == ["paused", "resumed"], "writing is resumed")

    run_on(name, scenario)


@everywhere
def test_what_was_written_arrives_before_the_end_of_a_closed_transport(name: str) -> None:
    async def scenario() -> None:
        async with pair(name, 100) as (receiver, reader, _):
            receiver.transport.write(b"one ")
            receiver.transport.writelines([b"two ", memoryview(b"three"), bytearray(b" four")])
            receiver.transport.close()
            receiver.transport.write(b"never")
            assert await reader.read() == b"one two three four"
            assert await receiver.lost is None

    run_on(name, scenario)


@everywhere
def test_a_protocol_may_put_off_the_close_after_its_peer_has_ended(name: str) -> None:
    async def scenario() -> None:
        async with pair(name, 100) as (receiver, reader, writer):
            receiver.keeps_open = True
            writer.write(b"last")
            writer.write_eof()
            await until(lambda: receiver.events == ["ended"], "its end is seen")
            await asyncio.sleep(0.01)
            assert not receiver.lost.done()
            assert receiver.received == b"last"
            receiver.transport.write(b"answer")
            receiver.transport.close()
            assert await reader.read() == b"answer"
            assert await receiver.lost is None
            assert receiver.events == ["ended"]

    run_on(name, scenario)


@everywhere
def test_an_aborted_transport_is_lost_in_a_later_iteration_and_so_is_its_peer(name: str) -> None:
    async def scenario() -> None:
        async with pair(name, 100) as (receiver, reader, _):
            receiver.transport.abort()
            assert not receiver.lost.done()
            assert await receiver.lost is None
            with suppress(ConnectionResetError):
                assert await reader.read() == b""

    run_on(name, scenario)
