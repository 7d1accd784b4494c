"""The event log of a stage: a file of JSON lines that all its processes append to and follow.

One line is one write to a file opened for appending, so lines of several processes never mix and
a killed process leaves whole lines behind.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

EVENTS_FILE = "events.jsonl"
LINE_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class Event:
    """Something that happened: seconds since 1970, a kind, and what belongs to it."""

    at: float
    kind: str
    facts: Mapping[str, object]

    def text(self, name: str) -> str:
        """Return a fact as a string; an absent one is empty."""
        return str(self.facts.get(name, ""))

    def number(self, name: str) -> int:
        """Return a fact as an integer; an absent one is -1."""
        value = self.facts.get(name, -1)
        assert isinstance(value, int | float | str), (name, value)
        return int(value)


def write_event(folder: Path, kind: str, **facts: object) -> Event:
    """Append one event to the log of this stage and return it."""
    event = Event(time.time(), kind, facts)
    line = json.dumps({"at": event.at, "kind": kind, **facts}) + "\n"
    assert len(line) <= LINE_BYTES_MAX, (kind, len(line))
    descriptor = os.open(folder / EVENTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    return event


class Follower:
    """Reads an event log from its start and goes on where it stopped."""

    def __init__(self, folder: Path) -> None:
        """Follow the log in this folder; the file may come later."""
        self._path = folder / EVENTS_FILE
        self._position = 0

    def new(self) -> Iterator[Event]:
        """Yield the events that were appended since the last call, whole lines only."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                lines = file.readlines()
        except FileNotFoundError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                return
            self._position += len(line)
            facts = json.loads(line)
            yield Event(facts.pop("at"), facts.pop("kind"), facts)
