"""What a broker of a cluster knows of the others: who is alive, who holds and leads what."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import RequestError
from fencelog.types import NodeId, TopicId


class Placement(Protocol):
    """The cluster as this broker's watch of the metadata store has last seen it; it may be old."""

    @property
    def node_id(self) -> NodeId:
        """This broker's number."""
        ...

    @property
    def controller_id(self) -> NodeId:
        """A broker that takes the requests of administrators, for Metadata; -1 for none."""
        ...

    def brokers(self) -> Sequence[Registration]:
        """Return the registered brokers, by number."""
        ...

    def broker(self, node_id: NodeId) -> Registration | None:
        """Return a registered broker."""
        ...

    def partition(self, topic_id: TopicId, index: int) -> PartitionState | None:
        """Return who holds and leads a partition; None if it is not known here."""
        ...


class ElectionType(IntEnum):
    """Which election an operator asks for; the numbers are those of ElectLeaders (KIP-460)."""

    PREFERRED = 0
    """The first replica, if it is in sync."""
    UNCLEAN = 1
    """A replica that may lack committed records, while none that has them all is live."""


class LeaderElections(Protocol):
    """Carries out an operator's elections."""

    async def elect(
        self, topic_id: TopicId, index: int, kind: ElectionType, node: NodeId | None
    ) -> RequestError | None:
        """Elect a partition's leader; return why not.

        ``node``: which replica an unclean election elects, None for the first live one.
        """
