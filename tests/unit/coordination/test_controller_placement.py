"""Where the replicas of new partitions go."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.controller.placement import assigned, placed, widened
from fencelog.coordination.controller.rules import Brokers, Refused
from fencelog.errors import ErrorCode
from fencelog.types import NodeId
from tests.unit.coordination.cluster import (
    FOUR,
    NEW,
    ONE,
    THREE,
    TWO,
    broker,
    life,
    live,
    state,
    stored,
)


def cluster(racks: list[str | None]) -> Brokers:
    return live(*(broker(NodeId(n), rack=rack) for n, rack in enumerate(racks, 1)))


def replicas(states: list[PartitionState] | Refused) -> list[tuple[int, ...]]:
    assert not isinstance(states, Refused), states
    return [each.replicas for each in states]


def spread(brokers: Brokers, counted: Counter) -> int:
    counts = [counted[node] for node in brokers]
    return max(counts) - min(counts)


def test_partitions_begin_one_broker_further_each_and_followers_are_shifted() -> None:
    # Kafka's example: the second round over the brokers has other followers.
    assert replicas(placed(7, 3, cluster([None] * 5), [])) == [
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 5),
        (4, 5, 1),
        (5, 1, 2),
        (1, 3, 4),
        (2, 4, 5),
    ]


def test_replicas_go_from_rack_to_rack() -> None:
    # Kafka's example: brokers 1 4 in a, 2 5 in b, 3 6 in c.
    assert replicas(placed(4, 3, cluster(list("abcabc")), [])) == [
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 5),
        (4, 5, 6),
    ]
    assert replicas(placed(3, 2, cluster(list("aabb")), [])) == [(1, 3), (3, 2), (2, 4)]


def test_a_new_partition_is_led_by_its_first_replica_and_all_are_in_sync() -> None:
    assert placed(1, 2, live(ONE, TWO), []) == [
        PartitionState((ONE, TWO), ONE, 0, (ONE, TWO), (), life(ONE))
    ]


def test_a_broker_that_stops_gets_nothing() -> None:
    brokers = live(broker(ONE, is_stopping=True), TWO, THREE)

    assert replicas(placed(2, 2, brokers, [])) == [(2, 3), (3, 2)]


@pytest.mark.parametrize("factor", [0, -1, 3])
def test_a_factor_that_the_brokers_cannot_hold_is_refused(factor: int) -> None:
    brokers = live(ONE, TWO, broker(THREE, is_stopping=True))
    refused = placed(1, factor, brokers, [])

    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.INVALID_REPLICATION_FACTOR


racks_of_one_size = st.builds(
    lambda racks, size: [str(rack) for rack in range(racks)] * size,
    st.integers(1, 5),
    st.integers(1, 4),
)


@given(st.data())
def test_leaders_differ_by_one_and_replicas_by_the_factor(data: st.DataObject) -> None:
    racks: list[str | None] = data.draw(
        racks_of_one_size | st.integers(1, 8).map(lambda count: [None] * count)
    )
    brokers = cluster(racks)
    factor = data.draw(st.integers(1, min(len(racks), 4)))
    topics = data.draw(st.lists(st.integers(1, 20), max_size=12))

    there: list[PartitionState] = []
    for count in topics:
        states = placed(count, factor, brokers, there)
        assert not isinstance(states, Refused)
        there += states

    assert spread(brokers, Counter(each.leader for each in there)) <= 1
    assert spread(brokers, Counter(n for each in there for n in each.replicas)) <= max(factor, 1)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.data())
def test_replicas_are_in_as_many_racks_as_there_are(racks: list[str], data: st.DataObject) -> None:
    brokers = cluster(list(racks))
    factor = data.draw(st.integers(1, len(racks)))
    states = placed(data.draw(st.integers(1, 30)), factor, brokers, [])

    for each in replicas(states):
        assert len(set(each)) == factor
        assert len({racks[n - 1] for n in each}) == min(factor, len(set(racks)))


def test_an_assignment_is_taken_as_it_is() -> None:
    states = assigned([(TWO, ONE), (THREE, TWO)], live(ONE, TWO, THREE))

    assert replicas(states) == [(2, 1), (3, 2)]


def test_a_stopping_broker_holds_what_it_is_assigned_and_does_not_lead_it() -> None:
    states = assigned([(ONE, TWO)], live(broker(ONE, is_stopping=True), TWO))

    assert states == [PartitionState((ONE, TWO), TWO, 0, (ONE, TWO), (), life(TWO))]


@pytest.mark.parametrize(
    "assignment",
    [[(ONE, TWO), ()], [(ONE, ONE)], [(ONE, FOUR)], [(ONE, TWO), (TWO,)]],
    ids=["empty", "one twice", "unknown", "of two sizes"],
)
def test_an_impossible_assignment_is_refused(assignment: list[tuple[NodeId, ...]]) -> None:
    refused = assigned(assignment, live(ONE, TWO, THREE))

    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.INVALID_REPLICATION_ASSIGNMENT


def wider(states: list[PartitionState], factor: int, brokers: Brokers) -> dict[int, PartitionState]:
    return widened({n: stored(each, 1) for n, each in enumerate(states)}, factor, brokers, states)


def test_a_replica_that_is_added_is_not_in_sync_and_the_leader_stays_in_its_epoch() -> None:
    alone = state(ONE, (ONE,), replicas=(ONE,))

    assert wider([alone], 3, live(ONE, TWO, THREE)) == {
        0: alone._replace(replicas=(TWO, ONE, THREE))
    }


def test_no_more_replicas_are_added_than_were_asked_for_and_none_is_removed() -> None:
    brokers = live(ONE, TWO, THREE, FOUR)
    two = state(ONE, (TWO, ONE), replicas=(TWO, ONE))

    assert {*wider([two], 3, brokers)[0].replicas} == {ONE, TWO, THREE}
    assert wider([two], 2, brokers) == wider([two], 1, brokers) == {}
    assert wider([two], 3, live(ONE, TWO, broker(THREE, is_stopping=True))) == {}


def test_the_brokers_with_the_fewest_replicas_get_more_in_racks_that_have_none() -> None:
    alone = state(ONE, (ONE,), replicas=(ONE,))
    others = [
        state(TWO, (TWO,), replicas=(TWO,)),
        state(THREE, (THREE, TWO), replicas=(THREE, TWO)),
    ]

    brokers = live(ONE, TWO, THREE, FOUR)
    assert {*wider([alone, *others], 2, brokers)[0].replicas} == {ONE, FOUR}
    brokers = live(broker(ONE, rack="a"), broker(TWO, rack="b"), broker(FOUR, rack="a"))
    assert {*wider([alone, *others], 2, brokers)[0].replicas} == {ONE, TWO}


def test_the_partitions_of_a_first_broker_are_spread_over_those_that_come() -> None:
    brokers = live(ONE, TWO, THREE)
    alone = [state(ONE, (ONE,), replicas=(ONE,))] * 16
    spread_out = [*wider(alone, 3, brokers).values()]

    assert sorted(Counter(each.replicas[0] for each in spread_out).values()) == [5, 5, 6]
    assert {each.isr for each in spread_out} == {(ONE,)}


def test_the_sets_of_replicas_keep_the_replicas_order() -> None:
    two = state(ONE, (ONE, TWO), replicas=(ONE, TWO))
    busy = [state(ONE, (ONE,), replicas=(ONE,))] * 2
    found = widened({0: stored(two)}, 3, live(ONE, TWO, THREE), [two, *busy])[0]

    assert found.replicas[0] == TWO
    assert found.isr == (TWO, ONE)
    found = widened(
        {0: stored(two._replace(isr=(ONE,), eligible=(TWO,)))},
        3,
        live(ONE, TWO, THREE),
        [two, *busy],
    )[0]
    assert (found.isr, found.eligible) == ((ONE,), (TWO,))


def test_a_partition_that_waits_for_an_election_gets_no_replicas() -> None:
    brokers = live(ONE, TWO, THREE)
    nobody = state(NO_LEADER, (FOUR,), replicas=(FOUR,))
    came_back = live(broker(ONE, NEW, number=2), TWO, THREE)

    assert wider([nobody], 3, brokers) == {}
    assert wider([state(ONE, (ONE,), replicas=(ONE,))], 3, came_back) == {}
