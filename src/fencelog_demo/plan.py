"""The plan of faults: which process, at which announced point, in which order.

Two pipelines run side by side in one driver and differ in the sink's delivery mode only. A fault is
injected when both are at its point, so it affects both alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["worker", "driver", "broker"]
Part = Literal["leader", "coordinator", "controller"]
"""What one of a cluster's brokers does."""

EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
PIPELINES = (EXACTLY_ONCE, AT_LEAST_ONCE)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planned fault: when both pipelines have reached ``point``, ``role`` gets a signal."""

    name: str
    point: str
    role: Role
    title: str
    part: Part | None = None
    """Of a cluster's brokers, the one that does this."""
    freeze: bool = False
    """SIGSTOP instead of SIGKILL: a driver that only seems dead, the later zombie."""


PLAN = (
    Fault(
        name="worker",
        point="task-written",
        role="worker",
        title="a task's worker, all its rows acknowledged",
    ),
    Fault(
        name="broker",
        point="task-writing",
        role="broker",
        title="the broker, while tasks write",
    ),
    Fault(
        name="before-commit",
        point="before-commit",
        role="driver",
        title="the driver, between write and commit",
    ),
    Fault(
        name="after-commit",
        point="after-commit",
        role="driver",
        title="the driver, just after the sink's commit",
    ),
    Fault(
        name="zombie",
        point="before-commit",
        role="driver",
        title="the driver before its commit, later a zombie",
        freeze=True,
    ),
)
"""In this order the broker is killed while the producer still writes."""

CLUSTER_PLAN = (
    PLAN[0],
    Fault(
        name="leader",
        point="task-writing",
        role="broker",
        part="leader",
        title="the leader of a partition, while tasks write",
    ),
    Fault(
        name="coordinator",
        point="before-commit",
        role="broker",
        part="coordinator",
        title="the sink's coordinator, just before the commit",
    ),
    Fault(
        name="controller",
        point="task-writing",
        role="broker",
        part="controller",
        title="the controller, while tasks write",
    ),
    *PLAN[2:],
)
"""Where there are several brokers: each of them has a part of its own."""

PATIENCE_S = 20.0
"""How long a pipeline that is at a point waits for the other one."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A pipeline is at a point, in this batch, and has written this many rows of it."""

    pipeline: str
    point: str
    batch: int
    tally: int
    pid: int
    ticket: str = ""


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A fault that is due now, and the processes that wait at its point, by pipeline."""

    fault: Fault
    where: Mapping[str, Reached]


class PlanProgress:
    """How far the plan is carried out. Each fault comes in a later batch than the one before it.

    So the pipelines have recovered from the last fault: they have done its batches again and
    committed them.
    """

    def __init__(self, plan: tuple[Fault, ...] = PLAN) -> None:
        """Begin with the first fault."""
        self._plan = plan
        self._done = 0
        self._last_batch = dict.fromkeys(PIPELINES, -1)
        self._waiting: dict[str, Reached] = {}
        self._since = 0.0

    @property
    def finished(self) -> bool:
        """All faults are injected."""
        return self._done == len(self._plan)

    def holds(self, reached: Reached, now: float) -> bool:
        """Whether this process waits here for the next fault.

        An empty write has nothing to lose or to duplicate, so a fault in it would show nothing.
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

    def due(self, now: float) -> Injection | None:
        """The fault that is due: both pipelines are at its point, or one waited long enough."""
        everybody = len(self._waiting) == len(PIPELINES)
        if not everybody and not (self._waiting and now - self._since > PATIENCE_S):
            return None
        if EXACTLY_ONCE not in self._waiting:
            self._waiting = {}  # no fault for at-least-once alone
            return None
        injection = Injection(fault=self._plan[self._done], where=self._waiting)
        self._done += 1
        self._last_batch.update({name: each.batch for name, each in self._waiting.items()})
        self._waiting = {}
        return injection
