"""The interface between a workload and the stage that runs it, simulated or real.

A workload knows no faults. Its clients may die at any await, and are then started again by the
stage under a new process name; everything that must outlive a client is in the log or the history.
"""

from dataclasses import dataclass
from random import Random
from typing import Protocol

from fencelog.check.history import Event, Recorder


@dataclass(frozen=True)
class Scale:
    """How much happens: little in the simulator, much in ``./dev prove chaos``."""

    clients: int = 3
    partitions: int = 3
    records_per_send: int = 2
    """Upper bound of the records that one send of a step carries; each is one value."""
    pause_s: float = 0.2
    """Mean pause of a client between two operations; 0 for none."""
    key_records: int = 256
    """After so many values a key (partition group) gives way to the next one."""
    session_s: float = 6.0
    """How long a member of a group may be silent."""
    expiry_s: float = 0.0
    """After how long the broker forgets offsets and transactional ids; 0: not within a run."""


class Stage(Protocol):
    """What one client of a workload gets from its stage."""

    bootstrap: str
    """``host:port`` of the cluster."""
    random: Random
    """Seeded, this client's own."""
    history: Recorder
    """Under this client's process name, which no other and no earlier one has."""
    scale: Scale
    stopping: bool
    """Set when the client should end its current operation and return."""

    def now(self) -> float:
        """The running loop's seconds."""
        ...

    async def pause(self) -> None:
        """Wait as long as the scale says, randomly."""
        ...


class Workload(Protocol):
    """A kind of traffic, and the check of its history."""

    name: str
    expires: bool
    """Whether it waits for the broker to forget offsets and transactional ids."""
    may_lose: bool
    """Whether its check can do without what ``os`` mode loses in a power cut."""

    async def prepare(self, stage: Stage) -> None:
        """Create topics; called once, before any fault, may be called again after a crash."""
        ...

    async def client(self, stage: Stage, index: int) -> None:
        """Act until ``stage.stopping``, from whatever an earlier client of this index left."""
        ...

    async def settle(self, stage: Stage) -> None:
        """After all faults are healed: end what is open, read all, record ends (``final`` reads).

        Raises TimeoutError when the log does not come to rest within its bound.
        """
        ...

    def check(self, events: list[Event]) -> list[str]:
        """Problems that only this workload can find, beside the checker's; else empty."""
        ...
