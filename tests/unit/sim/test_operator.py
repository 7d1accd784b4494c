"""A partition whose replicas all lost power in ``os`` mode waits for its operator."""

import asyncio
from types import SimpleNamespace

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import ClusterState
from fencelog.broker.metadata.elections import Elections
from fencelog.coordination.controller.model import NO_LEADER, PartitionState, Registration
from fencelog.ports import MetadataWrite
from fencelog.types import LeaderEpoch, NodeId, TopicId
from fencelog_sim import run as running
from fencelog_sim.faults import Fault, Kind
from fencelog_sim.operator import Operator
from fencelog_sim.run import Case, run
from fencelog_sim.world.world import Setting, World

ID = TopicId(bytes(range(16)))
KEY = f"partition/{ID.hex()}/0"
REPLICAS = (NodeId(1), NodeId(2), NodeId(3))
NOBODY = PartitionState(REPLICAS, NO_LEADER, LeaderEpoch(5), ())
OS_SEED = 103


@pytest.fixture(autouse=True)
def _other_tests_keep_their_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only clients that others wrote need the trampolines."""
    monkeypatch.setattr(running.trampolines, "install", lambda: None)


def looked(state: PartitionState, logs: dict[int, tuple[int, int]]) -> PartitionState:
    """The state after one look; ``logs``: last epoch and end of those that are open."""
    world = World("operator", Setting(), brokers=3)
    topic = Topic(name="orders", topic_id=ID, partitions=1, settings={})
    writes = [MetadataWrite("topic/orders", topic.encode()), MetadataWrite(KEY, state.encode())]
    # First in the order of the keys, and of a topic that is being deleted.
    writes.append(MetadataWrite(f"partition/{bytes(16).hex()}/0", NOBODY.encode()))
    for number in REPLICAS:
        life = Registration(number, "10.0.0.1", 9092, f"life-{number}", f"directory-{number}")
        writes.append(MetadataWrite(f"broker/{number}", life.encode()))
    world.store.commit(writes)
    copies: list[ClusterState] = []
    for number, (last_epoch, end) in logs.items():
        log = SimpleNamespace(last_epoch=last_epoch, log_end_offset=end)
        replicas = {"orders-0": SimpleNamespace(log=log)}
        find = SimpleNamespace(replica=lambda name, found=replicas: found.get(str(name)))
        session = world.store.session()
        copies.append(ClusterState(session))
        elections = Elections(session, copies[-1], lambda _: 1)
        node = SimpleNamespace(broker=SimpleNamespace(logs=find, elections=elections))
        world.hosts[number - 1].node = node  # type: ignore[assignment]  # stands for its broker

    async def look() -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in copies:
                await each.start()
            watches = [tasks.create_task(each.run()) for each in copies]
            await Operator(world).look()
            for watch in watches:
                watch.cancel()

    world.loop.run(look(), limit_s=10.0)
    return PartitionState.decode(KEY, world.store.values[KEY][0])


def test_the_newest_epoch_wins_then_the_longest_log() -> None:
    state = looked(NOBODY, {1: (3, 90), 2: (4, 10), 3: (4, 20)})
    assert (state.leader, state.leader_epoch, state.isr) == (3, 6, (3,))
    assert state.leader_life == "life-3"


def test_all_replicas_must_be_open() -> None:
    assert looked(NOBODY, {1: (3, 90), 2: (4, 10)}) == NOBODY


@pytest.mark.parametrize("left", [{"isr": (NodeId(1),)}, {"eligible": (NodeId(1),)}])
def test_where_somebody_has_everything_nothing_is_given_up(left: dict[str, object]) -> None:
    state = NOBODY._replace(**left)
    assert looked(state, {1: (3, 9), 2: (4, 10), 3: (4, 20)}) == state


def test_a_run_goes_on_after_all_brokers_lost_power() -> None:
    power = Fault(kind=Kind.SITE_POWER, at=0.5, seconds=0.3, how="NONE")
    result = run(Case(OS_SEED, "bank", plan=(power,), clients=1, span_s=2.0, brokers=3))
    assert result.setting.durability == "os"
    assert result.problems == []
