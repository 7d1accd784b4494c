"""What must hold of the copy of a stream that readers of a group have made, in the end (R6 to R9).

Every event of the stream is in the copy once, nothing else is, and the events of a key are there in
the order of the stream: a successor was read once its predecessors were.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from fencelog.check.history import Event

PROBLEMS_MAX = 20


class _Place(NamedTuple):
    """Where the stream has an event; the order of a key's is theirs."""

    segment: int
    offset: int
    key: str | None


def problems_of_copy(events: list[Event]) -> list[str]:
    """Return what does not hold, the first of it; nothing if there was no copy."""
    notes: list[Any] = [each for each in events if each["type"] == "meta"]
    copies = [each for each in notes if each["what"] == "copy"]
    places = {
        value: _Place(note["index"], offset, key)
        for note in notes
        if note["what"] == "segment"
        for offset, key, value in note["rows"]
    }
    if not copies:
        return []
    found: list[str] = []
    for problem in _problems(places, copies):
        if len(found) == PROBLEMS_MAX:
            break
        found.append(problem)
    return found


def _problems(places: dict[str, _Place], copies: list[Any]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for note in copies:
        last: dict[str, tuple[str, _Place]] = {}
        for offset, key, value in note["rows"]:
            where = f"{value} at {note['partition']}/{offset} of the copy"
            place = places.get(value)
            if place is None or place.key != key:
                yield f"copied from nowhere: {where}, the stream has {place} (R6)"
                continue
            if value in seen:
                yield f"copied twice: {seen[value]}, and {where} (R6)"
            seen[value] = where
            if key is None:
                continue
            before = last.get(key)
            if before is not None and before[1] > place:
                yield f"copied in another order: {where} of {place} after {before} (R8)"
            last[key] = value, place
    for value, place in places.items():
        if value not in seen:
            yield f"not copied: {value} of {place} (R6)"
