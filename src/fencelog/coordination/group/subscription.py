"""The topics in a consumer's subscription (Kafka's ConsumerProtocolSubscription)."""

from fencelog.errors import WireError
from fencelog.wire.primitives import REQUEST_ITEMS_MAX, Reader

CONSUMER = "consumer"
"""The protocol type whose members subscribe to topics; Connect has another, for example."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a subscription; None where the bytes are malformed.

    Every version begins with its number and the topics. What follows, user data and owned
    partitions, is not needed.
    """
    reader = Reader(metadata)
    try:
        reader.int16()
        count = reader.int32()
        if not 0 <= count <= min(reader.remaining // 2, REQUEST_ITEMS_MAX):
            return None
        return frozenset(reader.string(flexible=False) for _ in range(count))
    except WireError:
        return None
