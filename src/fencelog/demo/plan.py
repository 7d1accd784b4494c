"""The kill plan: who dies, at which announced point, in which order. Plain values and one rule."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["worker", "driver", "broker"]


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One planned blow: when somebody reaches ``point``, ``role`` is hit."""

    name: str
    point: str
    role: Role
    title: str
    freeze: bool = False
    """SIGSTOP instead of SIGKILL: a driver that is only thought dead, the zombie to be."""


PLAN = (
    Strike(
        name="worker",
        point="task-written",
        role="worker",
        title="a task's worker, all its rows acknowledged",
    ),
    Strike(
        name="broker",
        point="task-writing",
        role="broker",
        title="the broker, while tasks write",
    ),
    Strike(
        name="before-commit",
        point="before-commit",
        role="driver",
        title="the driver, between write and commit",
    ),
    Strike(
        name="after-commit",
        point="after-commit",
        role="driver",
        title="the driver, just after the sink's commit",
    ),
    Strike(
        name="zombie",
        point="before-commit",
        role="driver",
        title="the driver before its commit, a zombie to be",
        freeze=True,
    ),
)
"""The order puts the broker's death where the producer still writes."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Somebody stands at a point, in this batch, having written so many rows of it."""

    point: str
    batch: int
    tally: int
    pid: int


class Course:
    """How far the plan is carried out. A blow falls in a later batch than the one before it.

    So each blow hits a pipeline that has recovered from the last one: the batch that was hit has
    been done again and committed.
    """

    def __init__(self, plan: tuple[Strike, ...] = PLAN) -> None:
        """Begin with the first strike."""
        self._plan = plan
        self._done = 0
        self._last_batch = -1

    @property
    def finished(self) -> bool:
        """All strikes have fallen."""
        return self._done == len(self._plan)

    def strike(self, reached: Reached) -> Strike | None:
        """The blow that falls here and now, if one does; each falls once, never on an empty batch.

        An empty write has nothing that could be lost or doubled, so hitting it would show nothing.
        """
        if self.finished or reached.tally <= 0 or reached.batch <= self._last_batch:
            return None
        candidate = self._plan[self._done]
        if candidate.point != reached.point:
            return None
        self._done += 1
        self._last_batch = reached.batch
        return candidate
