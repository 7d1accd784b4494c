"""What one operation is going to do, and how that is written into a history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fencelog.check.history import Step, key_of
from fencelog.types import TopicPartition
from fencelog_sim.workloads.library import Rows


@dataclass(frozen=True)
class Send:
    """Values for one partition, in this order."""

    partition: TopicPartition
    values: list[str]

    def steps(self) -> list[Step]:
        """As they are invoked."""
        key = key_of(*self.partition)
        return [["send", key, value] for value in self.values]

    def stored(self, offsets: Sequence[int | None]) -> list[Step]:
        """As they are completed."""
        found = zip(self.steps(), offsets, strict=True)
        return [[*step, offset] for step, offset in found]


Polled: TypeAlias = dict[TopicPartition, Rows]
Plan: TypeAlias = Sequence[Send | None]
"""Sends, and None for each poll."""


def invoked(plan: Plan) -> list[Step]:
    """What an operation is about to do."""
    steps: list[Step] = []
    for step in plan:
        steps.extend([["poll", {}]] if step is None else step.steps())
    return steps


def unknown(plan: Plan) -> list[Step]:
    """The sends of an operation that did not succeed; its polls count as never made."""
    sends = [step for step in plan if step is not None]
    return [step for send in sends for step in send.stored([None] * len(send.values))]


def completed(
    plan: Plan, offsets: Sequence[Sequence[int | None]], polled: Sequence[Polled]
) -> list[Step]:
    """What an operation has done: offsets of its sends, and what its polls showed, in order."""
    steps: list[Step] = []
    found, seen = iter(offsets), iter(polled)
    for step in plan:
        if step is None:
            steps.append(poll(next(seen)))
        else:
            steps.extend(step.stored(next(found)))
    return steps


def poll(seen: Polled) -> Step:
    """What one poll showed."""
    return ["poll", {key_of(*each): [list(row) for row in rows] for each, rows in seen.items()}]


def named(error: BaseException) -> str:
    """An error as a history names it."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
