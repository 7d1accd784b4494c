"""Reads JSON lines into tables: one stream, or several merged by time."""

import json
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge as merge_sorted
from operator import itemgetter

from fencelog.check.history import Event
from fencelog.check.intake import HistoryError, Intake
from fencelog.check.tables import History


def parse(lines: Iterable[str]) -> History:
    """The tables of a history, read once, from start to end.

    An incomplete last line, as a killed writer leaves it, is skipped with a remark.
    Raises HistoryError, with the line, for anything else that cannot be read.
    """
    intake = Intake()
    reader = _Lines("", lines, intake)
    for event in reader:
        try:
            intake.add(event)
        except HistoryError as error:
            raise reader.located(error) from None
    return intake.history


def merge(files: Mapping[str, Iterable[str]]) -> History:
    """The tables of a history in several files, each in the order of its times.

    Raises HistoryError, with file and line; also if the times of a file decrease.
    """
    intake = Intake()
    readers = [_Lines(f"{name} ", lines, intake) for name, lines in files.items()]
    timed = [_timed(reader) for reader in readers]
    for _, place, event in merge_sorted(*timed, key=itemgetter(0)):
        intake.place = place
        intake.add(event)
    return intake.history


class _Lines:
    """The events of a stream of lines."""

    def __init__(self, name: str, lines: Iterable[str], intake: Intake) -> None:
        """``name`` is the prefix of every place; remarks go to the intake's history."""
        self._name = name
        self._lines = lines
        self._remarks = intake.history.remarks
        self.number = 0

    @property
    def place(self) -> str:
        """The line that was last read."""
        return f"{self._name}line {self.number}"

    def located(self, error: HistoryError) -> HistoryError:
        """An error of this line."""
        return HistoryError(self.place, error.what, error.hint)

    def __iter__(self) -> Iterator[Event]:
        """Each line's event; empty lines are counted and skipped."""
        decode = json.JSONDecoder().decode
        for line in self._lines:
            self.number += 1
            try:
                event = decode(line)
            except RecursionError:
                raise HistoryError(
                    self.place,
                    "nested too deeply",
                    "write events of the form that docs/guide/check.md has",
                ) from None
            except ValueError as error:
                if not line.strip():
                    continue
                if not line.endswith("\n"):
                    self._remarks.append(f"{self.place}, the last, is torn; left out")
                    continue
                raise HistoryError(
                    self.place,
                    f"not JSON ({error})",
                    "each line is one event; write whole lines, and one file for each writer",
                ) from None
            yield event


def _timed(reader: _Lines) -> Iterator[tuple[float, str, Event]]:
    """Events with their times; an event without one gets the time of the event before it."""
    last = float("-inf")
    for event in reader:
        time = event.get("time", last) if type(event) is dict else last
        if (type(time) is not float and type(time) is not int) or time < last:
            raise HistoryError(
                reader.place,
                f"time {time} after {last}",
                "each file must be in the order of its times, which are in seconds",
            )
        last = time
        yield time, reader.place, event
