"""Who is alive, who holds and leads what, as the copy of the metadata has it."""

from collections.abc import Sequence

from fencelog.broker.metadata.cluster_state import ClusterState, PartitionKey
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.types import NodeId, TopicId


class ClusterPlacement:
    """``Placement`` of a broker that is one of several."""

    def __init__(self, node_id: NodeId, state: ClusterState) -> None:
        """``state`` is the copy that a watch keeps."""
        self.node_id = node_id
        self._state = state

    @property
    def controller_id(self) -> NodeId:
        """This broker, while it is registered: every broker takes administrators' requests."""
        brokers = self._state.brokers
        return self.node_id if self.node_id in brokers else min(brokers, default=NodeId(-1))

    def brokers(self) -> Sequence[Registration]:
        """Return the registered brokers, by number."""
        return [self._state.brokers[each].registration for each in sorted(self._state.brokers)]

    def broker(self, node_id: NodeId) -> Registration | None:
        """Return a registered broker."""
        found = self._state.brokers.get(node_id)
        return None if found is None else found.registration

    def partition(self, topic_id: TopicId, index: int) -> PartitionState | None:
        """Return who holds and leads a partition; None if it is not known here."""
        stored = self._state.partitions.get(PartitionKey(topic_id, index))
        return None if stored is None else stored.state
