"""Where what a sender has belongs after a refusal, and which sender goes before which (R2)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fencelog.client.streams.known import Places
from fencelog.client.streams.ranges import Ranges, successors
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.failures import failure
from fencelog.types import TopicId
from fencelog.wire.hot import SealedSegment, Successor

if TYPE_CHECKING:
    from fencelog.client.cluster import Cluster
    from fencelog.client.partition_sender import PartitionSender

CHANGED_TOPIC = frozenset(
    {
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""After these a topic may be another one than a writer has known."""


async def places_after(
    cluster: "Cluster",
    sender: "PartitionSender",
    error: RequestError,
    sealed: SealedSegment | None,
) -> Places | None:
    """Return where what a sender has belongs after a refusal; None if it belongs where it is.

    Raises RequestError if nobody can be asked.
    """
    topic = sender.partition.topic
    if sealed is not None and sender.topic_id is not None and sender.range is not None:
        return _after_seal(cluster, topic, sender.topic_id, sender.range, sealed)
    if error.code in CHANGED_TOPIC:
        cluster.forget(topic)
        places = (await cluster.places([topic]))[topic]
        topic_id = places.topic_id if isinstance(places, Ranges) else None
        if topic_id != sender.topic_id:
            return places
    return None


def _after_seal(
    cluster: "Cluster", topic: str, topic_id: TopicId, range_: Successor, sealed: SealedSegment
) -> Ranges:
    following = successors(topic_id, sealed.successors)
    if not following.covers(range_.low, range_.high):
        named = ", ".join(f"{each.low} to {each.high}" for each in sealed.successors)
        what = f"segment {range_.segment} of stream {topic}, {range_.low} to {range_.high}"
        raise failure(
            ErrorCode.UNKNOWN_SERVER_ERROR, what, f"its successors have {named or 'nothing'}"
        )
    cluster.learn_successors(topic, topic_id, sealed.successors)
    return following


def put_in_order(sender: "PartitionSender", others: Iterable["PartitionSender"]) -> None:
    """Let a new sender wait for those of its topic that go before it, and others for it."""
    for each in others:
        if each.partition.topic != sender.partition.topic:
            continue
        if each.topic_id != sender.topic_id:
            each.precedes(sender)  # of the topic as it was
        elif each.range is not None and sender.range is not None:
            if each.range.high <= sender.range.low or sender.range.high <= each.range.low:
                continue
            earlier, later = sorted((each, sender), key=lambda one: one.partition.partition)
            earlier.precedes(later)
