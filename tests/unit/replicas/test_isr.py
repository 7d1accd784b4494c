"""The leader writes its in-sync replicas itself: compared, counted twice, never guessed (F2)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import Changed, ClusterState, PartitionKey, StoredState
from fencelog.broker.replicas.isr import IsrWriter
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import StorageError, UnknownOutcomeError
from fencelog.ports import MetadataWrite
from fencelog.types import LeaderEpoch, NodeId
from fencelog_sim.world.metadata import SimMetadata, SimStore
from tests.support.partition import scenario
from tests.unit.replicas.hosts import TOPIC, Host, key, running, until

LAG_S = 0.05
NAME = PartitionKey(TOPIC, 0)


class Unreliable(SimMetadata):
    """A session of the store whose commits a test may spoil."""

    spoil: Callable[[], Awaitable[None]] | None = None
    """Runs once, before the next commit, and may raise in its place."""
    stored: Callable[[], Awaitable[None]] | None = None
    """Runs once, between the next commit and its answer."""
    loses_answer = False
    is_unreadable = False

    async def get(self, key: str) -> tuple[bytes, int] | None:
        if self.is_unreadable:
            raise StorageError("no answer")
        return await super().get(key)

    async def commit(
        self, writes: Sequence[MetadataWrite], *, unchanged: Mapping[str, int] | None = None
    ) -> bool:
        spoil, self.spoil = self.spoil, None
        if spoil is not None:
            await spoil()
        is_stored = await super().commit(writes, unchanged=unchanged)
        stored, self.stored = self.stored, None
        if stored is not None:
            await stored()
        if self.loses_answer:
            self.loses_answer = False
            raise UnknownOutcomeError("the answer was lost")
        return is_stored


@dataclass
class Stage:
    """A leader, two followers, and the store that says so."""

    store: SimStore
    session: Unreliable
    cluster: ClusterState
    hosts: list[Host]
    min_isr: int

    @property
    def state(self) -> PartitionState:
        return PartitionState.decode(NAME.text, self.store.values[NAME.text][0])

    def put(self, name: str, value: bytes) -> None:
        assert self.store.commit([MetadataWrite(name, value)])

    def register(self, node: int, life: str | None = None, *, is_full: bool = False) -> None:
        incarnation = f"life of {node}" if life is None else life
        registration = Registration(NodeId(node), "host", 1, incarnation, "", is_full=is_full)
        self.put(f"broker/{node}", registration.encode())

    def members(self) -> tuple[int, ...]:
        return self.hosts[0].led.get(key()).progress.isr


@asynccontextmanager
async def stage(isr: tuple[int, ...], min_isr: int = 1) -> AsyncIterator[Stage]:
    async with running(3) as hosts:
        store = SimStore()
        session = Unreliable(store)
        cluster = ClusterState(session)
        here = Stage(store, session, cluster, hosts, min_isr)
        for node in (1, 2, 3):
            here.register(node)
        members = tuple(map(NodeId, isr))
        replicas = tuple(each.node for each in hosts)
        state = PartitionState(replicas, NodeId(1), LeaderEpoch(1), members, (), "life of 1")
        here.put(NAME.text, state.encode())
        await cluster.start()
        hosts[0].lead(1, isr, min_isr=min_isr)
        led = hosts[0].led.get(key())
        led.version = cluster.partitions[NAME].version
        writer = IsrWriter(
            session,
            cluster,
            hosts[0].led,
            "life of 1",
            hosts[0].serving.life_of,
            lambda topic_id: here.min_isr,
            LAG_S,
        )

        def changed(what: Changed) -> None:
            stored = cluster.partitions[NAME]
            if what.partitions and stored.state.leader_epoch == 1:
                writer.adopt(led, stored)

        cluster.subscribe(changed)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(cluster.run()), loop.create_task(writer.run())]
        try:
            yield here
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@scenario
async def test_who_does_not_keep_up_leaves_and_the_rest_commits() -> None:
    async with stage((1, 2, 3)) as here:
        here.hosts[1].follow(1, 1)
        here.hosts[0].produce(b"x")
        await until(lambda: here.state.isr == (1, 2))
        await until(lambda: here.hosts[0].partition().log.high_watermark == 1)
        assert here.members() == (1, 2)


@scenario
async def test_who_leaves_too_small_a_set_stays_eligible_and_nothing_commits() -> None:
    async with stage((1, 2), min_isr=2) as here:
        here.hosts[0].produce(b"x")
        await until(lambda: here.state.isr == (1,))
        assert here.state.eligible == (2,)
        await until(lambda: here.members() == (1,))
        assert here.hosts[0].partition().log.high_watermark == 0
        here.hosts[1].follow(1, 1)
        await until(lambda: here.state.isr == (1, 2))
        assert here.state.eligible == ()
        await until(lambda: here.hosts[0].partition().log.high_watermark == 1)


@scenario
async def test_who_has_caught_up_joins_also_where_it_has_nothing_more_to_say() -> None:
    async with stage((1,)) as here:
        here.hosts[0].produce(b"x")
        here.register(2, "another life")  # so it cannot join by what it says now
        for host in here.hosts[1:]:
            host.follow(1, 1)
        await until(lambda: here.state.isr == (1, 3))
        (wire,) = here.hosts[1].wires
        await until(lambda: wire.requests and not wire.requests[-1].positions)
        told = len(wire.requests)
        here.register(2)
        await until(lambda: here.state.isr == (1, 2, 3))
        assert not any(each.positions for each in wire.requests[told:])


@scenario
async def test_who_has_a_full_disk_does_not_join_until_it_has_room() -> None:
    async with stage((1,)) as here:
        here.register(2, is_full=True)
        for host in here.hosts[1:]:
            host.follow(1, 1)
        await until(lambda: 3 in here.state.isr)
        assert here.state.isr == (1, 3)
        here.register(2)
        await until(lambda: here.state.isr == (1, 2, 3))


@scenario
async def test_a_lost_answer_is_read() -> None:
    async with stage((1,)) as here:
        here.session.loses_answer = True
        here.hosts[1].follow(1, 1)
        await until(lambda: here.members() == (1, 2))
        assert here.state.isr == (1, 2)


@scenario
async def test_while_the_outcome_is_unknown_both_sets_count() -> None:
    async with stage((1, 2)) as here:
        hold = asyncio.Event()
        here.session.spoil = hold.wait  # type: ignore[assignment]
        here.hosts[0].produce(b"x")
        await until(lambda: not here.hosts[0].led.get(key()).progress.is_settled)
        here.hosts[0].produce(b"y")
        await until(lambda: here.hosts[0].partition().durable_end == 2)  # it counts who has that
        assert here.hosts[0].partition().log.high_watermark == 0
        assert here.state.isr == (1, 2)
        hold.set()
        await until(lambda: here.hosts[0].partition().log.high_watermark == 2)
        assert here.state.isr == (1,)


@scenario
async def test_a_store_that_refuses_is_asked_again() -> None:
    async with stage((1,)) as here:

        async def fails() -> None:
            raise StorageError("no quorum")

        here.session.spoil = fails
        here.hosts[1].follow(1, 1)
        await until(lambda: here.state.isr == (1, 2))


@scenario
async def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_is_stored() -> None:
    async with stage((1,)) as here:
        refused = asyncio.Event()

        async def refuses() -> None:
            refused.set()
            raise StorageError("not sent: no connection")

        here.session.loses_answer = here.session.is_unreadable = True
        here.hosts[1].follow(1, 1)
        await until(lambda: here.state.isr == (1, 2))
        here.session.spoil = refuses
        await refused.wait()
        progress = here.hosts[0].led.get(key()).progress
        assert not progress.is_settled  # 2 may be elected, so nothing is committed without it
        here.session.is_unreadable = False
        await until(lambda: progress.is_settled)
        assert here.members() == (1, 2)


async def _take_out(here: Stage) -> None:
    """Broker 2 has died: the controller takes it out, and the leader's copy shows that."""
    here.hosts[1].is_up = False
    for wire in here.hosts[1].wires:
        wire.close()
    here.put(NAME.text, here.state._replace(isr=(NodeId(1),)).encode())
    version = here.store.values[NAME.text][1]
    await until(lambda: here.cluster.partitions[NAME].version == version)


@scenario
async def test_what_is_seen_before_the_answer_to_ones_own_write_counts_after_it() -> None:
    async with stage((1,)) as here:
        here.session.stored = partial(_take_out, here)
        here.hosts[1].follow(1, 1)
        await until(lambda: not here.hosts[1].is_up)
        here.hosts[0].produce(b"x")
        await until(lambda: here.hosts[0].partition().log.high_watermark == 1)
        assert here.members() == (1,)


@scenario
async def test_what_is_seen_while_ones_own_write_is_refused_counts_after_it() -> None:
    async with stage((1, 2)) as here:

        async def refuses() -> None:
            await _take_out(here)
            raise StorageError("not sent: no connection")

        here.session.spoil = refuses
        here.hosts[0].produce(b"x")
        await until(lambda: here.hosts[0].partition().log.high_watermark == 1)
        assert here.members() == (1,)


@scenario
async def test_another_life_of_the_joiner_does_not_join_by_the_word_of_this_one() -> None:
    async with stage((1,)) as here:

        async def registers_anew() -> None:
            here.register(2, "another life")

        here.session.spoil = registers_anew
        here.hosts[1].follow(1, 1)
        await until(lambda: here.session.spoil is None)
        here.hosts[2].follow(1, 1)
        await until(lambda: 3 in here.state.isr)
        assert here.state.isr == (1, 3)


@scenario
async def test_a_leader_that_was_deposed_meanwhile_writes_nothing_and_waits() -> None:
    async with stage((1, 2)) as here:

        async def elects_another() -> None:
            new = here.state._replace(leader=NodeId(2), leader_epoch=LeaderEpoch(2))
            here.put(NAME.text, new.encode())

        here.session.spoil = elects_another
        here.hosts[0].produce(b"x")
        await until(lambda: here.cluster.partitions[NAME].state.leader_epoch == 2)
        await asyncio.sleep(3 * LAG_S)
        assert here.state.isr == (1, 2)
        assert here.hosts[0].partition().log.high_watermark == 0


@scenario
async def test_a_state_older_than_its_own_write_is_not_adopted() -> None:
    async with stage((1,)) as here:
        led = here.hosts[0].led.get(key())
        older = here.cluster.partitions[NAME]
        here.hosts[1].follow(1, 1)
        await until(lambda: here.members() == (1, 2))
        here.cluster.partitions[NAME] = older
        IsrWriter.adopt(
            _Settles(here),
            led,
            StoredState(older.state, older.version),  # type: ignore[arg-type]
        )
        assert here.members() == (1, 2)


class _Settles:
    def __init__(self, here: Stage) -> None:
        self.here = here

    def _settle(self, *_: object) -> None:
        raise AssertionError("an older state")


@scenario
async def test_another_min_insync_replicas_is_in_force_at_once() -> None:
    async with stage((1, 2)) as here:
        here.hosts[1].follow(1, 1)
        leader, progress = here.hosts[0], here.hosts[0].led.get(key()).progress
        leader.produce(b"x")
        await until(lambda: leader.partition().log.high_watermark == 1)
        here.min_isr = 3
        here.put("settings/broker/", b'{"min.insync.replicas": "3"}')
        await until(lambda: not progress.has_enough)
        leader.produce(b"y")
        await until(lambda: here.hosts[1].partition().log.log_end_offset == 2)
        assert leader.partition().log.high_watermark == 1
        here.min_isr = 2
        topic = Topic(name="t", topic_id=TOPIC, partitions=1, settings={})
        here.put("topic/t", topic.encode())
        await until(lambda: leader.partition().log.high_watermark == 2)
