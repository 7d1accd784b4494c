"""The kill plan: who dies, at which announced point, in which order. Plain values and one rule.

Two pipelines run side by side in one driver and differ in the sink's commit mode only. A blow waits
until both stand at its point, so each blow hits both alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["worker", "driver", "broker"]

EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
PIPELINES = (EXACTLY_ONCE, AT_LEAST_ONCE)


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One planned blow: when both pipelines have reached ``point``, ``role`` is hit."""

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

PATIENCE_S = 20.0
"""How long a pipeline that stands at a point waits for the other one to get there."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A pipeline stands at a point, in this batch, having written so many rows of it."""

    pipeline: str
    point: str
    batch: int
    tally: int
    pid: int
    ticket: str = ""


@dataclass(frozen=True, kw_only=True)
class Blow:
    """A strike that falls now, and who stands where it falls, by pipeline."""

    strike: Strike
    where: Mapping[str, Reached]


class Course:
    """How far the plan is carried out. A blow falls in a later batch than the one before it.

    So each blow hits pipelines that have recovered from the last one: the batches that were hit
    have been done again and committed.
    """

    def __init__(self, plan: tuple[Strike, ...] = PLAN) -> None:
        """Begin with the first strike."""
        self._plan = plan
        self._done = 0
        self._last_batch = dict.fromkeys(PIPELINES, -1)
        self._waiting: dict[str, Reached] = {}
        self._since = 0.0

    @property
    def finished(self) -> bool:
        """All strikes have fallen."""
        return self._done == len(self._plan)

    def holds(self, reached: Reached, now: float) -> bool:
        """Whether this one has to wait here for the blow; all others may go on.

        An empty write has nothing that could be lost or doubled, so hitting it would show nothing.
        """
        if self.finished or reached.tally <= 0 or reached.pipeline in self._waiting:
            return False
        if reached.batch <= self._last_batch[reached.pipeline]:
            return False
        if reached.point != self._plan[self._done].point:
            return False
        if not self._waiting:
            self._since = now
        self._waiting[reached.pipeline] = reached
        return True

    def due(self, now: float) -> Blow | None:
        """The blow that falls now: when all stand at its point, or waited long enough for it."""
        everybody = len(self._waiting) == len(PIPELINES)
        if not everybody and not (self._waiting and now - self._since > PATIENCE_S):
            return None
        if EXACTLY_ONCE not in self._waiting:
            self._waiting = {}  # it was not about the other one alone
            return None
        blow = Blow(strike=self._plan[self._done], where=self._waiting)
        self._done += 1
        self._last_batch.update({name: each.batch for name, each in self._waiting.items()})
        self._waiting = {}
        return blow
