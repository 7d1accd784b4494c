"""Leaderships that move between live brokers, and who may end one."""

import pytest

from fencelog.coordination.controller.model import NO_LEADER, PartitionState, Registration
from fencelog.ports import MetadataWrite
from fencelog.types import LeaderEpoch, NodeId
from fencelog_sim import run as running
from fencelog_sim.faults import Fault, Kind
from fencelog_sim.monitors.elections import election_problem
from fencelog_sim.moves import lead, others_in_sync
from fencelog_sim.run import Case, run
from fencelog_sim.world.metadata import SimStore

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
ALL = (ONE, TWO, THREE)
LED = PartitionState(ALL, ONE, LeaderEpoch(4), ALL, (), "1/1")
NEXT = LED._replace(leader=TWO, leader_epoch=LeaderEpoch(5), leader_life="2/1")


def key(index: int = 0) -> str:
    return f"partition/{bytes(16).hex()}/{index}"


def made(*states: PartitionState, live: tuple[NodeId, ...] = ALL) -> SimStore:
    store = SimStore()
    for node in live:
        life = Registration(node, "h", 1, f"{node}/1", "d")
        store.commit([MetadataWrite(f"broker/{node}", life.encode())])
    for index, state in enumerate(states):
        store.commit([MetadataWrite(key(index), state.encode())])
    return store


def stored(store: SimStore, index: int = 0) -> PartitionState:
    return PartitionState.decode(key(index), store.values[key(index)][0])


def test_who_could_lead_instead_is_in_sync_with_a_leader() -> None:
    alone = LED._replace(isr=(ONE,), eligible=(TWO, THREE))
    led_by_two = LED._replace(leader=TWO, leader_life="2/1")
    store = made(LED, alone, led_by_two, LED._replace(isr=(ONE, THREE)))
    assert dict(others_in_sync(store, ONE)) == {key(): (TWO, THREE), key(3): (THREE,)}
    assert dict(others_in_sync(store, TWO)) == {key(2): (ONE, THREE)}


@pytest.mark.parametrize("heir", [TWO, THREE])
def test_a_live_member_becomes_the_first_one_and_the_heir(heir: NodeId) -> None:
    store = made(LED)
    lead(store, {key(): heir, key(7): heir})
    found = stored(store)
    assert (found.leader, found.leader_epoch, found.heir) == (ONE, 4, heir)
    assert found.replicas == found.isr == (heir, *(each for each in ALL if each != heir))


@pytest.mark.parametrize(
    ("state", "live"),
    [
        (LED._replace(isr=(ONE, THREE)), ALL),
        (LED, (ONE, THREE)),
        (LED._replace(leader=TWO, leader_life="2/1"), ALL),
        (LED._replace(leader=NO_LEADER, leader_life=""), ALL),
    ],
    ids=["not in sync", "gone", "leads already", "nobody leads"],
)
def test_who_cannot_lead_is_not_asked_for(state: PartitionState, live: tuple[NodeId, ...]) -> None:
    store = made(state, live=live)
    lead(store, {key(): TWO})
    assert stored(store) == state


@pytest.mark.parametrize(
    ("writer", "controller", "live", "after", "expected"),
    [
        (1, 3, ALL, NEXT, None),
        (3, 3, ALL, NEXT, "broker 3 ends a leadership that lasts"),
        (0, 3, ALL, NEXT, "broker 0 ends a leadership that lasts"),
        (3, 3, (TWO, THREE), NEXT, None),
        (2, 3, (TWO, THREE), NEXT, "broker 2 elects, the controller is 3"),
        (2, 0, (TWO, THREE), NEXT, "broker 2 elects, the controller is 0"),
        (0, 3, (TWO, THREE), NEXT, None),
        (2, 3, (TWO,), NEXT._replace(leader=NO_LEADER, leader_life=""), None),
    ],
)
def test_a_live_leader_ends_its_leadership_itself_and_others_are_replaced_by_the_controller(
    writer: int,
    controller: int,
    live: tuple[NodeId, ...],
    after: PartitionState,
    expected: str | None,
) -> None:
    store = made(LED, live=live)
    if controller:
        store.commit([MetadataWrite("controller", b'{"node_id": %d}' % controller)])
    store.writer, store.compared = writer, ["controller"]
    problem = election_problem(store, LED, after)
    assert problem == (None if expected is None else f"{expected}: {after}")


def test_who_elects_compares_that_it_is_still_the_controller() -> None:
    store = made(LED, live=(TWO, THREE))
    version = store.commit([MetadataWrite("controller", b'{"node_id": 3}')])
    assert version is not None
    store.writer = 3
    for compared in ({}, {"broker/2": store.version("broker/2")}):
        store.commit([MetadataWrite("partition/x/0", b"")], compared)
        expected = f"broker 3 elects, whoever is the controller by then: {NEXT}"
        assert election_problem(store, LED, NEXT) == expected
    store.commit([MetadataWrite("partition/x/0", b"")], {"controller": version})
    assert election_problem(store, LED, NEXT) is None


def test_another_life_of_a_leader_has_ended_the_one_that_was_elected() -> None:
    store = made(LED._replace(leader_life="1/0"))
    store.commit([MetadataWrite("controller", b'{"node_id": 3}')])
    store.writer, store.compared = 3, ["controller"]
    assert election_problem(store, LED._replace(leader_life="1/0"), NEXT) is None


@pytest.mark.parametrize("point", ["", "request Produce"])
def test_a_move_is_carried_out_by_the_brokers_and_back(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.trampolines, "install", lambda: None)
    move = Fault(kind=Kind.MOVE, at=1.0, seconds=1.0, host=1, point=point)
    moved = run(Case(7, "queue", plan=(move,), clients=2, span_s=4.0, brokers=3))
    quiet = run(Case(7, "queue", plan=(), clients=2, span_s=4.0, brokers=3))
    assert moved.problems == quiet.problems == []
    assert moved.injected == {"move": 1}
    seen = "states of partitions observed"
    # An heir and a handover, both ways, of at least one partition.
    assert moved.counts[seen] >= quiet.counts[seen] + 4
