"""Connections share each iteration of the loop by the time that their work takes."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from fencelog.broker.config import BrokerConfig
from fencelog.broker.network.connection import Connection
from fencelog.broker.network.fair_turns import (
    END_S,
    HEAVY_S,
    RECEIVED_BYTE_S,
    SLICE_S,
    STEADY_S,
    TURN_S,
    FairTurns,
    Share,
)
from fencelog.broker.network.replies import Reply
from fencelog.broker.network.server import SCRATCH_BYTES, Server
from fencelog.types import Buffer
from fencelog.wire.framing import frame
from tests.support.loops import LOOPS, REAL, run_on

REQUEST_S = SLICE_S / 10
"""What a request takes here, by the clock that the test moves."""
TURN_REQUESTS = round((TURN_S + SLICE_S) / REQUEST_S)
"""The most that all connections together may begin in one iteration."""
MANY = 1000
READ_BYTES = 1 << 20

on_every_loop = pytest.mark.parametrize("name", LOOPS)


class Clock:
    """A stopwatch that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Wire(asyncio.Transport):
    """A client's end: what was answered, and whether the broker reads."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 1), "sockname": ("10.0.0.1", 2)})
        self.sent = bytearray()
        self.reads = True
        self.pauses = 0
        self.closed = self.aborted = False

    def write(self, data: Buffer) -> None:
        self.sent += data

    def writelines(self, list_of_data: object) -> None:
        self.sent += b"".join(list_of_data)  # type: ignore[call-overload]

    def pause_reading(self) -> None:
        self.reads = False
        self.pauses += 1

    def resume_reading(self) -> None:
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def answers(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.sent):
            end = at + 4 + int.from_bytes(self.sent[at : at + 4], "big")
            found.append(bytes(self.sent[at + 4 : end]))
            at = end
        return found


class Stage:
    """A server without a socket, whose requests are answered with themselves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.begun: list[bytes] = []
        self.served: Counter[Connection] = Counter()
        self.server = Server(
            BrokerConfig(data_dir="memory", port=0), self._handle, stopwatch=self.clock
        )

    def _handle(self, request: bytearray, connection: Connection) -> Reply:
        self.served[connection] += 1
        self.clock.now += REQUEST_S
        self.begun.append(bytes(request))
        return [bytes(request)]

    def connect(self) -> tuple[Connection, Wire]:
        connection, wire = Connection(self.server, asyncio.get_running_loop()), Wire()
        connection.connection_made(wire)
        return connection, wire

    def arrive(self, connection: Connection, data: bytes) -> None:
        """Hand over what one read of the socket brings."""
        into = connection.get_buffer(-1)
        into[: len(data)] = data
        connection.buffer_updated(len(data))

    def end(self, connection: Connection, wire: Wire) -> None:
        """Tell that the peer sends no more; as every loop does, close if the answer is false."""
        if not connection.eof_received():
            wire.close()

    async def iterations(self, count: int) -> None:
        """Let so many pass."""
        for _ in range(count):
            await self.iteration()

    async def iteration(self) -> int:
        """Let one iteration of the loop pass; return how many requests it began."""
        before = len(self.begun)
        await asyncio.sleep(0)
        return len(self.begun) - before


def requests(who: str, count: int = MANY) -> list[bytes]:
    return [f"{who}-{number}".encode() for number in range(count)]


def framed(bodies: list[bytes]) -> bytes:
    return b"".join(b"".join(frame([body])) for body in bodies)


@on_every_loop
def test_a_pipeliner_has_one_turn_in_the_read_and_one_in_each_iteration_after(name: str) -> None:
    async def scenario() -> None:
        stage, wanted = Stage(), requests("a")
        connection, wire = stage.connect()
        stage.arrive(connection, framed(wanted))
        assert 0 < len(stage.begun) <= TURN_REQUESTS
        while connection.busy:
            assert not wire.reads
            assert 0 < await stage.iteration() <= TURN_REQUESTS
        assert wire.reads
        assert wire.pauses == 1
        assert wire.answers() == stage.begun == wanted

    run_on(name, scenario)


@on_every_loop
@pytest.mark.parametrize("count", [4, 64])
def test_many_busy_connections_share_one_turn_and_each_has_its_part(name: str, count: int) -> None:
    async def scenario() -> None:
        stage = Stage()
        pairs = [stage.connect() for _ in range(count)]
        for number, (connection, _) in enumerate(pairs):
            stage.arrive(connection, framed(requests(f"c{number}")))
        assert len(stage.begun) <= TURN_REQUESTS
        await stage.iterations(10)  # all are known as heavy
        stage.served.clear()
        while all(connection.busy for connection, _ in pairs):
            assert 0 < await stage.iteration() <= TURN_REQUESTS
            done = [stage.served[connection] for connection, _ in pairs]
            assert max(done) - min(done) <= 2 * round(SLICE_S / REQUEST_S)
        while any(connection.busy for connection, _ in pairs):
            assert 0 < await stage.iteration() <= TURN_REQUESTS
        for number, (_, wire) in enumerate(pairs):
            assert wire.answers() == requests(f"c{number}")

    run_on(name, scenario)


@on_every_loop
def test_a_small_request_is_answered_in_the_next_iteration_whatever_waits(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        for number in range(64):
            stage.arrive(stage.connect()[0], framed(requests(f"busy{number}")))
        bystander, wire = stage.connect()
        stage.arrive(bystander, framed(requests("first", 1)))
        await stage.iterations(6)  # as long as it is not known who of them is heavy
        assert wire.answers() == requests("first", 1)
        for number in range(20):
            asked = requests(f"ask{number}", 1)
            stage.arrive(bystander, framed(asked))
            await stage.iterations(2)
            assert wire.answers()[1 + number :] == asked

    run_on(name, scenario)


@on_every_loop
def test_those_who_ask_little_do_not_starve_one_who_asks_much(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        busy, _ = stage.connect()
        stage.arrive(busy, framed(requests("busy")))
        others = [stage.connect()[0] for _ in range(2 * TURN_REQUESTS)]
        while busy.busy:
            for number, other in enumerate(others):
                if not other.busy:
                    stage.arrive(other, framed(requests(f"other{number}", 1)))
            before = stage.served[busy]
            assert await stage.iteration() <= TURN_REQUESTS
            assert stage.served[busy] - before >= round(SLICE_S / REQUEST_S) or not busy.busy

    run_on(name, scenario)


@on_every_loop
def test_a_light_connection_is_heavy_for_a_while_after_a_whole_slice(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        first, _ = stage.connect()
        stage.arrive(first, framed(requests("first", TURN_REQUESTS)))
        while first.busy:
            await stage.iteration()
        await stage.iteration()
        stage.clock.now += HEAVY_S / 2
        stage.server.turns.spend(TURN_S)
        stage.arrive(first, framed(requests("heavy", 1)))
        second, _ = stage.connect()
        stage.arrive(second, framed(requests("light", 1)))
        await stage.iteration()
        await stage.iteration()
        assert stage.begun[-2:] == [b"light-0", b"heavy-0"]
        stage.clock.now += 2 * HEAVY_S
        stage.server.turns.spend(TURN_S)
        stage.arrive(first, framed(requests("light again", 1)))
        stage.arrive(second, framed(requests("light", 1)))
        await stage.iteration()
        await stage.iteration()
        assert stage.begun[-2:] == [b"light again-0", b"light-0"]

    run_on(name, scenario)


@on_every_loop
def test_one_that_asks_steadily_comes_before_thousands_that_wake_at_once(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        steady, wire = stage.connect()
        crowd = [stage.connect()[0] for _ in range(MANY)]
        for _ in range(5):
            stage.arrive(steady, framed(requests("before", 1)))
            await stage.iteration()
            stage.clock.now += STEADY_S / 2
        for connection in crowd:
            stage.arrive(connection, framed(requests("crowd", 1)))
        for number in range(5):
            asked = requests(f"ask{number}", 1)
            stage.arrive(steady, framed(asked))
            await stage.iterations(2)
            assert wire.answers()[-1:] == asked
        assert any(each.busy for each in crowd)

    run_on(name, scenario)


@on_every_loop
def test_those_who_ask_steadily_leave_others_half_of_each_iteration(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        steady = [stage.connect()[0] for _ in range(2 * TURN_REQUESTS)]
        for connection in steady:
            stage.arrive(connection, framed(requests("first", 1)))
        while any(each.busy for each in steady):
            await stage.iteration()
        silent = [stage.connect()[0] for _ in range(MANY)]
        for connection in [*steady, *silent]:
            stage.arrive(connection, framed(requests("all", 1)))
        while any(each.busy for each in silent):
            for connection in steady:
                if not connection.busy:
                    stage.arrive(connection, framed(requests("again", 1)))
            before = sum(stage.served[each] for each in silent)
            assert await stage.iteration() <= TURN_REQUESTS
            now = sum(stage.served[each] for each in silent)
            assert now - before >= TURN_REQUESTS // 3 or now == MANY

    run_on(name, scenario)


@on_every_loop
def test_of_thousands_that_their_peers_close_at_once_each_iteration_closes_a_few(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        steady, wire = stage.connect()
        pairs = [stage.connect() for _ in range(MANY)]
        for connection, other in pairs:
            stage.end(connection, other)
        while not all(other.closed for _, other in pairs):
            before = sum(other.closed for _, other in pairs)
            asked = requests(f"after{before}", 1)
            stage.arrive(steady, framed(asked))
            await stage.iteration()
            now = sum(other.closed for _, other in pairs)
            assert 0 < now - before <= round(TURN_S / END_S)
            assert wire.answers()[-1:] == asked

    run_on(name, scenario)


@on_every_loop
def test_what_came_before_the_end_is_begun_before_it_is_closed(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        connection, wire = stage.connect()
        stage.server.turns.spend(TURN_S)
        stage.arrive(connection, framed(requests("last", 1)))
        assert wire.reads  # one small request may wait without a pause, so its end is seen
        stage.end(connection, wire)
        assert not wire.closed
        while not wire.closed:
            await stage.iteration()
        assert wire.answers() == requests("last", 1)

    run_on(name, scenario)


@on_every_loop
def test_requests_before_a_malformed_frame_are_answered_in_their_turns(name: str) -> None:
    async def scenario() -> None:
        stage, wanted = Stage(), requests("a", 200)
        connection, wire = stage.connect()
        stage.arrive(connection, framed(wanted) + b"\xff" * 4)
        assert not wire.aborted
        while not wire.aborted:
            assert 0 < await stage.iteration() <= TURN_REQUESTS
        assert wire.answers() == wanted
        connection.connection_lost(None)

    run_on(name, scenario)


@on_every_loop
def test_a_lost_connection_gives_up_its_turns_and_its_memory(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        gone, _ = stage.connect()
        here, wire = stage.connect()
        stage.arrive(gone, framed(requests("gone")))
        stage.arrive(here, framed(requests("here", 30)))
        gone.connection_lost(None)
        while here.busy:
            await stage.iteration()
        await stage.iteration()
        assert wire.answers() == requests("here", 30)
        assert stage.served[gone] <= TURN_REQUESTS
        assert stage.server._queued_bytes == 0

    run_on(name, scenario)


@on_every_loop
def test_large_frames_count_by_what_is_received(name: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        connection, wire = stage.connect()
        body = bytes(SCRATCH_BYTES) * 100
        data = b"".join(frame([body]))
        taken, most = 0, 0
        while taken < len(data):
            now = 0
            while wire.reads and taken < len(data):
                size = min(len(connection.get_buffer(-1)), READ_BYTES, len(data) - taken)
                stage.arrive(connection, data[taken : taken + size])
                taken += size
                now += size
            most = max(most, now)
            await asyncio.sleep(0)
        assert stage.begun == [body]
        assert most <= TURN_S / RECEIVED_BYTE_S + READ_BYTES

    run_on(name, scenario)


@pytest.mark.parametrize("name", REAL)  # in the simulator, whatever a callback raises fails the run
def test_a_turn_that_fails_leaves_the_others_theirs(name: str) -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        turns, went = FairTurns(Clock()), []
        calls: list[Callable[[], None]] = [lambda: [].remove(1), lambda: went.append("second")]  # type: ignore[arg-type]
        turns.spend(TURN_S)
        for call in calls:
            assert Share(turns, call).yields()
        for _ in range(3):
            await asyncio.sleep(0)
        assert went == ["second"]

    run_on(name, scenario)
