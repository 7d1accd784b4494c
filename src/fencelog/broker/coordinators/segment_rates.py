"""What was written to a segment that another broker leads (R3)."""

from fencelog.broker.coordinators.cluster_leaders import Peers
from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.placement import Placement
from fencelog.coordination.controller.model import NO_LEADER
from fencelog.coordination.streams.policy import SegmentRate
from fencelog.errors import NotLeaderError
from fencelog.wire.messages.broker_segment_rate import (
    BrokerSegmentRateRequest,
    BrokerSegmentRateResponse,
)

REQUEST_TIMEOUT_S = 5.0


class RemoteRates:
    """Asks the leaders on other brokers."""

    def __init__(self, peers: Peers, placement: Placement) -> None:
        """``placement`` says who leads what."""
        self._peers = peers
        self._placement = placement

    async def ask(self, topic: Topic, index: int) -> SegmentRate | None:
        """Return what the leader of a segment has measured; None while it has nothing.

        Raises NotLeaderError without an answer.
        """
        state = self._placement.partition(topic.topic_id, index)
        if state is None or state.leader in (NO_LEADER, self._placement.node_id):
            raise NotLeaderError(f"{topic.name}-{index} has no leader on another broker")
        answer = await self._peers.ask(
            state.leader,
            BrokerSegmentRateRequest(topic_id=topic.topic_id, segment=index),
            BrokerSegmentRateResponse,
            REQUEST_TIMEOUT_S,
        )
        if not answer.is_known:
            return None
        return SegmentRate(events_per_s=answer.events_per_s, kbytes_per_s=answer.kbytes_per_s)
