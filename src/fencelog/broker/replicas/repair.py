"""What is done with a replica whose files have failed while others go on.

It leaves the in-sync and eligible replicas, and the leadership with them, once another live replica
has all that is committed; the controller then elects one of those. When that one leads, the files
are opened again or replaced by what it has. Until then they stay as they are.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from fencelog.coordination.controller.model import PartitionState
from fencelog.coordination.controller.rules import given_up
from fencelog.types import Instant, NodeId

FIRST_WAIT_S = 1.0
"""From a failure to the next try; each further failure doubles it."""
WAIT_MAX_S = 300.0
"""A disk that fails again and again must not be filled anew all the time."""
FORGET_S = 600.0
"""A failure so long after the one before counts as the first."""


class Step(Enum):
    """What comes next."""

    LEAVE = auto()
    """Store that this replica is neither in sync nor eligible, and does not lead."""
    OPEN = auto()
    """Open its files, or copy the leader's log into new ones."""
    WAIT = auto()
    """Nothing, until the partition's state, the live brokers or the time are others."""


def next_step(
    state: PartitionState, node: NodeId, live: Collection[NodeId], *, is_damaged: bool
) -> Step:
    """Return what a failed replica of this broker does next; ``live`` are the registered ones.

    Files that could only not be opened are tried again whoever leads: nothing is lost by it.
    """
    counts = node in (*state.isr, *state.eligible)
    if counts and given_up(state, node, live) is not None:
        return Step.LEAVE
    has_source = not counts and state.leader != node and state.leader in live
    return Step.OPEN if has_source or not is_damaged else Step.WAIT


@dataclass(slots=True)
class Pauses:
    """The waits before tries that fail again and again: each one is twice the one before."""

    max_s: float
    _wait_s: float = 0.0
    _since: Instant = Instant(float("-inf"))  # noqa: RUF009 - a number

    def next(self, now: Instant) -> float:
        """Return the wait that begins now; a short one if the last one is long ago."""
        is_first = now - self._since > FORGET_S
        self._wait_s = FIRST_WAIT_S if is_first else min(2 * self._wait_s, self.max_s)
        self._since = now
        return self._wait_s


@dataclass(slots=True)
class Repair:
    """The failure of one replica, until it is open again, and how often it has failed before."""

    is_damaged: bool = False
    """Whether its files are to be replaced; else they could not be opened."""
    not_before: Instant = Instant(0.0)  # noqa: RUF009 - a number
    _pauses: Pauses = field(default_factory=lambda: Pauses(WAIT_MAX_S))

    def failed(self, now: Instant, *, is_damaged: bool) -> None:
        """It has failed now, perhaps once more."""
        self.not_before = Instant(now + self._pauses.next(now))
        self.is_damaged = is_damaged
