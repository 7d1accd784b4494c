"""Streams over the simulated network: order, cuts, resets, loss, and dead ends."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from fencelog_sim.world.loop import Process, SimLoop, current_process
from fencelog_sim.world.network import Network, Weather

SERVER = ("10.0.0.1", 9092)
CLIENT_HOST = "10.0.1.1"


class Stage:
    """An echo server and a client's host."""

    def __init__(self, weather: Weather | None = None) -> None:
        self.loop = SimLoop("1")
        self.network = Network(self.loop, Random(1), weather or Weather(split=0.5))
        self.loop.wires = self.network
        self.server = self.loop.process("server", SERVER[0])
        self.client = self.loop.process("client", CLIENT_HOST)
        self.received = bytearray()
        self.ends: list[str] = []

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            self.loop.start(self.server, self._serve())
            await asyncio.sleep(0.01)
            await story()

        self.loop.run(main(), limit_s=1000)
        assert self.loop.errors == []

    async def _serve(self) -> None:
        await asyncio.start_server(self._echo, *SERVER)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                self.received += data
                writer.write(data)
            self.ends.append("end")
        except ConnectionResetError:
            self.ends.append("reset")
        writer.close()

    def run_client(self, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        async def main() -> None:
            await work()

        return self.loop.start(self.client, main())


def end(stage: Stage, process: Process, *, silently: bool = False) -> None:
    stage.loop.kill(process)
    stage.network.process_ended(process, silently=silently)


def test_bytes_arrive_whole_and_in_order_whatever_the_segments() -> None:
    stage, sent, echoed = Stage(Weather(split=0.9, retransmit=0.3)), bytearray(), bytearray()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*SERVER)
        for number in range(200):
            piece = b"%d," % number
            sent.extend(piece)
            writer.write(piece)
        writer.write_eof()
        echoed.extend(await reader.read())
        writer.close()

    async def story() -> None:
        await stage.run_client(client)

    stage.play(story)
    assert bytes(echoed) == bytes(stage.received) == bytes(sent)
    assert stage.ends == ["end"]


def test_a_cut_holds_one_direction_back_until_it_heals() -> None:
    stage, heard = Stage(), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*SERVER)
        stage.network.cut(SERVER[0], CLIENT_HOST)
        writer.write(b"hello")
        heard.append(await reader.readexactly(5))
        heard.append(stage.loop.time())
        writer.close()

    async def story() -> None:
        task = stage.run_client(client)
        await asyncio.sleep(5)
        assert bytes(stage.received) == b"hello"
        assert heard == []
        stage.network.heal()
        await task

    stage.play(story)
    assert heard[0] == b"hello"
    assert heard[1] > 5


def test_a_swallowed_connection_gives_neither_side_an_error() -> None:
    stage, heard = Stage(), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*SERVER)
        (mine,) = stage.network.connections(CLIENT_HOST)
        stage.network.swallow(mine)
        writer.write(b"hello")
        heard.append(await reader.read())

    async def story() -> None:
        stage.run_client(client)
        await asyncio.sleep(100)

    stage.play(story)
    assert heard == []
    assert stage.received == b""
    assert stage.ends == []


def test_a_killed_peer_resets_its_connections_and_refuses_new_ones() -> None:
    stage, outcomes = Stage(), []

    async def client() -> None:
        reader, _ = await asyncio.open_connection(*SERVER)
        try:
            await reader.read()
        except ConnectionResetError:
            outcomes.append("reset")
        try:
            await asyncio.open_connection(*SERVER)
        except ConnectionRefusedError:
            outcomes.append("refused")

    async def story() -> None:
        task = stage.run_client(client)
        await asyncio.sleep(1)
        end(stage, stage.server)
        await task

    stage.play(story)
    assert outcomes == ["reset", "refused"]


def test_a_host_without_power_does_not_answer_until_it_is_back() -> None:
    stage, outcomes = Stage(), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*SERVER)
        await asyncio.sleep(2)
        writer.write(b"anyone?")
        try:
            await reader.read()
        except ConnectionResetError:
            outcomes.append(stage.loop.time())

    async def story() -> None:
        task = stage.run_client(client)
        await asyncio.sleep(1)
        end(stage, stage.server, silently=True)
        stage.network.power(SERVER[0], on=False)
        await asyncio.sleep(9)
        assert outcomes == []
        stage.network.power(SERVER[0], on=True)
        await task

    stage.play(story)
    assert outcomes == [pytest.approx(10, abs=0.5)]


def test_nothing_of_a_killed_process_is_sent() -> None:
    stage = Stage()

    async def client() -> None:
        _, writer = await asyncio.open_connection(*SERVER)

        def dies_in_mid_step() -> None:
            writer.write(b"before")
            end(stage, stage.client)
            writer.write(b"after")

        dies_in_mid_step()

    async def story() -> None:
        stage.run_client(client)
        await asyncio.sleep(5)

    stage.play(story)
    assert bytes(stage.received) == b"before"
    assert stage.ends == ["reset"]


def test_a_paused_process_gets_no_resume_writing() -> None:
    stage, told = Stage(), []

    class Writer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(bytes(200_000))

        def resume_writing(self) -> None:
            told.append((stage.loop.time(), current_process.get()))

    async def client() -> None:
        await stage.loop.create_connection(Writer, *SERVER)

    async def story() -> None:
        await stage.run_client(client)
        stage.loop.pause(stage.client)
        await asyncio.sleep(5)
        assert len(stage.received) == 200_000
        assert told == []
        stage.loop.resume(stage.client)
        await asyncio.sleep(1)

    stage.play(story)
    assert told == [(pytest.approx(5, abs=0.1), stage.client)]


def test_a_writer_is_paused_while_its_peer_does_not_read() -> None:
    stage, states = Stage(), []

    async def client() -> None:
        _, writer = await asyncio.open_connection(*SERVER)
        (theirs,) = stage.network.connections(SERVER[0])
        theirs.pause_reading()
        writer.write(bytes(200_000))
        drained = asyncio.ensure_future(writer.drain())
        await asyncio.sleep(2)
        states.append(drained.done())
        theirs.resume_reading()
        await drained
        states.append(True)
        writer.close()

    async def story() -> None:
        await stage.run_client(client)

    stage.play(story)
    assert states == [False, True]
