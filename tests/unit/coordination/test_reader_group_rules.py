"""What readers of a group do next, and when an update of theirs has no effect (R5 to R11)."""

from dataclasses import replace

import pytest

from fencelog.coordination.reader_group.replay import apply, refusal, replay
from fencelog.coordination.reader_group.rules import (
    Reach,
    Shed,
    Take,
    detectors,
    fair_shares,
    is_balanced,
    next_step,
)
from fencelog.coordination.reader_group.state import (
    CHECKPOINTS_MAX,
    EMPTY,
    READERS_MAX,
    SEGMENTS_MAX,
    Checkpoint,
    GroupState,
    Owned,
    Position,
    Reader,
    Settings,
    dump,
    load,
)
from fencelog.coordination.reader_group.updates import (
    CheckpointBegun,
    CheckpointDropped,
    CheckpointReached,
    Completed,
    Created,
    Joined,
    Released,
    Reset,
    Took,
    Update,
    WentOffline,
    dump_update,
    load_update,
)

SETTINGS = Settings(stream="s", topic_id="00", start={0: 5}, end={0: 9})


def group(*updates: Update, segments: int = 4) -> GroupState:
    """A group with so many segments, after these updates."""
    state = replay(EMPTY, Created(SETTINGS, 7, dict.fromkeys(range(segments), 0)), 0)
    for offset, update in enumerate(updates, 1):
        assert refusal(state, update) is None, update
        state = apply(state, dump_update(update), offset)
    return state


def owning(*counts: int, unassigned: int = 0) -> GroupState:
    """Readers a, b … with so many segments each."""
    free = iter(range(sum(counts) + unassigned))
    readers = {
        name: Reader(1, {next(free): Owned(0, 0, 0) for _ in range(count)})
        for name, count in zip("abcdef", counts, strict=False)
    }
    left = {index: Position(0, 0) for index in free}
    return GroupState(settings=SETTINGS, readers=readers, unassigned=left)


def step(state: GroupState, name: str, *, may_shed: bool = True, take_max: int = 10) -> object:
    return next_step(state, name, may_shed=may_shed, take_max=take_max)


@pytest.mark.parametrize(
    ("counts", "unassigned", "shares"),
    [
        ((4, 0), 0, [2, 2]),
        ((2, 2, 0), 0, [2, 1, 1]),
        ((1, 2, 0), 0, [1, 1, 1]),
        ((0, 2), 1, [1, 2]),
        ((0, 0), 1, [1, 0]),
        ((5,), 0, [5]),
    ],
)
def test_all_have_the_same_and_who_has_most_keeps_what_remains(
    counts: tuple[int, ...], unassigned: int, shares: list[int]
) -> None:
    # R7
    found = fair_shares(owning(*counts, unassigned=unassigned))
    assert found == dict(zip("abcdef", shares, strict=False))


def test_only_who_has_more_than_its_share_gives_a_segment_away() -> None:
    # R7
    assert step(owning(3, 1), "a") == Shed(2)
    assert step(owning(3, 1), "a", may_shed=False) is None
    assert step(owning(3, 1), "b") is None
    for counts in ((2, 2), (2, 1), (1, 1, 0), (0, 0)):
        state = owning(*counts)
        assert is_balanced(state)
        assert {step(state, name) for name in state.readers} == {None}


def test_the_segment_that_was_taken_last_is_given_away() -> None:
    state = owning(2, 0)
    segments = {0: Owned(0, 0, 5), 1: Owned(0, 0, 3)}
    readers = {**state.readers, "a": Reader(1, segments)}
    assert step(GroupState(settings=SETTINGS, readers=readers), "a") == Shed(0)


def test_readers_take_up_to_their_shares_and_not_the_same_ones() -> None:
    # R7
    state = owning(0, 0, unassigned=4)
    assert step(state, "a") == Take((0, 1))
    assert step(state, "b") == Take((2, 3))
    assert step(state, "b", take_max=1) == Take((2,))
    assert step(owning(2, 0, unassigned=1), "a") is None


def test_a_checkpoint_comes_before_all_else() -> None:
    # R10
    state = replay(owning(3, 0), CheckpointBegun("c"), 9)
    assert step(state, "a") == Reach(("c",))
    assert step(state, "b") is None
    reached = replay(state, CheckpointReached("a", 1, ("c",), {0: 1, 1: 2, 2: 3}), 10)
    assert reached.checkpoints["c"] == Checkpoint({0: 1, 1: 2, 2: 3}, frozenset())
    assert step(reached, "a") == Shed(2)


def test_a_successor_of_a_merge_is_readable_with_the_last_predecessor() -> None:
    # R8
    state = group(Joined("a", 1), Took("a", 1, (0, 1)), segments=2)
    state = replay(state, Completed("a", 1, 0, 10, {2: (0, 1)}), 3)
    assert (state.unassigned, state.future[2].waiting) == ({}, {1})
    assert state.cut() == {0: 10, 1: 0}
    state = replay(state, Completed("a", 1, 1, 20, {2: (0, 1)}), 4)
    assert (state.unassigned, state.future) == ({2: Position(0, 4)}, {})
    assert state.origin_of(2) == 4
    assert state.origin_of(0) is None


def test_a_segment_that_is_given_away_is_taken_at_exactly_that_position() -> None:
    # R7
    state = group(Joined("a", 1), Took("a", 1, (0,)), Released("a", 1, 0, 17))
    assert state.unassigned[0] == Position(17, 0)
    state = replay(state, Joined("b", 1), 4)
    state = replay(state, Took("b", 1, (0,)), 5)
    assert state.readers["b"].segments[0] == Owned(17, 0, 5)
    assert state.origin_of(0) == 0


def test_an_update_of_an_incarnation_that_is_not_online_has_no_effect() -> None:
    # R6
    state = group(Joined("a", 1), Took("a", 1, (0,)), Joined("a", 2))
    assert state.unassigned.keys() == {0, 1, 2, 3}
    for update in (
        Took("a", 1, (1,)),
        Released("a", 1, 0, 5),
        Completed("a", 1, 0, 5, {}),
        CheckpointReached("a", 1, (), {}),
        WentOffline("a", 1, {}),
        Joined("a", 1),
        Joined("a", 2),
    ):
        assert refusal(state, update) is not None
        assert replay(state, update, 9) is state


def test_offline_without_positions_goes_on_where_the_state_has_it() -> None:
    # R9
    taken = [Joined("a", 1), Took("a", 1, (0, 1))]
    reached = [CheckpointBegun("c"), CheckpointReached("a", 1, ("c",), {0: 5, 1: 6})]
    state = group(*taken, *reached, WentOffline("a", 1, {}), segments=2)
    assert state.unassigned == {0: Position(5, 0), 1: Position(6, 0)}
    state = group(*taken, WentOffline("a", 1, {0: 9}), segments=2)
    assert state.unassigned == {0: Position(9, 0), 1: Position(0, 0)}
    # An operator's positions count as they are, whatever was committed since.
    exact = WentOffline("a", 1, {0: 2}, is_exact=True)
    state = group(*taken, *reached, exact, segments=2)
    assert state.unassigned == {0: Position(2, 5), 1: Position(6, 0)}


def test_positions_do_not_go_back() -> None:
    # R5
    state = group(Joined("a", 1), Took("a", 1, (0,)), Released("a", 1, 0, 5), Took("a", 1, (0,)))
    for update in (
        Released("a", 1, 0, 4),
        Completed("a", 1, 0, 4, {}),
        CheckpointReached("a", 1, (), {0: 4}),
        Released("a", 1, 1, 9),
    ):
        assert refusal(state, update) is not None
    assert replay(state, WentOffline("a", 1, {0: 4}), 9).unassigned[0].offset == 5


def test_what_was_recorded_first_is_the_position_of_a_checkpoint() -> None:
    # R10
    state = group(Joined("a", 1), Took("a", 1, (0, 1)), CheckpointBegun("c"), segments=3)
    assert state.checkpoints["c"] == Checkpoint({2: 0}, frozenset({0, 1}))
    state = replay(state, Released("a", 1, 0, 5), 4)
    state = replay(state, Took("a", 1, (0,)), 5)
    state = replay(state, CheckpointReached("a", 1, ("c", "gone"), {0: 9, 1: 3}), 6)
    assert state.checkpoints["c"].positions == {0: 5, 1: 3, 2: 0}
    state = replay(state, Reset(state.checkpoints["c"].positions), 7)
    assert state.unassigned == {0: Position(5, 7), 1: Position(3, 7), 2: Position(0, 7)}
    assert state.readers == {"a": Reader(1, {})}
    assert replay(state, CheckpointDropped("c"), 8).checkpoints == {}


def test_with_a_reset_to_a_stream_that_was_made_again_nothing_of_the_earlier_one_is_left() -> None:
    # R10
    state = group(Joined("a", 1), Took("a", 1, (0, 1)), CheckpointBegun("c"), segments=2)
    state = replay(state, CheckpointReached("a", 1, ("c",), {0: 5, 1: 3}), 4)
    assert state.checkpoints["c"].is_complete
    state = apply(state, dump_update(Reset({0: 0}, "another")), 5)
    assert state.settings == replace(SETTINGS, topic_id="another")
    assert (state.unassigned, state.checkpoints) == ({0: Position(0, 5)}, {})
    assert load_update(["reset", [[0, 1]]]) == Reset({0: 1})


def test_the_oldest_complete_checkpoint_gives_way() -> None:
    state = group()
    for number in range(CHECKPOINTS_MAX + 1):
        state = replay(state, CheckpointBegun(f"c{number}"), 1)
    assert next(iter(state.checkpoints)) == "c1"
    assert len(state.checkpoints) == CHECKPOINTS_MAX
    state = group(Joined("a", 1), Took("a", 1, (0,)))
    for number in range(CHECKPOINTS_MAX):
        state = replay(state, CheckpointBegun(f"c{number}"), 1)
    assert "drop one" in (refusal(state, CheckpointBegun("d")) or "")
    assert "there is a checkpoint" in (
        refusal(group(CheckpointBegun("c")), CheckpointBegun("c")) or ""
    )
    assert "no checkpoint" in (refusal(state, CheckpointDropped("d")) or "")


def test_a_group_has_limits() -> None:
    full = {str(number): Reader(1, {}) for number in range(READERS_MAX)}
    state = GroupState(settings=SETTINGS, readers=full)
    assert "1000 readers" in (refusal(state, Joined("one more", 1)) or "")
    assert refusal(state, Joined("7", 2)) is None
    many = {index: Position(0, 0) for index in range(SEGMENTS_MAX - 1)}
    one = {"a": Reader(1, {SEGMENTS_MAX: Owned(0, 0, 0)})}
    state = GroupState(settings=SETTINGS, readers=one, unassigned=many)
    completed = Completed("a", 1, SEGMENTS_MAX, 5, {20_000: (SEGMENTS_MAX,)})
    assert "at most 10000 segments" in (refusal(state, completed) or "")
    assert refusal(state, Reset({})) is not None
    strange = Completed("a", 1, SEGMENTS_MAX, 5, {20_000: (3,)})
    assert "no predecessor" in (refusal(state, strange) or "")


def test_nothing_happens_before_a_group_is_created_and_it_is_created_once() -> None:
    # R4
    assert refusal(EMPTY, Joined("a", 1)) == "the group was not created"
    assert refusal(group(), Created(SETTINGS, 0, {})) == "the group was created before"
    assert not EMPTY.is_finished
    state = group(Joined("a", 1), Took("a", 1, (0,)), segments=1)
    assert not state.is_finished
    assert replay(state, Completed("a", 1, 0, 9, {}), 3).is_finished


def test_one_reader_declares_another_offline_and_the_others_wait_their_turn() -> None:
    # R9
    state = owning(0, 0, 0)
    assert detectors(state, "a") == ["b", "c"]
    assert detectors(state, "b") == ["c", "a"]
    assert detectors(state, "c") == ["a", "b"]


def test_the_state_and_its_updates_are_json() -> None:
    state = group(Joined("a", 1), Took("a", 1, (0, 1)), CheckpointBegun("c"))
    state = replay(state, Completed("a", 1, 0, 9, {4: (0, 2), 5: (0,)}), 4)
    assert load(dump(state)) == state
    assert load(dump(EMPTY)) == EMPTY
    plain = Settings(stream="s", topic_id="00")
    assert load_update(dump_update(Created(plain, 3, {0: 1}))) == Created(plain, 3, {0: 1})
    with pytest.raises(ValueError, match="no update of a reader group"):
        load_update(["strange", 1])
    with pytest.raises(ValueError, match="version 2"):
        load({"version": 2})
