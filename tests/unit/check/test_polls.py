"""Skips and steps back of readers, within operations and between them."""

import pytest

from tests.unit.check.writing import Written, poll, send, who


def log(*offsets: int) -> Written:
    """A history in which these offsets of x were sent, each with its own number as value."""
    h = Written()
    h.ok("w", *(send("x", offset, offset) for offset in offsets))
    return h


def x(*offsets: int) -> list[object]:
    return poll(x=[(offset, offset) for offset in offsets])


def test_gaps_where_nothing_is_known_are_no_skips() -> None:
    h = log(0, 3, 9)
    h.ok("r", x(0, 3))
    h.ok("r", x(9))
    assert h.verdict().valid


def test_a_jump_from_one_operation_to_the_next_is_a_poll_skip() -> None:
    h = log(0, 1, 2)
    first, other = h.ok("r", x(0)), h.ok("s", x(0, 1))
    second = h.ok("r", x(2))
    finding = h.only("poll-skip")
    assert finding.offsets == (1, 2)
    assert who(finding) == [("r", first), ("r", second), ("w", 1), ("s", other)]


def test_a_jump_within_a_poll_is_an_internal_skip() -> None:
    h = log(0, 1, 2)
    h.ok("s", x(1))
    h.ok("r", x(0, 2))
    assert h.only("int-poll-skip").offsets == (0, 1, 2)


def test_a_jump_between_the_polls_of_one_operation_is_an_internal_skip() -> None:
    h = log(0, 1, 2)
    h.ok("s", x(1))
    h.ok("r", x(0), x(2))
    assert h.only("int-poll-skip").offsets == (0, 1, 2)


def test_going_back_from_one_operation_to_the_next_is_nonmonotonic() -> None:
    h = log(0, 1, 2, 3)
    first = h.ok("r", x(0, 1, 2))
    second = h.ok("r", x(1, 2, 3))
    finding = h.only("nonmonotonic-poll")
    assert (finding.offsets, who(finding)) == ((2, 1), [("r", first), ("r", second)])


@pytest.mark.parametrize("steps", [[x(1, 0)], [x(0, 1), x(1)]])
def test_going_back_or_repeating_within_an_operation_is_internally_nonmonotonic(steps) -> None:
    h = log(0, 1)
    h.ok("r", *steps)
    assert list(h.kinds()) == ["int-nonmonotonic-poll"]


def test_a_reset_allows_both() -> None:
    h = log(0, 1, 2, 3)
    h.ok("r", x(1))
    h.reset("r")
    h.ok("r", x(3))
    h.reset("r")
    h.ok("r", x(0, 1, 2))
    assert h.verdict().valid


def test_a_reset_of_another_process_allows_nothing() -> None:
    h = log(0, 1)
    h.ok("r", x(0, 1))
    h.reset("s")
    h.ok("r", x(0))
    h.only("nonmonotonic-poll")


def test_a_reset_within_an_operation_parts_its_polls() -> None:
    h = log(0, 1, 2)
    h.ok("r", x(0, 1))
    op = h.begin("r")
    h.reset("r")
    h.end("ok", "r", op, x(2), x(0))
    h.ok("r", x(1))
    assert h.verdict().valid


def test_a_reset_within_an_operation_leaves_each_poll_in_order() -> None:
    h = log(0, 1)
    op = h.begin("r")
    h.reset("r")
    h.end("ok", "r", op, x(1, 0))
    h.only("int-nonmonotonic-poll")


def test_after_a_failed_transaction_a_reader_is_back_where_it_was() -> None:
    h = log(0, 1, 2)
    h.ok("r", x(0), txn=True)
    h.failed("r", x(1, 2), txn=True)
    h.ok("r", x(1, 2), txn=True)
    assert h.verdict().valid


def test_a_reader_that_goes_on_after_a_failed_transaction_skips() -> None:
    h = log(0, 1, 2)
    h.ok("r", x(0), txn=True)
    h.failed("r", x(1), txn=True)
    h.ok("r", x(2), txn=True)
    assert h.only("poll-skip").offsets == (1, 2)


@pytest.mark.parametrize("then", [x(1, 2), x(2)])
def test_after_an_operation_without_a_known_end_a_reader_is_in_either_place(then) -> None:
    h = log(0, 1, 2)
    h.ok("r", x(0), txn=True)
    h.unknown("r", x(1), txn=True)
    h.ok("r", then, txn=True)
    assert h.verdict().valid


def test_it_is_not_beyond_both() -> None:
    h = log(0, 1, 2, 3)
    h.ok("s", x(2))
    h.ok("r", x(0), txn=True)
    h.unknown("r", x(1), txn=True)
    h.ok("r", x(3), txn=True)
    h.only("poll-skip")


def test_a_final_reader_begins_at_the_start_of_the_log() -> None:
    h = log(0, 1)
    h.ok("r", x(0, 1))
    h.ok("final", x(1))
    assert h.kinds() == {"lost-write": 1, "poll-skip": 1}
    assert h.first("poll-skip").offsets == (0, 1)


def test_a_final_reader_that_is_sent_to_the_start_begins_there_too() -> None:
    h = log(0, 1)
    h.ok("final1", x(0, 1))
    h.reset("final2")
    h.ok("final2", x(1))
    assert h.only("poll-skip").offsets == (0, 1)


def test_what_was_deleted_may_be_skipped() -> None:
    h = log(0, 1, 2, 3)
    h.ok("s", x(0, 1))
    h.ok("r", x(0))
    h.ok("r", x(2))
    h.ok("final", x(2, 3))
    h.ends(x=(2, 4, 4, 4))
    assert h.verdict().valid


def test_operations_that_overlap_are_not_compared() -> None:
    h = log(0, 1)
    first, second = h.begin("r"), h.begin("r")
    h.end("ok", "r", second, x(1))
    h.end("ok", "r", first, x(0))
    assert h.verdict().valid
