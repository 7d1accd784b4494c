"""Limits of connections and requests: no client disturbs another."""

import asyncio
import logging
import socket
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from fencelog.broker.network import server as server_module
from fencelog.node import Node
from fencelog.types import Instant
from fencelog.wire import hot
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.node import Peer, World, batch, until, visible


async def is_served(node: Node) -> bool:
    async with Peer.of(node) as peer:
        answer = await peer.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
        return answer.error_code == 0


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(10):
        try:
            return await reader.read(1) == b""
        except ConnectionResetError:
            return True


async def test_of_hundreds_of_new_connections_each_iteration_accepts_a_few(world: World) -> None:
    many = 10 * server_module.ACCEPTS_MAX
    async with world.node() as node:
        with ExitStack() as stack:
            for _ in range(many):  # the kernel takes them, while the loop stands still
                stack.enter_context(socket.create_connection(node.address, timeout=10))
            accepted = most = 0
            while accepted < many:
                await asyncio.sleep(0)
                most = max(most, node.server._accepted - accepted)
                accepted = node.server._accepted
            if isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
                assert most <= server_module.ACCEPTS_MAX + 1
        await until(lambda: not node.server._connections, "all are gone")


async def test_a_connection_beyond_the_limit_is_refused_and_a_place_is_given_back(
    world: World,
) -> None:
    async with world.node(connections_max=2) as node:
        async with Peer.of(node) as one, Peer.of(node) as two:
            await one.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
            await two.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
            reader, writer = await asyncio.open_connection(*node.address)
            assert await is_closed(reader)
            writer.close()
        await until(lambda: not node.server._connections, "both are gone")
        assert await is_served(node)


async def test_an_announced_frame_takes_memory_only_as_its_bytes_arrive(world: World) -> None:
    async with world.node() as node:
        _, writer = await asyncio.open_connection(*node.address)
        writer.write((90 * 1024 * 1024).to_bytes(4, "big") + b"x")
        await until(lambda: node.server._queued_bytes > 0, "the frame has begun")
        assert node.server._queued_bytes <= 2 * 1024 * 1024
        writer.close()
        await until(lambda: node.server._queued_bytes == 0, "its budget is given back")
        assert await is_served(node)


async def test_announcements_of_many_take_no_more_than_the_budget(world: World) -> None:
    async with world.node(queued_bytes_max=8 << 20) as node:
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection(*node.address)
            writer.write((90 << 20).to_bytes(4, "big") + bytes(5_000))
            writers.append(writer)
        await until(
            lambda: sum(c.frame_begun is not None for c in node.server._connections) == 200,
            "all have begun",
        )
        # The budget, the one that passed it, and little for each of the others.
        assert node.server._queued_bytes < (8 << 20) + (2 << 20) + 200 * 16 * 1024
        assert await is_served(node)
        for writer in writers:
            writer.close()
        await until(lambda: not node.server._connections, "all are gone")
        assert (node.server._queued_bytes, node.server._growing) == (0, {})


async def test_of_many_that_wait_for_memory_one_goes_on_in_an_iteration(world: World) -> None:
    async with world.node(queued_bytes_max=64 << 20) as node, AsyncExitStack() as stack:
        server = node.server
        server.reserve(65 << 20)
        for _ in range(40):
            _, writer = await asyncio.open_connection(*node.address)
            stack.callback(writer.close)
            writer.write((90 << 20).to_bytes(4, "big") + bytes(64 << 10))
        await until(lambda: len(server._held) == 39, "all but the first wait")
        held = dict(server._held)
        server.release(65 << 20)
        gone_on = []
        while server._held:
            before = len(server._held)
            await asyncio.sleep(0)
            gone_on.append(before - len(server._held))
        assert max(gone_on) == 1
        assert not any(each.is_backpressured for each in held)
        assert len(server._growing) == 40, "their frames are not complete"
    await until(lambda: not server._connections, "all are gone")
    assert (server._queued_bytes, server._growing, server._held) == (0, {}, {})


async def test_large_frames_that_do_not_fit_the_budget_come_in_one_after_the_other(
    world: World,
) -> None:
    async with world.node(queued_bytes_max=1 << 20) as node, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer.of(node)) for _ in range(5)]
        await peers[0].create_topic("t", max_message_bytes="9000000")
        value, most = "x" * 4_000_000, 0
        for peer in peers:
            peer.send_produce("t", batch(value))
        answers = [asyncio.create_task(peer.produced()) for peer in peers]
        while not all(each.done() for each in answers):
            most = max(most, node.server._queued_bytes)
            await asyncio.sleep(0)
        assert sorted(each.result().base_offset for each in answers) == list(range(5))
        assert most < 5 * 4_000_000
        assert (node.server._queued_bytes, node.server._growing) == (0, {})


async def test_a_large_frame_that_never_ends_does_not_keep_the_others_out(world: World) -> None:
    async with world.node(
        queued_bytes_max=100_000, frame_timeout_s=0.3, sweep_interval_s=0.01
    ) as node:
        reader, stuck = await asyncio.open_connection(*node.address)
        stuck.write((90 << 20).to_bytes(4, "big") + bytes(3 << 20))
        await until(lambda: len(node.server._growing) == 1, "it has more than it got at once")
        async with Peer.of(node) as peer:
            await peer.create_topic("t", max_message_bytes="9000000")
            peer.send_produce("t", batch("x" * 3_000_000))
            assert await is_closed(reader)
            assert (await peer.produced()).error == 0
        stuck.close()


def test_a_frame_that_is_sent_too_slowly_closes_its_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with world.node(frame_timeout_s=0.2, sweep_interval_s=0.01) as node:
            reader, writer = await asyncio.open_connection(*node.address)
            closed = asyncio.ensure_future(is_closed(reader))
            writer.write((1000).to_bytes(4, "big"))
            while not closed.done():
                writer.write(b"x")
                await asyncio.sleep(0.02)
            assert closed.result()
            writer.close()
            assert await is_served(node)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "a frame was not complete" in caplog.text


async def test_an_idle_client_is_disconnected_unless_the_broker_does_not_read_from_it(
    world: World,
) -> None:
    async with world.node(sweep_interval_s=0.01) as node:
        waiting, held = await asyncio.open_connection(*node.address)
        reader, idle = await asyncio.open_connection(*node.address)
        await until(lambda: len(node.server._connections) == 2, "both are accepted")
        first, second = node.server._connections
        first.is_backpressured = True  # as where its frame waits for memory
        first.last_active = second.last_active = Instant(-1e9)
        await until(lambda: [*node.server._connections] == [first], "the second is closed")
        assert await is_closed(reader)
        first.is_backpressured = False
        assert await is_closed(waiting)
        held.close()
        idle.close()


async def test_a_client_that_floods_is_slowed_and_loses_nothing(world: World) -> None:
    async with world.node(queued_bytes_max=200_000) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        world.disk.hold("t-0")
        value = "x" * 10_000
        for sequence in range(300):
            peer.send_produce("t", batch(value, producer_id=1, epoch=0, sequence=sequence))
        await until(lambda: world.disk.waiting > 0, "a sync waits")
        assert await is_served(node)
        # What one read of the socket brings is the most by which the budget is passed.
        assert node.server._queued_bytes < 200_000 + server_module.SCRATCH_BYTES + 20_000
        world.disk.release()
        offsets = [(await peer.produced()).base_offset for _ in range(300)]
        assert offsets == list(range(300))


async def test_requests_in_pieces_and_in_one_piece_are_the_same(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        sent: list[bytes] = []
        peer._writer.writelines = sent.extend  # type: ignore[method-assign]
        for number in range(20):
            peer.send_produce("t", batch(str(number) * 50))
        del peer._writer.writelines
        data = b"".join(sent)
        for size in (1, 7, 1000):
            for start in range(0, len(data), size):
                peer._writer.write(data[start : start + size])
                if size == 1 and start % 500 == 0:
                    await peer._writer.drain()
            for _ in range(20):
                assert (await peer.produced()).error == 0
        values = [value for _, value in visible(await peer.fetch("t"))]
        assert values == [str(number) * 50 for number in range(20)] * 3


async def test_a_stop_answers_what_was_begun(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        world.disk.hold("t-0")
        peer.send_produce("t", batch("a"))
        await until(lambda: world.disk.waiting > 0, "a sync waits")
        stopping = asyncio.ensure_future(node.server.stop())
        await asyncio.sleep(0)
        world.disk.release()
        assert (await peer.produced()).error == 0
        await stopping


async def test_a_budget_used_up_by_others_is_available_again_later(world: World) -> None:
    async with (
        world.node(queued_bytes_max=100_000) as node,
        Peer.of(node) as peer,
        Peer.of(node) as other,
    ):
        await peer.create_topic("t", partitions=2)
        world.disk.hold("t-0")
        for sequence in range(30):
            peer.send_produce("t", batch("x" * 10_000, producer_id=1, epoch=0, sequence=sequence))
        await until(lambda: node.server._queued_bytes > 100_000, "the budget is used up")
        for _ in range(3):
            assert (await other.produce("t", batch("y"), partition=1)).error == 0
        world.disk.release()
        for _ in range(30):
            assert (await peer.produced()).error == 0


@pytest.mark.parametrize("answers", [1, 6])
async def test_a_client_that_reads_no_responses_is_disconnected(world: World, answers: int) -> None:
    async with world.node(response_timeout_s=0.5, sweep_interval_s=0.02) as node:
        async with Peer.of(node) as peer:
            await peer.create_topic("t", max_message_bytes="9000000")
            await peer.produce("t", batch("x" * 8_000_000))
        await until(lambda: not node.server._connections, "the writer is gone")
        async with Peer.of(node) as peer:
            asked = hot.FetchPartition(0, -1, 0, -1, 1 << 24)
            request = hot.FetchRequest(
                -1, 0, 1, 1 << 24, 0, 0, -1, [hot.FetchTopic("t", None, [asked])]
            )
            for _ in range(answers):
                peer.send(1, 11, hot.write_fetch_request(11, request))
            await until(lambda: node.server._connections, "it is here")
            await until(lambda: not node.server._connections, "it is given up")


async def test_the_kernel_holds_little_of_what_a_client_does_not_read(world: World) -> None:
    limit = int(Path("/proc/sys/net/core/wmem_max").read_text())  # noqa: ASYNC240 - not a disk
    async with world.node() as node, Peer.of(node) as peer:
        await peer.ask(ApiVersionsRequest(), 3, ApiVersionsResponse)
        (connection,) = node.server._connections
        assert connection._transport is not None
        accepted = connection._transport.get_extra_info("socket")
        held = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert held == 2 * min(server_module.SEND_BUFFER_BYTES, limit)
