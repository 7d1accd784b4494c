"""What a broker of a cluster knows of the others: who is alive, who holds and leads what."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import NodeId, Offset, TopicId


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


class LowWatermarks(Protocol):
    """Where the logs of the in-sync replicas begin, of the partitions that this broker leads."""

    async def reached(
        self, offsets: Mapping[Partition, Offset], timeout_s: float
    ) -> dict[Partition, ErrorCode]:
        """Return once all in-sync replicas of each partition begin at its offset or above.

        REQUEST_TIMED_OUT where they do not in time, NOT_LEADER_OR_FOLLOWER where this broker leads
        the partition no more. Nothing is taken back then.
        """
        ...
