"""Committed positions against outputs: each input below the position once, none above."""

from tests.unit.check.writing import Written, poll, send, who


def out(value: str, offset: int, source: int) -> list[object]:
    """An output at an offset, made from the input at another."""
    return [*send("out", value, offset), ["in", source]]


def pipeline() -> Written:
    """Three inputs."""
    h = Written()
    h.ok("w", *(send("in", n, n) for n in range(3)))
    return h


def copied(h: Written, *outputs: list[object], to: int, process: str = "c") -> int:
    return h.ok(process, *outputs, ["commit", "g", {"in": to}], txn=True)


def seen(h: Written, *values: str, committed: int = 3) -> Written:
    h.ok(
        "final",
        poll(**{"in": [(n, n) for n in range(3)], "out": list(enumerate(values))}),
    )
    h.group_end("g", **{"in": committed})
    return h


def test_each_input_once_is_valid() -> None:
    h = pipeline()
    copied(h, out("a0", 0, 0), out("a1", 1, 1), to=2)
    copied(h, out("a2", 2, 2), to=3)
    assert seen(h, "a0", "a1", "a2").verdict().valid


def test_a_committed_input_without_a_visible_output_is_lost() -> None:
    h = pipeline()
    copied(h, out("a0", 0, 0), to=1)
    tried = h.failed("c", out("a1", 1, 1), txn=True)
    copied(h, out("a2", 1, 2), to=3)
    finding = seen(h, "a0", "a2").only("lost-input")
    assert (finding.key, finding.offsets) == ("in", (1,))
    assert who(finding) == [("w", 1), ("c", tried)]


def test_two_visible_outputs_double_their_input() -> None:
    h = pipeline()
    copied(h, out("a0", 0, 0), out("a1", 1, 1), out("a2", 2, 2), to=3)
    copied(h, out("b1", 3, 1), to=2, process="zombie")
    finding = seen(h, "a0", "a1", "a2", "b1").only("doubled-input")
    assert (finding.offsets, finding.values) == ((1,), ("a1", "b1"))


def test_an_output_without_its_commit_is_ahead_of_its_group() -> None:
    h = pipeline()
    copied(h, out("a0", 0, 0), to=1)
    h.ok("c", out("a1", 1, 1))
    assert seen(h, "a0", "a1", committed=1).only("uncommitted-input").offsets == (1,)


def test_attempts_that_stay_invisible_count_for_nothing() -> None:
    h = pipeline()
    h.failed("c", out("a0", 0, 0), txn=True)
    h.begin("c2", out("b0", 0, 0), txn=True)
    copied(h, out("c0", 0, 0), out("c1", 1, 1), out("c2", 2, 2), to=3, process="c3")
    assert seen(h, "c0", "c1", "c2").verdict().valid


def test_outputs_belong_to_the_group_that_their_operation_commits_for() -> None:
    h = pipeline()
    copied(h, out("a0", 0, 0), out("a1", 1, 1), out("a2", 2, 2), to=3)
    h.ok("d", out("b0", 3, 0), ["commit", "other", {"in": 1}], txn=True)
    seen(h, "a0", "a1", "a2", "b0")
    h.group_end("other", **{"in": 1})
    assert h.verdict().valid


def test_a_group_whose_operations_name_no_inputs_is_not_compared() -> None:
    h = pipeline()
    h.ok("c", poll(**{"in": [(0, 0)]}), ["commit", "g", {"in": 1}])
    assert seen(h).verdict().valid
