"""A full disk under a whole broker: nothing is lost or damaged, and no restart is needed (D2)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fencelog.broker.config import Durability
from fencelog.broker.partitions import partition as partition_module
from fencelog.errors import ErrorCode
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.gate import NO_SPACE, Fault
from tests.support.node import Peer, World, batch, visible
from tests.support.transactions import Producer
from tests.unit.broker.test_disk_failures import GONE, commit, committed, init, run


@pytest.fixture
def full(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Fill the disk for the files whose path contains a text; what is refused is soon retried."""
    monkeypatch.setattr(partition_module, "RETRY_S", 0.01)

    def fill(part: str) -> None:
        def gate(verb: str, path: str, size: int) -> Fault | None:
            return Fault(NO_SPACE) if verb in {"append", "create"} and part in path else None

        world.disk.gate = gate

    return fill


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while True:
            if await condition():
                return
            await asyncio.sleep(0)


async def everything(peer: Peer) -> list[tuple[int, str]]:
    """All records; a fetch reads one segment."""
    found: list[tuple[int, str]] = []
    while more := visible(await peer.fetch("t", len(found))):
        found += more
    return found


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("part", ["t-0/", "t-0/00000000000000000001", ".snapshot", ".index"])
def test_a_full_disk_stalls_a_partition_wherever_it_is_noticed(
    world: World, full: Callable[[str], None], part: str, durability: Durability
) -> None:  # D2
    async def scenario() -> None:
        async with world.node(crash=True, durability=durability) as node, Peer.of(node) as peer:
            await peer.create_topic("t", segment_bytes="1024")
            assert (await peer.produce("t", batch("kept"))).error is ErrorCode.NONE
            full(part)
            told = [(await peer.produce("t", batch(value * 600))).error for value in "abc"]
            assert set(told) <= {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
            assert visible(await peer.fetch("t"))[0] == (0, "kept")
            world.disk.gate = None

            async def is_back() -> bool:
                return (await peer.produce("t", batch("back"))).error is ErrorCode.NONE

            await until(is_back)
            seen = await everything(peer)
            assert [offset for offset, _ in seen] == list(range(len(seen)))
            assert seen[-1][1] == "back"
            acknowledged = {
                value * 600
                for value, error in zip("abc", told, strict=True)
                if error is ErrorCode.NONE
            }
            assert acknowledged <= {value for _, value in seen}
            world.disk = world.disk.power_loss(Loss.ALL if durability == "fsync" else Loss.NONE)
        async with world.node(durability=durability) as node, Peer.of(node) as peer:
            assert await everything(peer) == seen

    run(scenario)


@pytest.mark.parametrize("when", ["before its creation", "during its creation", "after"])
def test_a_coordinator_on_a_full_disk_comes_back_by_itself(
    world: World, full: Callable[[str], None], when: str
) -> None:  # D2, E7
    async def scenario() -> None:
        async with world.node(internal_partitions=1) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            if when == "after":
                assert await commit(peer, 1) is ErrorCode.NONE
            during = when == "during its creation"
            full("__consumer_offsets-0/partition" if during else "__consumer_offsets")
            for _ in range(2):
                assert await commit(peer, 2) in GONE
            world.disk.gate = None

            async def is_back() -> bool:
                return await commit(peer, 3) is ErrorCode.NONE

            await until(is_back)
            assert await committed(peer) == 3

    run(scenario)


def test_a_transaction_times_out_though_its_coordinator_was_stalled(
    world: World, full: Callable[[str], None]
) -> None:  # E7, E10
    async def scenario() -> None:
        async with world.node(internal_partitions=1) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            producer = Producer(peer)
            assert await producer.init(timeout_ms=300) is ErrorCode.NONE
            assert await producer.add("t", 0) is ErrorCode.NONE
            assert await producer.produce("t", "open") is ErrorCode.NONE
            full("__transaction_state")
            assert await init(peer, "other") in GONE  # its coordinator is unloaded
            world.disk.gate = None
            log = node.logs.get("t", 0).log

            async def is_ended() -> bool:
                return log.last_stable_offset == log.high_watermark

            await until(is_ended)

    run(scenario)
