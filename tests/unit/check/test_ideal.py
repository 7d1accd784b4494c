"""Histories of an ideal log have no findings; each single change to one has the right finding."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from fencelog.check import check
from tests.unit.check.ideal import GROUP, KEYS, OUTPUTS, Run

Events = list[dict[str, Any]]
Change = Callable[[Events, Random], None]


@pytest.mark.parametrize("seed", range(40))
def test_an_ideal_history_is_valid(seed: int) -> None:
    verdict = check(Run(seed, operations=120).events)
    assert verdict.valid, verdict.text()
    assert verdict.counts["sends acknowledged"] > 20
    assert verdict.counts["records polled by final readers"] > 50


def polls(events: Events, *prefixes: str) -> Iterator[dict[str, Any]]:
    """What each poll of these processes returned, by key."""
    for event in events:
        if str(event.get("process", "")).startswith(prefixes or ""):
            for step in event.get("steps", ()):
                if step[0] == "poll" and len(step) > 1:
                    yield step[1]


def completed(events: Events, kind: str, process: str) -> Events:
    """Completions of this kind, with sends in them."""
    return [
        event
        for event in events
        if event["type"] == kind
        and event["process"].startswith(process)
        and any(step[0] == "send" for step in event["steps"])
    ]


def visible(events: Events) -> set[tuple[str, object]]:
    """(key, value) of what a final reader saw."""
    return {
        (key, value)
        for polled in polls(events, "final")
        for key, records in polled.items()
        for _, value in records
    }


def sends(event: dict[str, Any]) -> list[list[Any]]:
    return [step for step in event["steps"] if step[0] == "send"]


def hide(events: Events, key: str, value: object, *prefixes: str) -> None:
    """Take a record out of all polls."""
    for polled in polls(events, *prefixes):
        if key in polled:
            polled[key] = [record for record in polled[key] if record[1] != value]


def lose_one(events: Events, random: Random) -> None:
    """A record that was sent outside of transactions."""
    ops = completed(events, "ok", "w0")
    _, key, value, _ = sends(random.choice(ops[:-3]))[0]
    hide(events, key, value)


def forget_one(events: Events, random: Random) -> None:
    """A record that some readers saw and the final ones do not."""
    ops = completed(events, "ok", "w0")
    _, key, value, _ = sends(random.choice(ops[:-3]))[0]
    hide(events, key, value, "final")


def tear(events: Events, random: Random) -> None:
    """One record of a committed transaction."""
    ops = [event for event in completed(events, "ok", "w1") if len(sends(event)) > 1]
    _, key, value, _ = sends(random.choice(ops[:2]))[0]
    hide(events, key, value)


def cut_the_tail(events: Events, _random: Random) -> None:
    """The last records of a key, from the final readers and from the log."""
    key = max(KEYS, key=lambda each: sum(len(p.get(each, ())) for p in polls(events, "final")))
    told = [step for e in completed(events, "ok", "w") for step in sends(e) if step[1] == key]
    last = max(step[3] for step in told)
    for polled in polls(events, "final"):
        polled[key] = [record for record in polled.get(key, ()) if record[0] < last]
    for event in events:
        if event["type"] == "end":
            event["partitions"][key] |= {
                "last_stable": last, "high_watermark": last, "log_end": last
            }  # fmt: skip


def double(events: Events, random: Random) -> None:
    """A record once more, at the end of its key."""
    polled = [each for each in polls(events, "final0") if each[KEYS[0]]]
    offset = polled[-1][KEYS[0]][-1][0]
    _, value = random.choice(polled[0][KEYS[0]])
    polled[-1][KEYS[0]].append([offset + 50, value])


def disagree(events: Events, random: Random) -> None:
    """One reader sees another value at an offset."""
    records = random.choice([r for p in polls(events, "r") for r in p.values() if r])
    records[0][1] = "another"


def invent(events: Events, _random: Random) -> None:
    """A value at a new offset that no client sent."""
    last = [each for each in polls(events, "final0") if each[KEYS[0]]][-1]
    last[KEYS[0]].append([last[KEYS[0]][-1][0] + 50, "invented"])


def fail_what_is_visible(events: Events, random: Random) -> None:
    random.choice(completed(events, "ok", "w"))["type"] = "failed"


def commit_late(events: Events, random: Random) -> None:
    """The commit is asked for after the record was seen."""
    seen = visible(events)
    asked = [event for event in events if event["type"] == "committing"]
    ids = {
        (event["process"], event["id"])
        for event in completed(events, "ok", "w")
        if (sends(event)[0][1], sends(event)[0][2]) in seen
    }
    late = random.choice([each for each in asked if (each["process"], each["id"]) in ids])
    late["time"] = events[-1]["time"] + 1


def swap(events: Events, random: Random) -> None:
    """Two records of a poll."""
    records = random.choice([r for p in polls(events) for r in p.values() if len(r) > 1])
    records[0], records[1] = records[1], records[0]


def jump(events: Events, random: Random) -> None:
    """A record inside a poll, for one reader only."""
    records = random.choice([r for p in polls(events, "r") for r in p.values() if len(r) > 2])
    del records[1]


def skip(events: Events, random: Random) -> None:
    """A record at the start of a final reader's poll."""
    later = list(polls(events, "final1"))[1:]
    records = random.choice([r for p in later for r in p.values() if len(r) > 1])
    del records[0]


def repeat(events: Events, _random: Random) -> None:
    """A poll that its reader gets a second time."""
    after = [polled for polled in polls(events, "final1") if polled[KEYS[0]]]
    after[1][KEYS[0]].insert(0, list(after[0][KEYS[0]][-1]))


def hang(events: Events, _random: Random) -> None:
    end = [event for event in events if event["type"] == "end"][-1]
    end["partitions"][KEYS[1]]["last_stable"] -= 1


def mix_up_ends(events: Events, _random: Random) -> None:
    end = next(event for event in events if event["type"] == "end")
    end["partitions"][KEYS[1]]["high_watermark"] += 1


def tell_another_offset(events: Events, random: Random) -> None:
    ops = completed(events, "ok", "w")
    sends(random.choice(ops))[0][3] += 1000


def commit_back(events: Events, _random: Random) -> None:
    """The group's position is below an input that has its output."""
    for event in events:
        if event["type"] == "group_end":
            event["offsets"][KEYS[0]] = 1


def commit_on(events: Events, random: Random) -> None:
    """An output is gone that the group committed past; so is the record, from every poll."""
    event = random.choice(completed(events, "ok", "c"))
    _, key, value, *_ = sends(event)[0]
    hide(events, key, value)


def copy_again(events: Events, random: Random) -> None:
    """A zombie's output of an input that has one."""
    source = sends(random.choice(completed(events, "ok", "c")))[0][4]
    key = OUTPUTS[0]
    last = [each for each in polls(events, "final0") if each[key]][-1][key]
    offset = last[-1][0] + 50
    step = ["send", key, "again", None, source]
    told = {"process": "zombie", "id": 1, "time": 0.0}
    events[:0] = [
        {"type": "invoke", **told, "steps": [step]},
        {"type": "ok", **told, "steps": [[*step[:3], offset, source],
                                         ["commit", GROUP, {source[0]: source[1] + 1}]]},
    ]  # fmt: skip
    last.append([offset, "again"])


CHANGES: list[tuple[Change, set[str]]] = [
    (lose_one, {"lost-write"}),
    (forget_one, {"lost-write"}),
    (tear, {"torn-transaction"}),
    (cut_the_tail, {"lost-write", "torn-transaction"}),
    (double, {"duplicate"}),
    (disagree, {"inconsistent-offset"}),
    (invent, {"phantom"}),
    (fail_what_is_visible, {"aborted-read"}),
    (commit_late, {"precommitted-read"}),
    (swap, {"int-nonmonotonic-poll"}),
    (jump, {"int-poll-skip"}),
    (skip, {"poll-skip"}),
    (repeat, {"nonmonotonic-poll"}),
    (hang, {"hanging-lso"}),
    (mix_up_ends, {"end-order"}),
    (tell_another_offset, {"duplicate"}),
    (commit_back, {"uncommitted-input"}),
    (commit_on, {"lost-input"}),
    (copy_again, {"doubled-input"}),
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("change", "kinds"), CHANGES, ids=[change.__name__ for change, _ in CHANGES]
)
def test_a_single_change_has_the_right_finding(change: Change, kinds: set[str], seed: int) -> None:
    events = deepcopy(Run(seed, operations=150).events)
    change(events, Random(seed))
    verdict = check(events)
    assert verdict.outcome == "invalid", change.__doc__
    assert kinds & verdict.found.keys(), verdict.text()
    for each in verdict.problems:
        assert len(each.counterexample) <= 4, each
        assert each.counterexample or each.kind in {"hanging-lso", "end-order"}, each
