"""What must hold of a stream that was resized while it was written, as its clients saw it (R1, R2).

The segments of a stream are read in its order: each one wholly before its successors. In that order
every acknowledged record is there once, no aborted one, all others at most once; each key's are in
the range of their segment, and in the order in which they were written and acknowledged. What a
reader was shown while the stream grew is what is there in the end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from fencelog.check.history import Event
from fencelog.client.records_buffer import murmur2
from fencelog.coordination.streams.model import HASH_SPACE, SegmentState
from fencelog.errors import ErrorCode

Row: TypeAlias = Sequence[Any]
"""Offset, key or None, value."""
Note: TypeAlias = Mapping[str, Any]
PROBLEMS_MAX = 20
NEVER = float("inf")
UNEXPLAINED = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.SEGMENT_SEALED,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_REQUEST,
    }
)
"""Refusals of a writer that no fault and no resize explains."""


def hash_of(key: str) -> int:
    """The hash by which a key belongs to a segment."""
    return murmur2(key.encode()) % HASH_SPACE


class _Sent(NamedTuple):
    """One record as its writer knows it."""

    key: str | None
    outcome: str
    producer: str
    place: int
    """Among all records of its producer."""
    began_at: float
    done_at: float
    """When it was acknowledged; NEVER if it was not."""


class _Seen(NamedTuple):
    segment: int
    offset: int
    key: str | None
    value: str


@dataclass
class _History:
    sent: dict[str, _Sent] = field(default_factory=dict)
    """By value."""
    segments: dict[int, Note] = field(default_factory=dict)
    """As the stream was described and read in the end, by index."""
    reads: list[Note] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What writers were told that nothing explains."""
    placed: list[tuple[Note, list[str]]] = field(default_factory=list)
    """Where acknowledged writes were said to be stored, and their values."""


def problems_of(events: list[Event]) -> list[str]:
    """Return what does not hold, the first of it."""
    history = _take(events)
    if not history.segments:
        return history.refused[:PROBLEMS_MAX]
    found = history.refused[:PROBLEMS_MAX]
    for problem in _problems(history):
        if len(found) == PROBLEMS_MAX:
            break
        found.append(problem)
    return found


def _take(events: list[Event]) -> _History:
    notes: list[Any] = [event for event in events if event["type"] == "meta"]
    ends = {(each["process"], each["number"]): each for each in notes if each["what"] == "wrote"}
    history, places = _History(), dict[str, int]()
    for note in notes:
        match note["what"]:
            case "write":
                end = ends.get((note["process"], note["number"]))
                _sent(history, note, end, places)
            case "read":
                history.reads.append(note)
            case "segment":
                history.segments[note["index"]] = note
            case "refused" if ErrorCode.__members__.get(note["code"]) in UNEXPLAINED:
                history.refused.append(f"refused: {note['process']}: {note['error']}")
            case _:
                continue
    return history


def _sent(history: _History, note: Note, end: Note | None, places: dict[str, int]) -> None:
    outcome = "indeterminate" if end is None else end["outcome"]
    is_stored = end is not None and outcome == "ok"
    done_at = end["time"] if is_stored and end is not None else NEVER
    producer = note["producer"]
    for key, value in note["records"]:
        place = places[producer] = places.get(producer, 0) + 1
        history.sent[value] = _Sent(key, outcome, producer, place, note["time"], done_at)
    if is_stored and end is not None:
        history.placed.append((end, [value for _, value in note["records"]]))


def _problems(history: _History) -> Iterator[str]:
    rows = {
        (index, offset): _Seen(index, offset, key, value)
        for index, note in history.segments.items()
        for offset, key, value in note["rows"]
    }
    yield from _stream_problems(history)
    yield from _record_problems(history, list(rows.values()))
    yield from _read_problems(history, rows)
    yield from _place_problems(history, rows)
    yield from _order_problems(history, list(rows.values()))


def _stream_problems(history: _History) -> Iterator[str]:
    """Yield what is wrong with the stream itself, once nothing goes on any more."""
    segments = history.segments
    for index, note in segments.items():
        state = SegmentState(note["state"])
        if state in {SegmentState.OPENING, SegmentState.SEALING}:
            yield f"unfinished: segment {index} is {state.value} in the end (R2)"
        if state is SegmentState.SEALED and any(row[0] >= note["end"] for row in note["rows"]):
            yield f"behind the seal: segment {index} has records from {note['end']} on (R2)"
        if any(each not in segments or each >= index for each in note["predecessors"]):
            yield f"impossible: segment {index} follows {note['predecessors']} (R1)"


def _record_problems(history: _History, rows: Sequence[_Seen]) -> Iterator[str]:
    """Yield what is there and should not be, and the other way round."""
    found: dict[str, _Seen] = {}
    for row in rows:
        sent, segment = history.sent.get(row.value), history.segments[row.segment]
        if sent is None or sent.key != row.key:
            yield f"from nowhere: {row}, sent was {sent}"
            continue
        if row.value in found:
            yield f"twice: {found[row.value]} and {row} (R2)"
        found[row.value] = row
        if sent.outcome == "failed":
            yield f"aborted: {row}"
        if row.key is not None and not segment["low"] <= hash_of(row.key) < segment["high"]:
            what = f"segment {row.segment} has {segment['low']} to {segment['high']}"
            yield f"wrong range: {row} of hash {hash_of(row.key)}, {what} (R1)"
    for value, sent in history.sent.items():
        if sent.outcome == "ok" and value not in found:
            yield f"lost: {value} of {sent} (R2)"


def _read_problems(history: _History, rows: Mapping[tuple[int, int], _Seen]) -> Iterator[str]:
    """Yield what a reader was shown and is not there, or was not shown and is there."""
    for note in history.reads:
        index = note["segment"]
        shown = {offset: (key, value) for offset, key, value in note["rows"]}
        there = {
            row.offset: (row.key, row.value)
            for row in rows.values()
            if row.segment == index and note["start"] <= row.offset < note["end"]
        }
        if index in history.segments and shown != there:
            what = f"segment {index} from {note['start']} to {note['end']}"
            different = sorted(shown.items() ^ there.items())[:3]
            yield f"read otherwise: {what} at {note['time']:.3f} s: {different}"


def _place_problems(history: _History, rows: Mapping[tuple[int, int], _Seen]) -> Iterator[str]:
    """Yield the writes that are not where they were acknowledged."""
    for note, values in history.placed:
        places = [
            (segment, base + number)
            for segment, base, count in note["placed"]
            for number in range(count)
            if base >= 0
        ]
        is_known = all(base >= 0 for _, base, _ in note["placed"])
        found = [rows[each].value for each in places if each in rows]
        is_found = len(found) == len(places) and set(found) <= set(values)
        if not is_found or (is_known and sorted(found) != sorted(values)):
            yield f"elsewhere: {values} are said to be at {note['placed']}, found {found}"


def _order_problems(history: _History, rows: Sequence[_Seen]) -> Iterator[str]:
    """Yield where a key's records are read in another order than they were written in."""
    keys: dict[str, list[_Seen]] = {}
    for row in sorted(rows):
        if row.key is not None and row.value in history.sent:
            keys.setdefault(row.key, []).append(row)
    for key, seen in keys.items():
        yield from _key_problems(history, key, seen)


def _key_problems(history: _History, key: str, seen: Sequence[_Seen]) -> Iterator[str]:
    """``seen``: by segment and offset, which is the stream's order for one key.

    The segments whose ranges have it replaced each other, and a successor's index is higher.
    """
    last: dict[str, tuple[int, _Seen]] = {}
    for row in seen:
        sent = history.sent[row.value]
        place, before = last.get(sent.producer, (0, row))
        if sent.place < place:
            yield f"order of {key}: {row} was sent before {before} (R2)"
        last[sent.producer] = sent.place, row
    earliest, first = NEVER, None
    for row in reversed(seen):
        sent = history.sent[row.value]
        if earliest < sent.began_at:
            yield f"order of {key}: {first} was acknowledged before {row} was sent (R2)"
        if sent.done_at < earliest:
            earliest, first = sent.done_at, row
