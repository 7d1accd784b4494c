"""What a workload needs of a client library, so that one workload tries several.

Every call may raise one of the library's ``errors``; what that says of the outcome is the
workload's to decide. Anything else that is raised is a defect.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from fencelog.types import TopicPartition
from fencelog_sim.workload import Stage

CALL_S = 8.0
"""How long a call may try before it gives up. Faults last about as long, so both outcomes occur."""
POLL_BYTES = 256 << 10
"""About what one poll takes from one partition."""

Rows: TypeAlias = list[tuple[int, str]]
"""Offsets and values, in the order in which they were read."""
Positions: TypeAlias = dict[TopicPartition, int]
"""The offset to read next."""


class Writer(Protocol):
    """One producer, idempotent or transactional. After an error it is only good for closing."""

    async def begin(self) -> None:
        """Begin a transaction."""
        ...

    async def send(self, partition: TopicPartition, values: Sequence[str]) -> None:
        """Send values to one partition, in this order; returns before they are acknowledged."""
        ...

    async def flush(self) -> list[list[int]]:
        """Return the offsets of each send since the last flush, once all are acknowledged."""
        ...

    async def commit(self) -> None:
        """Commit the open transaction; flush it before, so that a failure here is one of commit."""
        ...

    async def abort(self) -> None:
        """Abort the open transaction; returns once it is decided that nothing will be visible."""
        ...

    async def close(self) -> None:
        """Stop it. What is unacknowledged may still be stored. Raises nothing."""
        ...


class Reader(Protocol):
    """One consumer at read_committed with partitions assigned by its owner."""

    positions: Positions
    """Of what is assigned; polls move it on."""

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions, from these offsets."""
        ...

    async def end(self, partition: TopicPartition) -> int:
        """Return the last stable offset, from where only what is new is read."""
        ...

    async def poll(self) -> dict[TopicPartition, Rows]:
        """Return what comes next, or nothing after a while. An error leaves the positions."""
        ...

    def rewind(self, positions: Positions) -> None:
        """Go back to where an operation began that did not succeed."""
        ...


class Library(Protocol):
    """One client's use of a client library."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What its calls raise when the cluster is to blame."""
        ...

    @property
    def reader(self) -> Reader:
        """This client's consumer."""
        ...

    async def writer(self, transactional_id: str | None) -> Writer:
        """Return a new producer; a transactional id fences the one that had it before."""
        ...

    async def close(self) -> None:
        """Let go of all connections. Raises nothing."""
        ...


OpenLibrary: TypeAlias = Callable[[Stage], Library]
