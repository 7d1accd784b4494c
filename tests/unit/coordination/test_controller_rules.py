"""The controller's rules, row by row: what is stored, who is registered, what follows."""

import pytest

from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.controller.rules import (
    Brokers,
    Refused,
    UncleanElection,
    behind,
    changes,
    given_up,
    handed_over,
    isr_changed,
    isr_size_needed,
    moved_back,
    settled,
    unclean,
    without,
)
from fencelog.errors import ErrorCode
from fencelog.types import LeaderEpoch, NodeId
from tests.unit.coordination.cluster import (
    NEW,
    ONE,
    THREE,
    TWO,
    broker,
    full,
    life,
    live,
    state,
    stored,
)

ALL = (ONE, TWO, THREE)


def to(heir: NodeId) -> PartitionState:
    """Led by the first of all, who is to hand over."""
    return state(ONE, ALL)._replace(heir=heir)


ROWS = {
    "all is well": (state(ONE, ALL), live(*ALL), state(ONE, ALL)),
    "the leader is gone": (state(ONE, ALL), live(TWO, THREE), state(TWO, (TWO, THREE), epoch=6)),
    "a follower is gone: no new epoch": (state(ONE, ALL), live(ONE, TWO), state(ONE, (ONE, TWO))),
    "below min.insync.replicas who leaves is eligible": (
        state(ONE, (ONE, TWO)),
        live(ONE, THREE),
        state(ONE, (ONE,), (TWO,)),
    ),
    "both followers are gone at once: both have everything": (
        state(ONE, ALL),
        live(ONE),
        state(ONE, (ONE,), (TWO, THREE)),
    ),
    "the last member stays in the ISR": (
        state(ONE, (ONE,)),
        live(TWO, THREE),
        state(NO_LEADER, (ONE,), epoch=6),
    ),
    "all are gone at once: the ISR stays": (
        state(ONE, ALL),
        live(),
        state(NO_LEADER, ALL, epoch=6),
    ),
    "no leader and none to elect: nothing changes": (
        state(NO_LEADER, (ONE,), epoch=6),
        live(TWO),
        state(NO_LEADER, (ONE,), epoch=6),
    ),
    "the last member is back": (
        state(NO_LEADER, (ONE,), epoch=6),
        live(TWO, broker(ONE, NEW, number=2)),
        state(ONE, (ONE,), epoch=7)._replace(leader_life=life(ONE, 2)),
    ),
    "a live eligible replica, where the ISR is gone": (
        state(ONE, (ONE,), (TWO,)),
        live(TWO, THREE),
        state(TWO, (TWO,), (ONE,), epoch=6),
    ),
    "the ISR goes before the eligible": (
        state(NO_LEADER, (THREE,), (ONE,)),
        live(ONE, THREE),
        state(THREE, (THREE,), (ONE,), epoch=6),
    ),
    "an eligible one after a power loss of the ISR": (
        state(NO_LEADER, (), (TWO,)),
        live(*ALL),
        state(TWO, (TWO,), epoch=6),
    ),
    "nobody after a power loss of all": (
        state(NO_LEADER, ()),
        live(*ALL),
        state(NO_LEADER, ()),
    ),
    "the leader has another life, and others are in sync": (
        state(ONE, ALL),
        live(broker(ONE, NEW, number=2), TWO, THREE),
        state(TWO, (TWO, THREE), epoch=6),
    ),
    "the leader has another life, alone in the ISR": (
        state(ONE, (ONE,)),
        live(broker(ONE, NEW, number=2), TWO, THREE),
        state(ONE, (ONE,), epoch=6)._replace(leader_life=life(ONE, 2)),
    ),
    "another life of the leader that an older state hides": (
        state(ONE, (ONE,)),
        live(broker(ONE, number=2)),
        state(ONE, (ONE,), epoch=6)._replace(leader_life=life(ONE, 2)),
    ),
    "a follower came back: the leader adds it again": (
        state(ONE, ALL),
        live(ONE, TWO, broker(THREE, NEW, number=2)),
        state(ONE, (ONE, TWO)),
    ),
    "all came back": (
        state(ONE, (ONE, TWO)),
        live(broker(ONE, NEW, number=2), broker(TWO, NEW, number=2)),
        state(ONE, (ONE, TWO), epoch=6)._replace(leader_life=life(ONE, 2)),
    ),
    "the leader stops": (
        state(ONE, ALL),
        live(broker(ONE, NEW, is_stopping=True), TWO, THREE),
        to(TWO),
    ),
    "the leader stops, and no other is in sync": (
        state(ONE, (ONE,), (TWO,)),
        live(broker(ONE, NEW, is_stopping=True), TWO, THREE),
        state(ONE, (ONE,), (TWO,)),
    ),
    "one that stops is elected last": (
        state(ONE, ALL),
        live(broker(TWO, NEW, is_stopping=True), THREE),
        state(THREE, (TWO, THREE), epoch=6),
    ),
    "one that stops is elected where no other is": (
        state(ONE, ALL),
        live(broker(TWO, NEW, is_stopping=True)),
        state(TWO, (TWO,), (ONE, THREE), epoch=6),
    ),
    "two stop: the leader keeps it": (
        state(ONE, (ONE, TWO)),
        live(broker(ONE, NEW, is_stopping=True), broker(TWO, NEW, is_stopping=True)),
        state(ONE, (ONE, TWO)),
    ),
    "a follower came back and stops already": (
        state(ONE, ALL),
        live(ONE, TWO, broker(THREE, NEW, number=2, is_stopping=True, begun_at=NEW)),
        state(ONE, (ONE, TWO)),
    ),
    "the leader's disk is full": (
        state(ONE, ALL),
        live(full(ONE), TWO, THREE),
        to(TWO),
    ),
    "the disks of two are full": (
        state(ONE, ALL),
        live(full(ONE), full(TWO), THREE),
        to(THREE),
    ),
    "all disks are full: the leader keeps it": (
        state(ONE, ALL),
        live(full(ONE), full(TWO), full(THREE)),
        state(ONE, ALL),
    ),
    "the leader's disk is full, and no other is in sync": (
        state(ONE, (ONE,), (TWO,)),
        live(full(ONE), TWO, THREE),
        state(ONE, (ONE,), (TWO,)),
    ),
    "a follower's disk is full: nobody waits for it": (
        state(ONE, ALL),
        live(ONE, full(TWO), THREE),
        state(ONE, (ONE, THREE)),
    ),
    "one with room is elected first": (
        state(ONE, ALL),
        live(full(TWO), THREE),
        state(THREE, (THREE,), (ONE, TWO), epoch=6),
    ),
    "one without room is elected where no other is": (
        state(ONE, ALL),
        live(full(TWO)),
        state(TWO, (TWO,), (ONE, THREE), epoch=6),
    ),
    "one without room leads rather than one that stops": (
        state(ONE, ALL),
        live(broker(ONE, NEW, is_stopping=True), full(TWO), broker(THREE, NEW, is_stopping=True)),
        to(TWO),
    ),
    "the heir leads in its turn": (to(TWO), live(*ALL), to(TWO)),
    "the heir is gone": (to(TWO), live(ONE, THREE), state(ONE, (ONE, THREE))),
    "the heir came back": (
        to(TWO),
        live(ONE, broker(TWO, NEW, number=2), THREE),
        state(ONE, (ONE, THREE)),
    ),
    "the heir stops": (
        to(TWO),
        live(ONE, broker(TWO, NEW, is_stopping=True), THREE),
        state(ONE, ALL),
    ),
    "the heir's disk is full": (to(TWO), live(ONE, full(TWO), THREE), state(ONE, (ONE, THREE))),
    "another one is to lead, since the leader stops": (
        to(THREE),
        live(broker(ONE, NEW, is_stopping=True), TWO, THREE),
        to(TWO),
    ),
    "a leader with an heir is gone: the first one is elected": (
        to(THREE),
        live(TWO, THREE),
        state(TWO, (TWO, THREE), epoch=6),
    ),
    "eligible no more: min.insync.replicas was lowered": (
        state(ONE, (ONE, TWO), (THREE,)),
        live(*ALL),
        state(ONE, (ONE, TWO)),
    ),
}


@pytest.mark.parametrize(("before", "brokers", "after"), ROWS.values(), ids=ROWS)
def test_a_state_follows_from_who_is_registered(
    before: PartitionState, brokers: Brokers, after: PartitionState
) -> None:
    assert settled(stored(before), brokers) == after


@pytest.mark.parametrize(("before", "brokers", "after"), ROWS.values(), ids=ROWS)
def test_only_what_is_not_as_it_should_be_is_changed(
    before: PartitionState, brokers: Brokers, after: PartitionState
) -> None:
    found = changes({"k": stored(before)}, brokers)

    assert found == ({} if before == after else {"k": after})
    assert changes({"k": stored(after, version=NEW + 1)}, brokers) == {}


def test_the_last_one_with_no_minimum_leaves_nobody_eligible() -> None:
    # min.insync.replicas 1: the leader may go on alone, so who left has not everything.
    after = settled(stored(state(ONE, (ONE, TWO)), min_isr=1), live(ONE))

    assert after == state(ONE, (ONE,))


def test_the_leadership_moves_back_to_the_first_replica() -> None:
    partitions = {"k": stored(state(TWO, ALL))}

    asked = state(TWO, ALL)._replace(heir=ONE)
    assert moved_back(partitions, live(*ALL)) == {"k": asked}
    assert moved_back({"k": stored(asked)}, live(*ALL)) == {}
    moved = state(ONE, ALL, epoch=6)
    assert handed_over(asked, live(*ALL)) == moved
    assert moved_back({"k": stored(moved)}, live(*ALL)) == {}


@pytest.mark.parametrize(
    ("before", "brokers", "after"),
    [
        (to(THREE), live(*ALL), state(THREE, ALL, epoch=6)),
        (to(THREE), live(ONE, TWO), state(ONE, ALL, epoch=6)),
        (state(ONE, ALL), live(broker(ONE, NEW, is_stopping=True), TWO), state(TWO, ALL, epoch=6)),
        (state(ONE, (ONE, TWO)), live(full(ONE), THREE), state(ONE, (ONE, TWO), epoch=6)),
        (to(THREE), live(), None),
    ],
    ids=["to the heir", "it is gone", "it was given up", "to itself", "nobody is registered"],
)
def test_a_leader_that_serves_nobody_any_more_lets_another_one_lead(
    before: PartitionState, brokers: Brokers, after: PartitionState | None
) -> None:
    assert handed_over(before, brokers) == after


def test_a_replica_that_leaves_is_no_heir() -> None:
    assert isr_changed(to(THREE), (ONE, TWO), 2).heir == NO_LEADER
    assert isr_changed(to(THREE), (ONE, THREE), 2).heir == THREE
    assert without(to(THREE), THREE).heir == NO_LEADER
    assert without(to(THREE), TWO).heir == THREE
    assert without(to(THREE), ONE).heir == NO_LEADER
    newer = behind(to(THREE), LeaderEpoch(9))
    assert newer is not None
    assert newer.heir == NO_LEADER


@pytest.mark.parametrize(
    ("before", "brokers"),
    [
        (state(TWO, (TWO, THREE)), live(*ALL)),
        (state(TWO, ALL), live(TWO, THREE)),
        (state(TWO, ALL), live(broker(ONE, NEW, is_stopping=True), TWO, THREE)),
        (state(TWO, ALL), live(full(ONE), TWO, THREE)),
        (state(TWO, ALL), live(broker(ONE, NEW, number=2), TWO, THREE)),
        (state(TWO, ALL), live(ONE, TWO)),
        (state(NO_LEADER, (THREE,)), live(ONE, TWO)),
    ],
    ids=[
        "not in sync",
        "gone",
        "stops",
        "full disk",
        "came back",
        "another change is due",
        "no leader",
    ],
)
def test_it_does_not_move_back(before: PartitionState, brokers: Brokers) -> None:
    assert moved_back({"k": stored(before)}, brokers) == {}


def test_who_leaves_an_isr_that_is_large_enough_is_not_eligible() -> None:
    assert isr_changed(state(ONE, ALL), (ONE, THREE), 2) == state(ONE, (ONE, THREE))


def test_who_leaves_an_isr_that_is_too_small_is_eligible_until_it_is_larger_again() -> None:
    # KIP-966
    alone = isr_changed(state(ONE, ALL), (ONE,), 3)
    assert alone == state(ONE, (ONE,), (TWO, THREE))

    two = isr_changed(alone, (THREE, ONE), 3)
    assert two == state(ONE, (ONE, THREE), (TWO,))

    assert isr_changed(two, ALL, 3) == state(ONE, ALL)
    assert isr_changed(alone, (ONE, TWO), 2) == state(ONE, (ONE, TWO))


@pytest.mark.parametrize(
    ("before", "isr"),
    [
        (state(ONE, ALL), (TWO, THREE)),
        (state(ONE, ALL), ()),
        (state(ONE, ALL), (ONE, TWO, TWO)),
        (state(ONE, ALL), (ONE, 4)),
        (state(NO_LEADER, ALL), ALL),
    ],
    ids=["without the leader", "empty", "one twice", "not a replica", "no leader"],
)
def test_an_impossible_isr_is_an_internal_error(before: PartitionState, isr: tuple) -> None:
    with pytest.raises(AssertionError):
        isr_changed(before, isr, 2)


@pytest.mark.parametrize(
    ("of", "min_isr", "needed"),
    [
        (state(ONE, ALL), 2, 2),
        (state(ONE, (ONE,)), 2, 2),
        (state(ONE, (ONE,), (TWO,)), 2, 2),
        (state(ONE, (ONE,), (TWO,)), 1, 2),
        (state(ONE, (ONE, THREE), (TWO,)), 1, 3),
    ],
)
def test_with_eligible_replicas_the_isr_is_too_small(
    of: PartitionState, min_isr: int, needed: int
) -> None:
    assert isr_size_needed(of, min_isr) == needed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(ONE, ALL), state(ONE, (ONE, THREE))),
        (state(TWO, (ONE, TWO)), state(NO_LEADER, (ONE,), epoch=6)),
        (state(ONE, (ONE,), (TWO,)), state(ONE, (ONE,))),
        (state(NO_LEADER, (TWO,), (ONE,)), state(NO_LEADER, (), (ONE,))),
        (state(TWO, (TWO,)), state(NO_LEADER, (), epoch=6)),
        (state(ONE, (ONE, THREE)), state(ONE, (ONE, THREE))),
    ],
    ids=["a member", "the leader", "eligible", "the last member", "the last leader", "neither"],
)
def test_who_may_have_lost_records_is_neither_in_sync_nor_eligible(
    before: PartitionState, after: PartitionState
) -> None:
    assert without(before, TWO) == after


def test_an_unclean_election_names_the_replicas_whose_records_may_be_lost() -> None:
    before = state(NO_LEADER, (THREE,), (ONE,))

    assert unclean(before, TWO, live(TWO)) == UncleanElection(
        state(TWO, (TWO,), epoch=6), given_up=(ONE, THREE)
    )
    waiting = state(NO_LEADER, ())
    assert unclean(waiting, ONE, live(ONE)) == UncleanElection(state(ONE, (ONE,), epoch=6), ())


@pytest.mark.parametrize(
    ("before", "brokers", "error"),
    [
        (state(THREE, (THREE,)), live(TWO, THREE), ErrorCode.ELECTION_NOT_NEEDED),
        (state(NO_LEADER, (ONE,), (THREE,)), live(TWO, THREE), ErrorCode.ELECTION_NOT_NEEDED),
        (state(NO_LEADER, (ONE,)), live(THREE), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (
            state(NO_LEADER, (ONE,), replicas=(ONE, THREE)),
            live(TWO),
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ),
    ],
    ids=["in sync", "eligible", "not live", "not a replica"],
)
def test_an_unclean_election_is_refused(
    before: PartitionState, brokers: Brokers, error: ErrorCode
) -> None:
    refused = unclean(before, TWO, brokers)

    assert isinstance(refused, Refused)
    assert refused.error is error


@pytest.mark.parametrize(
    ("before", "live_ones", "after"),
    [
        (state(ONE, ALL), ALL, state(NO_LEADER, (TWO, THREE), epoch=6)),
        (state(TWO, ALL), ALL, state(TWO, (TWO, THREE))),
        (state(ONE, (ONE,), (TWO,)), ALL, state(NO_LEADER, (), (TWO,), epoch=6)),
        (state(TWO, (TWO, THREE)), ALL, state(TWO, (TWO, THREE))),
        (state(ONE, (ONE,)), ALL, None),
        (state(ONE, (ONE, TWO)), (ONE, THREE), None),
    ],
)
def test_a_failed_replica_is_given_up_if_another_live_one_has_everything(
    before: PartitionState, live_ones: tuple[NodeId, ...], after: PartitionState | None
) -> None:  # F1, D3
    assert given_up(before, ONE, live_ones) == after
