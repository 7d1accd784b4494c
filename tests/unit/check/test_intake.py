"""Reading: what is no history is refused with its line, what is wrong, and what to do."""

import json

import pytest

from fencelog.check import HistoryError, check, judge, merge, parse
from fencelog.check.history import Event
from tests.unit.check.writing import Written, poll, send

INVOKE: Event = {"type": "invoke", "id": 1, "process": "w", "time": 1, "steps": [["send", "x", 5]]}
OK: Event = {"type": "ok", "id": 1, "process": "w", "time": 2, "steps": [["send", "x", 5, 0]]}


def lines(*events: Event) -> list[str]:
    return [json.dumps(each) + "\n" for each in events]


def changed(event: Event, **fields: object) -> Event:
    return {**event, **fields}


WRONG = [
    ([{"type": "begin"}], "line 1", '"begin" is not an event type', "event types are"),
    ([["invoke"]], "line 1", "is not an event type", "event types are"),
    ([{"type": "invoke", "id": 1}], "line 1", "no field 'process'", "check.md"),
    ([changed(INVOKE, process=7)], "line 1", "process 7 is not a string", "name each client"),
    ([changed(INVOKE, time="now")], "line 1", "time", "seconds"),
    ([changed(INVOKE, time=10**400)], "line 1", "number is too large", "below 2^63"),
    ([changed(INVOKE, id=None)], "line 1", "id null", "count"),
    ([changed(INVOKE, steps="send")], "line 1", "is not a list", "as in"),
    (
        [changed(INVOKE, steps=[["sent", "x", 5]])],
        "line 1",
        "is not a step",
        "send, poll or commit",
    ),
    ([changed(INVOKE, steps=[["send", "x"]])], "line 1", "is not a send", "as in"),
    ([changed(INVOKE, steps=[["send", "x", 1.5]])], "line 1", "neither a number nor", "use one"),
    ([changed(INVOKE, steps=[["send", "x", 5, None, 3]])], "line 1", "input record", "as in"),
    ([INVOKE, INVOKE], "line 2", "a second time", "own process name"),
    ([INVOKE, changed(INVOKE, id=2)], "line 2", "value 5 is sent to x a second time", "attempt"),
    ([OK], "line 1", "was not invoked", "write an invoke"),
    ([INVOKE, OK, OK], "line 3", "was not invoked", "one completion"),
    ([INVOKE, changed(OK, time=0.5)], "line 2", "before it is invoked", "one clock"),
    ([INVOKE, changed(OK, steps=[])], "line 2", "0 sends of 1", "indeterminate"),
    ([INVOKE, changed(OK, steps=[["send", "x", 6, 0]])], "line 2", "did not invoke", "everything"),
    (
        [INVOKE, changed(OK, steps=[["send", "x", 5, -1]])],
        "line 2",
        "-1 is not an offset",
        "from 0",
    ),
    (
        [INVOKE, changed(OK, steps=[["send", "x", 5, 1 << 63]])],
        "line 2",
        "is not an offset",
        "from 0",
    ),
    ([INVOKE, changed(OK, steps=[["poll", []]])], "line 2", "is not a poll", "as in"),
    (
        [INVOKE, changed(OK, steps=[["poll", {"x": [[0]]}]])],
        "line 2",
        "are not records of x",
        "as in",
    ),
    (
        [INVOKE, changed(OK, steps=[["poll", {"x": [5]}]])],
        "line 2",
        "are not records of x",
        "as in",
    ),
    (
        [INVOKE, changed(OK, steps=[["poll", {"x": [["0", 5]]}]])],
        "line 2",
        "is not an offset",
        "from 0",
    ),
    ([INVOKE, changed(OK, steps=[["poll", {"x": [[0, None]]}]])], "line 2", "neither", "use one"),
    ([INVOKE, changed(OK, steps=[["commit", "g"]])], "line 2", "is not a commit", "as in"),
    ([{"type": "committing", "id": 3, "process": "w", "time": 1}], "line 1", "was not invoked", ""),
    (
        [{"type": "end", "time": 1, "partitions": {"x": {"leo": 3}}}],
        "line 1",
        "end offsets of x",
        "",
    ),
    (
        [{"type": "end", "time": 1, "partitions": []}],
        "line 1",
        "is not an object",
        "topic/partition",
    ),
    ([{"type": "group_end", "group": "g", "offsets": 5}], "line 1", "not the end of a group", ""),
]


@pytest.mark.parametrize(("events", "place", "what", "hint"), WRONG)
def test_what_cannot_be_is_refused_with_its_place_and_a_way_out(events, place, what, hint) -> None:
    with pytest.raises(HistoryError) as refused:
        parse(lines(*events))
    assert str(refused.value).startswith(f"{place}: ")
    assert what in str(refused.value)
    assert hint in refused.value.hint


def test_an_error_in_memory_names_the_number_of_the_event() -> None:
    with pytest.raises(HistoryError, match="event 2: "):
        check([INVOKE, INVOKE])


def test_a_line_that_is_not_json_is_refused() -> None:
    with pytest.raises(HistoryError, match="line 2: not JSON"):
        parse([*lines(INVOKE), "{}}\n", *lines(OK)])


def test_empty_lines_count_and_say_nothing() -> None:
    with pytest.raises(HistoryError, match="line 4: "):
        parse([*lines(INVOKE), "\n", "  \n", *lines(INVOKE)])


def test_a_last_line_that_a_killed_writer_left_is_left_out_with_a_remark() -> None:
    whole = lines(INVOKE, OK)
    history = parse([*whole, '{"type": "inv'])
    assert len(history.ops) == 1
    assert any("line 3" in remark for remark in judge(history).remarks)


def test_lines_and_events_come_to_the_same() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 1))
    h.unknown("v", send("y", 3))
    h.ok("final", poll(x=[(1, "b")]))
    h.ends(x=(0, 2, 2, 2))
    assert judge(parse(lines(*h.events))).as_json() == check(h.events).as_json()


def test_an_operation_without_a_completion_has_no_known_end() -> None:
    h = Written()
    h.begin("w", send("x", "a"))
    h.ok("v", send("x", "b", 1))
    h.ok("final", poll(x=[(1, "b")]))
    verdict = h.verdict()
    assert verdict.valid
    assert verdict.counts["indeterminate"] == 1


def test_a_failed_operation_may_complete_fewer_sends_than_it_invoked() -> None:
    h = Written()
    number = h.begin("w", send("x", "a"), send("x", "b"), txn=True)
    h.end("failed", "w", number, send("x", "a", 0))
    h.ok("v", send("x", "c", 2))
    h.ok("r", poll(x=[(2, "c")]))
    assert h.verdict().valid


def test_the_source_of_an_output_may_stand_in_the_invocation_alone() -> None:
    first = changed(INVOKE, steps=[["send", "x", 5, None, ["in", 3]]])
    history = parse(lines(first, OK))
    assert (history.keys.all[history.sends.source_key[0]], history.sends.source_offset[0]) == (
        "in",
        3,
    )


def test_several_files_are_put_together_by_time() -> None:
    h = Written()
    h.ok("w", send("x", "a", 0), send("x", "b", 1))
    h.ok("v", send("x", "c", 2))
    h.ok("w", send("x", "d", 3))
    h.ok("final", poll(x=[(1, "b"), (3, "d")]))
    h.ends(x=(0, 4, 4, 4))
    h.events.append({"type": "group_end", "group": "g", "offsets": {}})
    files = {
        name: lines(*(each for each in h.events if each.get("process", "admin") == name))
        for name in ("final", "admin", "v", "w")
    }
    assert judge(merge(files)).as_json() == check(h.events).as_json()


def test_of_several_files_the_one_with_the_error_is_named() -> None:
    with pytest.raises(HistoryError, match="b line 2: operation 1 of w completes"):
        merge({"a": lines(INVOKE), "b": ["\n", *lines(changed(OK, time=0))]})
    with pytest.raises(HistoryError, match="b line 1: not JSON"):
        merge({"a": lines(INVOKE), "b": ["{\n"]})


def test_a_file_that_goes_back_in_time_is_refused() -> None:
    with pytest.raises(HistoryError, match="a line 2: time 1 after 2"):
        merge({"a": lines(changed(INVOKE, time=2), changed(OK, time=1))})


def test_an_entry_without_content_says_nothing() -> None:
    events = [
        changed(INVOKE, steps=[["send", "x", 5, None, None], ["poll"]]),
        changed(OK, steps=[["send", "x", 5, 0, None], ["poll"], ["poll", {"x": []}]]),
    ]
    history = parse(lines(*events))
    assert (list(history.sends.source_key), len(history.runs)) == ([-1], 0)
