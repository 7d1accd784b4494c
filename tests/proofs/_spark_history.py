"""A query's run as a history for ``fencelog check``: what its batches sent, what readers polled.

The batches are those of Spark's checkpoint; each write of a batch is one transaction, invoked when
the batch was planned and completed when Spark noted its end. Where in the sink a value went is
what the first reader says who saw it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencelog.check import check
from fencelog.check.history import Event
from tests.proofs._compare import Found
from tests.support.spark.queries import EACH_BATCH, PARTS


@dataclass(frozen=True)
class Look:
    """What a reader saw of one sink, and when (as ``time.time``)."""

    began: float
    ended: float
    found: Found


def look(read: Iterable[tuple[int, Sequence[tuple[int, bytes]]]], began: float) -> Look:
    """Keep what was read."""
    return Look(began, time.time(), dict(read))


def judge(
    query: str, checkpoint: Path, batches: Mapping[int, Sequence[int]], looks: Sequence[Look]
) -> tuple[list[str], int]:
    """The checker's findings and how many transactions it checked. The last look is the final one.

    ``batches``: which records each batch has, by its number.
    """
    verdict = check(sorted(_events(query, checkpoint, batches, looks), key=_when))
    problems = [f"{query}: {problem}" for problem in verdict.problems]
    if verdict.outcome == "nothing-checked":
        problems.append(f"{query}: nothing was checked")
    return problems, verdict.counts["transactions"]


def _when(event: Event) -> float:
    return event["time"]  # type: ignore[return-value]


def _events(
    query: str, checkpoint: Path, batches: Mapping[int, Sequence[int]], looks: Sequence[Look]
) -> list[Event]:
    events: list[Event] = []
    places: dict[str, tuple[int, int]] = {}
    for number, each in enumerate(looks):
        process = "final" if number == len(looks) - 1 else f"reader {number}"
        polled: dict[str, list[list[object]]] = {}
        for partition, records in each.found.items():
            polled[f"sink/{partition}"] = [[offset, value.decode()] for offset, value in records]
            for offset, value in records:
                places.setdefault(value.decode(), (partition, offset))
        operation = {"process": process, "id": number}
        events += [
            {"type": "invoke", "time": each.began, "steps": [["poll"]], **operation},
            {"type": "ok", "time": each.ended, "steps": [["poll", polled]], **operation},
        ]
    for number, records in sorted(batches.items()):
        planned, noted = (
            (checkpoint / log / str(number)).stat().st_mtime for log in ("offsets", "commits")
        )
        for part, values in _parts(query, records).items():
            where = sorted((places.get(value, (0, 0)), value) for value in values)
            sends = [["send", f"sink/{place[0]}", value] for place, value in where]
            done = [[*send, None] for send in sends]
            operation = {"process": f"{query} {part}", "id": number, "transactional": True}
            events += [
                {"type": "invoke", "time": planned, "steps": sends, **operation},
                {"type": "ok", "time": noted, "steps": done, **operation},
            ]
    return events


def _parts(query: str, records: Sequence[int]) -> dict[str, list[str]]:
    """The values of each write of a batch."""
    if query != EACH_BATCH:
        return {"all": [str(n) for n in records]}
    return {
        part: [str(n) for n in records if n % len(PARTS) == index]
        for index, part in enumerate(PARTS)
    }
