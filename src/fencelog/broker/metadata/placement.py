"""What a broker of a cluster knows of the others: who is alive, who holds and leads what."""

from collections.abc import Sequence
from typing import Protocol

from fencelog.coordination.controller.model import PartitionState, Registration
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
