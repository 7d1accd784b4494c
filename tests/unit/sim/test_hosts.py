"""Several brokers' hosts in one world: their disks, power, links, and access to the shared store.

The brokers are toys: each registers under a lease and answers a line with a line.
"""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import pytest

from fencelog.broker.config import BrokerConfig
from fencelog.errors import FencedError, StorageError, UnknownOutcomeError
from fencelog.node import Ports
from fencelog.ports import MetadataWrite
from fencelog_sim.cluster_faults import WEIGHTS, draw_for_cluster
from fencelog_sim.faults import Fault, Kind, Plan
from fencelog_sim.nemesis import Nemesis
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.host import BROKER_PORT, BrokerHost
from fencelog_sim.world.world import Setting, World, client_host

LIMIT_S = 300.0
LEASE_S = 2.0
ENDS_WITHOUT_LEASE = 2
"""The broker that ends when its lease has ended."""
ANSWER_S = 1.0


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """What a killed process leaves is not collected, as in a run."""
    gc.disable()
    yield
    gc.enable()


class Toy:
    """A broker that stores one file, registers, and answers."""

    def __init__(self, host: BrokerHost, ports: Any) -> None:
        self.host = host
        self.ports = ports
        self.changes: list[tuple[float, str]] = []
        self.ended = asyncio.Event()

    async def start(self) -> None:
        file = await self.ports.disk.open("life", create=True)
        await file.append([b"x"])
        self.file = file
        self.lease = await self.ports.metadata.grant(LEASE_S)
        name = f"broker/{self.host.number}"
        await self.ports.metadata.commit([MetadataWrite(name, b"here", None, self.lease)])
        self.server = await asyncio.start_server(self.answer, self.host.address, BROKER_PORT)
        self.tasks = [
            asyncio.create_task(work()) for work in (self.renew, self.watch, self.talk_to_all)
        ]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def renew(self) -> None:
        is_held = True
        while is_held or self.host.number != ENDS_WITHOUT_LEASE:
            with contextlib.suppress(StorageError):
                is_held = await self.ports.metadata.renew(self.lease)
            await asyncio.sleep(LEASE_S / 4)
        self.ended.set()

    async def watch(self) -> None:
        seen = await self.ports.metadata.snapshot("broker/")
        async for changes in self.ports.metadata.watch("broker/", seen.revision):
            now = asyncio.get_running_loop().time()
            self.changes += [(now, each.key) for each in changes]

    async def talk_to_all(self) -> None:
        while True:
            for number in (1, 2, 3):
                await asks(f"10.0.0.{number}")
            await asyncio.sleep(0.1)

    async def wait_failed(self) -> None:
        """Some toys end when their lease has ended."""
        await self.ended.wait()

    def failure(self) -> FencedError | None:
        return FencedError("its lease is lost")

    async def stop(self) -> None:
        self.server.close()
        await self.ports.metadata.revoke(self.lease)


async def asks(address: str) -> bool:
    """Whether the broker there answers within a second."""
    writer = None
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(address, BROKER_PORT)
            writer.write(b"hello\n")
            return await reader.readline() == b"hello\n"
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()


class Rig:
    """Three toys, and a view from any host."""

    def __init__(self, seed: str = "hosts", **setting: Any) -> None:
        async def build(host: BrokerHost, config: BrokerConfig, ports: Ports) -> Any:
            del config
            return Toy(host, ports)

        self.world = World(seed, Setting(**setting), brokers=3, build=build)
        self.one, self.two, self.three = self.world.hosts

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            for host in self.world.hosts:
                await host.start()
            await story()

        self.world.loop.run(main(), limit_s=LIMIT_S)
        assert self.world.loop.errors == []
        assert self.world.ends == []

    async def reaches(self, source: str, target: BrokerHost) -> bool:
        """Whether a process on one host gets an answer from another's broker."""
        process = self.world.loop.process("probe", source)
        return await self.world.loop.start(process, asks(target.address))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - the time is virtual
            await asyncio.sleep(0.01)

    def registered(self) -> list[str]:
        return [key for key, _, _ in self.world.store.cells("broker/")]

    def toy(self, host: BrokerHost) -> Any:
        return host.node


def test_hosts_share_the_store_and_have_disks_of_their_own() -> None:
    rig = Rig()

    async def story() -> None:
        assert rig.registered() == ["broker/1", "broker/2", "broker/3"]
        rig.two.kill()
        await rig.two.start()
        lives = [len(host.disk.contents("life")) for host in rig.world.hosts]
        assert lives == [1, 2, 1]

    rig.play(story)
    assert rig.world.bootstrap == "10.0.0.1:9092,10.0.0.2:9092,10.0.0.3:9092"


def test_a_killed_broker_is_refused_and_its_registration_ends_with_its_lease() -> None:
    rig = Rig()

    async def story() -> None:
        rig.two.kill()
        assert not await rig.reaches(rig.one.address, rig.two)
        assert await rig.reaches(rig.one.address, rig.three)
        assert "broker/2" in rig.registered()
        await asyncio.sleep(1.1 * LEASE_S)
        assert rig.registered() == ["broker/1", "broker/3"]

    rig.play(story)


def test_a_power_cut_is_one_hosts_and_another_boot_follows() -> None:
    rig = Rig(durability="os")

    async def story() -> None:
        before = [host.boot_id for host in rig.world.hosts]
        rig.one.cut_power(Loss.ALL)
        assert not rig.one.is_up
        assert await rig.reaches(rig.two.address, rig.three)
        await rig.one.start()
        assert rig.one.is_up
        after = [host.boot_id for host in rig.world.hosts]
        assert after[0] != before[0]
        assert after[1:] == before[1:]
        # The file that was not synced is another one.
        assert len(rig.one.disk.contents("life")) == 1
        rig.two.kill()
        await rig.two.start()
        assert rig.two.boot_id == before[1]

    rig.play(story)


def test_a_link_is_cut_in_one_direction_and_mended_alone() -> None:
    rig = Rig()

    async def story() -> None:
        one, two, three = (host.address for host in rig.world.hosts)
        rig.world.network.cut(one, two)
        rig.world.network.cut(two, three)
        assert not await rig.reaches(one, rig.two)
        assert await rig.reaches(one, rig.three)
        rig.world.network.mend([(one, two)])
        assert await rig.reaches(one, rig.two)
        assert not await rig.reaches(two, rig.three)

    rig.play(story)


def test_what_is_sent_over_an_open_connection_waits_behind_a_one_way_cut() -> None:
    rig, received = Rig(), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"from the server\n")
        received.append(await reader.readline())
        writer.close()

    async def listen() -> None:
        await asyncio.start_server(serve, rig.two.address, 1000)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(rig.two.address, 1000)
        rig.world.network.cut(rig.one.address, rig.two.address)
        writer.write(b"from the client\n")
        received.append(await reader.readline())
        writer.close()

    async def story() -> None:
        loop = rig.world.loop
        await loop.start(loop.process("server", rig.two.address), listen())
        await loop.start(loop.process("client", rig.one.address), client())
        await asyncio.sleep(5.0)
        assert received == [b"from the server\n"]
        rig.world.network.mend([(rig.one.address, rig.two.address)])
        await asyncio.sleep(1.0)
        assert received == [b"from the server\n", b"from the client\n"]

    rig.play(story)


def test_the_store_is_out_of_reach_for_one_host_and_its_next_process() -> None:
    rig = Rig()

    async def story() -> None:
        rig.one.cut_from_store()
        await rig.two.metadata.put("k", b"v", expected_version=0)
        with pytest.raises(UnknownOutcomeError):
            await rig.one.metadata.put("k", b"w", expected_version=0)
        rig.one.kill()
        with pytest.raises(StorageError):
            await rig.one.metadata.get("k")
        await asyncio.sleep(1.1 * LEASE_S)
        assert rig.registered() == ["broker/2", "broker/3"]
        assert await rig.reaches(rig.three.address, rig.two)
        rig.one.heal_store()
        await rig.one.start()
        assert rig.registered() == ["broker/1", "broker/2", "broker/3"]

    rig.play(story)


def nemesis(rig: Rig, *plan: Fault) -> Nemesis:
    return Nemesis(rig.world, plan, lambda fault: None)


def test_the_store_ends_a_lease_while_its_broker_runs() -> None:
    rig = Rig()

    async def story() -> None:
        await nemesis(rig, Fault(kind=Kind.LEASE_LOST, at=0.0, host=3)).run()
        assert rig.registered() == ["broker/1", "broker/2"]
        assert rig.three.node is not None

    rig.play(story)


def test_a_broker_that_lost_its_lease_begins_another_life_unless_it_was_killed_meanwhile() -> None:
    rig = Rig()

    async def story() -> None:
        await nemesis(rig, Fault(kind=Kind.LEASE_LOST, at=0.0, host=2)).run()
        await rig.until(lambda: rig.two.node is None)
        await asyncio.sleep(1.0)
        assert rig.two.node is not None
        assert "broker/2" in rig.registered()
        await nemesis(rig, Fault(kind=Kind.LEASE_LOST, at=0.0, host=2)).run()
        await rig.until(lambda: rig.two.node is None)
        rig.two.cut_power(Loss.ALL)
        await asyncio.sleep(2.0)
        assert rig.two.node is None

    rig.play(story)


def test_an_isolated_host_is_in_reach_of_the_store_only() -> None:
    rig = Rig()

    async def story() -> None:
        fault = Fault(kind=Kind.ISOLATE, at=0.0, host=1, how="both", seconds=3 * LEASE_S)
        await nemesis(rig, fault).run()
        assert not await rig.reaches(rig.one.address, rig.two)
        assert not await rig.reaches(rig.three.address, rig.one)
        assert await rig.reaches(rig.three.address, rig.two)
        assert "broker/1" in rig.registered()
        await asyncio.sleep(3 * LEASE_S)
        assert await rig.reaches(rig.one.address, rig.two)

    rig.play(story)


@pytest.mark.parametrize(
    ("how", "cuts"),
    [
        ("in", {("10.0.0.3", "10.0.0.2")}),
        ("out", {("10.0.0.2", "10.0.0.3")}),
        ("both", {("10.0.0.3", "10.0.0.2"), ("10.0.0.2", "10.0.0.3")}),
    ],
)
def test_a_link_is_cut_the_way_that_the_plan_says(how: str, cuts: set) -> None:
    rig = Rig()

    async def story() -> None:
        await nemesis(rig, Fault(kind=Kind.LINK, at=0.0, host=2, other=3, how=how)).run()
        assert rig.world.network.cuts == cuts

    rig.play(story)


def test_a_power_cut_of_one_host_leaves_the_clients_alone() -> None:
    rig = Rig(durability="os")

    async def story() -> None:
        rig.world.start_client("c", client_host(0), lambda: asyncio.sleep(1))
        rig.one.cut_power(Loss.ALL)
        assert list(rig.world.clients) == ["c"]
        assert rig.world.lost_at is None

    rig.play(story)


def test_a_watch_is_late_for_one_host() -> None:
    rig = Rig()

    async def story() -> None:
        await nemesis(rig, Fault(kind=Kind.LATE_WATCH, at=0.0, host=1, seconds=3.0)).run()
        rig.three.kill()
        await asyncio.sleep(1.1 * LEASE_S)
        assert "broker/3" not in rig.registered()
        await asyncio.sleep(4.0)
        (late, _), (early, _) = rig.toy(rig.one).changes[-1], rig.toy(rig.two).changes[-1]
        assert late > early

    rig.play(story)


@pytest.mark.parametrize(
    ("how", "at_once", "later"),
    [("stored", True, True), ("not-stored", False, False), ("late", False, True)],
)
def test_the_answer_of_a_write_is_lost(how: str, at_once: bool, later: bool) -> None:
    rig = Rig()

    async def story() -> None:
        fault = Fault(kind=Kind.LOST_ANSWER, at=0.0, host=2, how=how, seconds=1.0)
        await nemesis(rig, fault).run()
        with pytest.raises(UnknownOutcomeError):
            await rig.two.metadata.put("k", b"v", expected_version=0)
        assert bool(rig.world.store.version("k")) == at_once
        await asyncio.sleep(1.5)
        assert bool(rig.world.store.version("k")) == later
        await rig.two.metadata.put("other", b"v", expected_version=0)

    rig.play(story)


def test_a_pause_and_a_full_disk_hit_one_host() -> None:
    rig = Rig()

    async def story() -> None:
        await nemesis(
            rig,
            Fault(kind=Kind.PAUSE, at=0.0, host=1, seconds=30.0),
            Fault(kind=Kind.FULL, at=0.0, host=2, seconds=30.0),
        ).run()
        assert not await rig.reaches(rig.two.address, rig.one)
        assert await rig.reaches(rig.two.address, rig.three)
        assert rig.two.disk.free_bytes is not None
        assert rig.three.disk.free_bytes is None

    rig.play(story)


def test_after_healing_every_host_has_a_broker_that_reaches_all() -> None:
    rig = Rig()

    async def story() -> None:
        plan = [
            Fault(kind=Kind.SITE_POWER, at=0.0, how="ALL", seconds=100.0),
            Fault(kind=Kind.LINK, at=0.1, host=1, other=2, how="both", seconds=100.0),
            Fault(kind=Kind.NO_STORE, at=0.2, how="all", seconds=100.0),
        ]
        chaos = nemesis(rig, *plan)
        await chaos.run()
        assert not any(host.is_up for host in rig.world.hosts)
        await chaos.heal()
        assert len(rig.registered()) == 3
        for source in rig.world.hosts:
            for target in rig.world.hosts:
                assert await rig.reaches(source.address, target)

    rig.play(story)


def drawn(seed: int, durability: str) -> Plan:
    return draw_for_cluster(
        Random(f"plan/{seed}"), 10.0, brokers=3, clients=3, durability=durability
    )


def test_plans_have_every_kind_on_every_host() -> None:
    faults = [fault for seed in range(400) for fault in drawn(seed, "fsync")]

    assert {fault.kind for fault in faults} == {kind for kind, _ in WEIGHTS} | {Kind.MOVE}
    assert {fault.host for fault in faults} == {1, 2, 3}
    assert all(fault.other not in {0, fault.host} for fault in faults if fault.kind == Kind.LINK)
    assert [Fault.from_json(fault.to_json()) for fault in faults] == faults


def test_in_os_mode_the_power_cuts_of_one_host_only_lose_anything() -> None:
    for seed in range(400):
        lossy = {
            (fault.host, fault.kind)
            for fault in drawn(seed, "os")
            if fault.how in {"ALL", "TORN", "HOLES", "PAGES"}
        }
        assert len({host for host, _ in lossy}) <= 1
        assert Kind.SITE_POWER not in {kind for _, kind in lossy}


def test_one_seed_has_one_trace() -> None:
    def digest() -> str:
        rig = Rig("trace", durability="os")

        async def story() -> None:
            chaos = nemesis(rig, *drawn(5, "fsync"), *drawn(6, "os"))
            rig.world.start_client("c", client_host(0), lambda: asyncio.sleep(20))
            await chaos.run()
            await asyncio.sleep(5.0)
            await chaos.heal()

        rig.play(story)
        return rig.world.loop.digest()

    assert digest() == digest()
