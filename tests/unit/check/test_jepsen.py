"""The cases that Jepsen tests its own Kafka checker with, as facts: same histories, same verdicts.

Not here: its helpers' tests, its generators', its measure of lag, and what follows from the keys of
a subscription (a history of ours says ``reset`` instead). Where we say more, a comment says why.
"""

import pytest

from tests.unit.check.writing import Records, Written, poll, send


def numbers(h: Written, count: int) -> None:
    h.ok("w", *(send("x", n, n) for n in range(count)))


def seen(*offsets: int) -> list[object]:
    return poll(x=[(n, n) for n in offsets])


def test_an_offset_that_is_read_and_written_with_two_values() -> None:
    h = Written()
    h.unknown("w", send("x", "a"))
    h.unknown("v", send("x", "c", 1), send("x", "b", 3), send("x", "d", 4), txn=True)
    h.ok("r", poll(x=[(0, "a"), (1, "b")]))
    finding = h.first("inconsistent-offset")
    assert (finding.offsets, set(finding.values)) == ((1,), {"b", "c"})
    assert h.first("duplicate").offsets == (1, 3)


@pytest.mark.parametrize("is_proven", [False, True])
def test_an_offset_of_a_crashed_transaction_counts_once_it_is_proven(is_proven) -> None:
    h = Written()
    h.unknown("a", send("x", 1, 0), send("y", 1), txn=True)
    h.ok("b", send("x", 2, 0))
    if is_proven:
        h.ok("c", poll(y=[(5, 1)]))
    assert ("inconsistent-offset" in h.kinds()) == is_proven


def test_a_failed_write_that_is_read() -> None:
    h = Written()
    h.failed("a", send("x", 2), send("y", 3))
    h.ok("b", poll(x=[(0, 2)]))
    assert h.only("aborted-read").values == (2,)


def test_writes_below_the_highest_read_are_lost() -> None:
    h = Written()
    h.ok("a", send("x", "a", 0))
    h.ok("a", send("x", "b", 1), send("x", "d", 3))
    h.unknown("b", send("x", "c"))
    h.ok("a", poll(x=[(2, "c")]))
    lost = [each.values for each in h.verdict().problems]
    assert lost == [("a",), ("b",)]


def test_a_write_whose_offset_another_one_took_is_lost() -> None:
    h = Written()
    h.ok("a", send("x", "a", 0))
    h.ok("b", send("x", "b", 0), send("x", "c", 2))
    h.ok("c", poll(x=[(0, "b"), (2, "c")]))
    assert h.first("lost-write").values == ("a",)


@pytest.mark.parametrize("is_proven", [False, True])
def test_a_crashed_transaction_loses_a_write_once_it_is_proven(is_proven) -> None:
    h = Written()
    h.unknown("a", send("x", "a"), send("y", "b", 0), txn=True)
    h.unknown("b", send("y", "c"))
    if is_proven:
        h.ok("c", poll(x=[(0, "a")]))
    h.ok("d", poll(y=[(1, "c")]))
    # What Jepsen finds as a lost write of a proven transaction is torn, by its right name.
    assert h.kinds() == ({"torn-transaction": 1} if is_proven else {})


def skips(*, resets: bool) -> Written:
    """Process p reads 1 2, then 4, then 7; 3 and 6 are known, 5 may be a gap."""
    h = Written()
    h.unknown("w", *(send("x", value) for value in "abcdg"))
    h.ok("p", poll(x=[(1, "a"), (2, "b")]))
    h.unknown("v", send("x", "c3"))
    h.ok("q", poll(x=[(3, "c3")]))
    if resets:
        h.reset("p")
    h.ok("p", poll(x=[(4, "d")]))
    if resets:
        h.reset("p")
    h.ok("v", send("x", "f", 6))
    h.ok("p", poll(x=[(7, "g")]))
    return h


def test_offsets_that_others_know_are_skipped() -> None:
    found = [each for each in skips(resets=False).verdict().problems if each.kind == "poll-skip"]
    assert sorted(each.offsets for each in found) == [(3, 4), (6, 7)]


def test_a_consumer_that_is_assigned_again_may_skip() -> None:
    assert "poll-skip" not in skips(resets=True).kinds()


def test_aborted_and_crashed_polls_begin_again_where_they_began() -> None:
    h = Written()
    numbers(h, 3)
    h.ok("r", seen(0), txn=True)
    h.failed("r", seen(1, 2), txn=True)
    h.unknown("r", seen(1, 2), txn=True)
    h.ok("r", seen(1, 2), txn=True)
    assert h.kinds() == {}


def test_an_abort_that_does_not_roll_back_skips_each_time() -> None:
    h = Written()
    numbers(h, 6)
    h.ok("r", seen(0), txn=True)
    h.failed("r", seen(1, 2), txn=True)
    h.failed("r", seen(3, 4), txn=True)
    h.ok("r", seen(5), txn=True)
    assert h.kinds() == {"poll-skip": 2}


def test_a_poll_without_a_known_end_can_skip_too() -> None:
    h = Written()
    numbers(h, 6)
    h.ok("r", seen(0), txn=True)
    h.failed("r", seen(1, 2), txn=True)
    h.unknown("r", seen(3, 4), txn=True)
    assert h.kinds() == {"poll-skip": 1}


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_reader_that_goes_back(is_reset) -> None:
    h = Written()
    h.ok("w", *(send("x", value) for value in "abcd"))
    h.ok("r", poll(x=[(1, "a"), (2, "b"), (3, "c")]))
    if is_reset:
        h.reset("r")
    h.ok("r", poll(x=[(2, "b"), (3, "c"), (4, "d")]))
    assert h.kinds() == ({} if is_reset else {"nonmonotonic-poll": 1})


def test_a_process_whose_sends_go_back() -> None:
    h = Written()
    h.ok("p", send("x", "c", 3), send("x", "d", 4))
    h.ok("p", send("x", "a", 1), send("x", "b", 2))
    assert h.only("nonmonotonic-send").values == ("d", "a")


def test_gaps_within_a_poll_and_between_two_polls_of_an_operation() -> None:
    h = Written()
    h.unknown("w", send("x", "a"), send("x", "b"), send("x", "d"))
    h.ok("p", poll(x=[(1, "a"), (4, "d")]))
    h.ok("q", poll(x=[(1, "a")]), poll(x=[(4, "d")]))
    h.ok("r", poll(x=[(2, "b")]))
    assert h.kinds() == {"int-poll-skip": 2}


def test_a_send_that_skips_is_allowed() -> None:
    h = Written()
    h.ok("w", send("x", "a", 1), send("x", "c"))
    h.unknown("v", send("x", "b"))
    h.ok("r", poll(x=[(2, "b"), (3, "c")]))
    # Jepsen's case also holds a lost write: no client read a, and one read on.
    assert h.verdict().found == {"lost-write": 1, "int-send-skip": 1}


@pytest.mark.parametrize(
    "polls",
    [[[(3, "c"), (1, "a")]], [[(2, "b"), (3, "c")], [(3, "c")]]],
    ids=["back in one poll", "the same in two"],
)
def test_polls_of_one_operation_that_go_back(polls: list[Records]) -> None:
    h = Written()
    h.unknown("w", send("x", "a"), send("x", "b"), send("x", "c"))
    h.ok("r", *(poll(x=each) for each in polls))
    assert h.kinds() == {"int-nonmonotonic-poll": 1}


def test_sends_of_one_operation_out_of_order_by_acknowledgements_or_by_reads() -> None:
    h = Written()
    h.ok("p", send("x", "c", 3), send("x", "a", 1))
    h.unknown("p", send("y", "d"), send("y", "b"))
    h.unknown("q", send("y", "c"))
    h.ok("r", poll(y=[(2, "b"), (3, "c"), (4, "d")]))
    assert h.kinds() == {"int-nonmonotonic-send": 2}


def test_a_value_that_was_written_at_one_offset_and_read_at_another() -> None:
    h = Written()
    h.ok("p", send("x", "a", 1))
    h.unknown("q", send("x", "b"))
    h.ok("r", poll(x=[(2, "b"), (3, "a")]))
    assert h.only("duplicate").offsets == (1, 3)


def test_many_values_at_the_same_two_offsets_are_all_found() -> None:
    h = Written()
    for value in range(10):
        h.ok("w", send("x", value, 0))
        h.ok("r", poll(x=[(1, value)]))
        h.reset("r")
    duplicates = [each for each in h.verdict().problems if each.kind == "duplicate"]
    assert {each.values[0] for each in duplicates} == set(range(10))
    inconsistent = [each for each in h.verdict().problems if each.kind == "inconsistent-offset"]
    assert {each.offsets for each in inconsistent} >= {(1,)}


def test_polls_of_a_failed_operation_show_duplicates_and_its_sends_do_not() -> None:
    h = Written()
    h.ok("w", send("x", 0, 1))
    h.failed("w", send("x", 1, 2))
    h.failed("r", poll(x=[(11, 0), (12, 1)]))
    assert h.first("duplicate").values == (0,)
    # Jepsen leaves out that 1 was visible at all, because its reader failed.
    assert h.kinds() == {"duplicate": 1, "aborted-read": 1}


def test_an_empty_history_is_not_valid() -> None:
    h = Written()
    h.reset("r")
    assert h.verdict().outcome == "nothing-checked"


def test_what_was_acknowledged_and_not_yet_polled_is_counted() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 1))
    h.ok("r", poll(x=[(0, "a")]))
    assert h.verdict().found == {"unread": 1}
    h.ok("r", poll(x=[(1, "b")]))
    assert h.verdict().found == {}


def test_a_transaction_that_observes_its_own_write() -> None:
    h = Written()
    h.ok("t", send("x", "a", 0), poll(x=[(0, "a")]), txn=True)
    h.only("precommitted-read")
