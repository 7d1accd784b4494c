"""When the readers of a group are taken for all that there are."""

from fencelog.client.streams.settling import SETTLE_MAX_S, SETTLE_S, Settling
from fencelog.coordination.reader_group.state import GroupState, Reader


def online(*readers: tuple[str, int]) -> GroupState:
    return GroupState(readers={name: Reader(incarnation, {}) for name, incarnation in readers})


def test_a_group_is_settled_a_while_after_the_last_reader_has_joined() -> None:
    settling = Settling()
    settling.look(online(("a", 1)), 100.0)
    assert settling.over_at_s == 100.0 + SETTLE_S
    settling.look(online(("a", 1), ("b", 1)), 100.5)
    assert settling.over_at_s == 100.5 + SETTLE_S


def test_who_is_known_or_has_left_changes_nothing() -> None:
    settling = Settling()
    settling.look(online(("a", 1), ("b", 1)), 100.0)
    settling.look(online(("a", 1), ("b", 1)), 100.5)
    settling.look(online(("b", 1)), 100.9)
    assert settling.over_at_s == 100.0 + SETTLE_S


def test_a_reader_that_has_begun_again_is_another_one() -> None:
    settling = Settling()
    settling.look(online(("a", 1)), 100.0)
    settling.look(online(("a", 2)), 100.5)
    assert settling.over_at_s == 100.5 + SETTLE_S


def test_readers_that_come_without_end_hold_nobody_up_for_longer() -> None:
    settling = Settling()
    settling.look(online(("a", 0)), 100.0)
    for turn in range(1, 40):
        settling.look(online(("a", turn)), 100.0 + turn * SETTLE_S / 2)
    assert settling.over_at_s == 100.0 + SETTLE_MAX_S


def test_who_joins_at_the_very_end_begins_a_new_while() -> None:
    settling = Settling()
    settling.look(online(("a", 1)), 100.0)
    settling.look(online(("a", 1), ("b", 1)), 100.0 + SETTLE_S)
    settled = 100.0 + SETTLE_S + SETTLE_MAX_S
    for turn in range(40):
        settling.look(online(("c", turn)), 101.5 + turn * SETTLE_S / 2)
    assert settling.over_at_s == settled
