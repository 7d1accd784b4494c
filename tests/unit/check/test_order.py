"""The order of sends, the ends of partitions, and circles of transactions."""

import pytest

from tests.unit.check.writing import Written, poll, send, who


def test_a_later_send_of_an_operation_at_a_lower_offset_is_nonmonotonic() -> None:
    h = Written()
    h.ok("w", send("x", "c", 3), send("x", "a", 1))
    h.ok("r", poll(x=[(1, "a"), (3, "c")]))
    assert h.only("int-nonmonotonic-send").offsets == (3, 1)


def test_two_sends_of_an_operation_at_one_offset_are_out_of_order_too() -> None:
    h = Written()
    h.ok("w", send("x", "a", 1), send("x", "b", 1))
    assert "int-nonmonotonic-send" in h.kinds()


def test_a_send_below_one_that_was_acknowledged_before_it_is_nonmonotonic() -> None:
    h = Written()
    first = h.ok("w", send("x", "c", 3), send("x", "d", 4))
    second = h.ok("w", send("x", "a", 1), send("x", "b", 2))
    h.ok("r", poll(x=[(1, "a"), (2, "b"), (3, "c"), (4, "d")]))
    finding = h.only("nonmonotonic-send")
    assert (finding.offsets, who(finding)) == ((4, 1), [("w", first), ("w", second)])


def test_a_send_without_a_known_end_may_arrive_late() -> None:
    h = Written()
    h.unknown("w", send("x", "a"))
    h.ok("w", send("x", "b", 0))
    h.ok("r", poll(x=[(0, "b"), (1, "a")]))
    assert h.verdict().valid


def test_sends_that_overlap_have_no_order() -> None:
    h = Written()
    first, second = h.begin("w", send("x", "a")), h.begin("w", send("x", "b"))
    h.end("ok", "w", first, send("x", "a", 1))
    h.end("ok", "w", second, send("x", "b", 0))
    h.ok("r", poll(x=[(0, "b"), (1, "a")]))
    assert h.verdict().valid


def test_other_records_between_the_sends_of_an_operation_are_reported_and_allowed() -> None:
    h = Written()
    h.ok("w", send("x", "a", 1), send("x", "c"), txn=True)
    h.unknown("v", send("x", "b"))
    h.ok("r", poll(x=[(1, "a"), (2, "b"), (3, "c")]))
    verdict = h.verdict()
    assert verdict.valid
    assert [each.offsets for each in verdict.notes] == [(1, 3)]


def test_a_gap_in_which_nothing_is_known_is_no_skip_of_sends() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 2))
    h.ok("r", poll(x=[(0, "a"), (2, "b")]))
    assert h.verdict().found == {}


@pytest.mark.parametrize(
    "end", [(5, 4, 9, 9), (0, 4, 3, 9), (0, 4, 9, 8)], ids=["start", "stable", "watermark"]
)
def test_the_four_offsets_of_an_end_must_be_in_order(end) -> None:
    h = Written()
    h.ends(x=end)
    assert "end-order" in h.kinds()


def test_a_last_stable_offset_below_the_high_watermark_hangs_in_the_end() -> None:
    h = Written()
    h.ends(x=(0, 3, 5, 5), y=(0, 5, 5, 5))
    finding = h.only("hanging-lso")
    assert (finding.key, finding.offsets) == ("x", (3, 5))


def test_only_the_last_end_shows_whether_a_transaction_hangs() -> None:
    h = Written()
    h.ends(x=(0, 3, 5, 5))
    h.ends(x=(0, 5, 5, 5))
    assert h.kinds() == {}


def test_two_transactions_that_read_from_each_other_are_a_circle() -> None:
    h = Written()
    a, b = h.begin("a", send("x", 1), txn=True), h.begin("b", send("y", 2), txn=True)
    h.end("ok", "a", a, send("x", 1, 0), poll(y=[(0, 2)]))
    h.end("ok", "b", b, send("y", 2, 0), poll(x=[(0, 1)]))
    finding = h.only("G1c")
    assert sorted(who(finding)) == [("a", a), ("b", b)]
    assert {each.what for each in finding.counterexample} == {
        "sent 1 to x, which b #2 polled",
        "sent 2 to y, which a #1 polled",
    }
    assert "component" not in finding.text


def test_outside_transactions_clients_may_see_what_each_other_sent() -> None:
    h = Written()
    a, b = h.begin("a", send("x", 1)), h.begin("b", send("y", 2))
    h.end("ok", "a", a, send("x", 1, 0), poll(y=[(0, 2)]))
    h.end("ok", "b", b, send("y", 2, 0), poll(x=[(0, 1)]))
    assert h.verdict().valid


def test_the_shortest_cycle_of_a_component_is_shown() -> None:
    h = Written()
    names = ["a", "b", "c", "d"]
    ids = {name: h.begin(name, send(f"k{name}", name), txn=True) for name in names}
    reads = {"b": ["a"], "c": ["b"], "d": ["c"], "a": ["d", "b"]}
    for name in names:
        seen = poll(**{f"k{other}": [(0, other)] for other in reads[name]})
        h.end("ok", name, ids[name], send(f"k{name}", name, 0), seen)
    finding = h.only("G1c")
    assert len(finding.counterexample) == 2
    assert "component of 4" in finding.text


def test_transactions_that_read_what_came_before_are_no_circle() -> None:
    h = Written()
    h.ok("a", send("x", 1, 0), txn=True)
    h.ok("b", send("y", 2, 0), poll(x=[(0, 1)]), txn=True)
    h.ok("a", send("x", 3, 1), poll(y=[(0, 2)]), txn=True)
    assert h.verdict().valid


def test_write_cycles_of_transactions_are_reported_and_allowed() -> None:
    h = Written()
    a = h.begin("a", send("x", "a"), send("y", "a"), txn=True)
    b = h.begin("b", send("x", "b"), send("y", "b"), txn=True)
    h.end("ok", "a", a, send("x", "a", 0), send("y", "a", 1))
    h.end("ok", "b", b, send("x", "b", 1), send("y", "b", 0))
    h.ok("r", poll(x=[(0, "a"), (1, "b")], y=[(0, "b"), (1, "a")]))
    verdict = h.verdict()
    assert verdict.valid
    assert verdict.found == {"G0": 1}


def test_reads_outside_a_circle_of_writes_do_not_change_its_name() -> None:
    h = Written()
    h.ok("c", send("z", "c", 0), send("z", "d", 1), txn=True)
    a = h.begin("a", send("x", "a"), send("y", "a"), txn=True)
    b = h.begin("b", send("x", "b"), send("y", "b"), txn=True)
    seen = poll(z=[(0, "c"), (1, "d")])
    h.end("ok", "a", a, seen, send("x", "a", 0), send("y", "a", 1))
    h.end("ok", "b", b, seen, send("x", "b", 1), send("y", "b", 0))
    h.ok("r", poll(x=[(0, "a"), (1, "b")], y=[(0, "b"), (1, "a")]))
    assert h.verdict().found == {"G0": 1}


def test_a_cycle_with_a_write_in_it_is_reported_and_allowed() -> None:
    h = Written()
    a = h.begin("a", send("x", "a"), send("y", "c"), txn=True)
    b = h.begin("b", send("y", "b"), txn=True)
    h.end("ok", "a", a, send("x", "a", 0), send("y", "c", 2))
    h.end("ok", "b", b, poll(x=[(0, "a")]), send("y", "b", 1))
    h.ok("r", poll(y=[(1, "b"), (2, "c")]))
    verdict = h.verdict()
    assert verdict.valid
    assert verdict.found == {"G1c-ww": 1}
