"""Types of numbers and names that several packages use.

A ``NewType`` costs nothing at run time and keeps an offset from being passed for an epoch.
"""

from typing import NamedTuple, NewType

Buffer = bytes | bytearray | memoryview

Offset = NewType("Offset", int)
"""Position of a record in a partition; the first record of a partition has offset 0."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leadership of a partition; grows with every change of leader."""

NodeId = NewType("NodeId", int)
"""The number of a broker in its cluster."""

CoordinatorEpoch = NewType("CoordinatorEpoch", int)
"""Number of a coordinatorship of a shard; grows at every load (rule E17)."""

ProducerId = NewType("ProducerId", int)
"""Server-assigned identity of a producer, never reused; -1 where there is none."""

ProducerEpoch = NewType("ProducerEpoch", int)
"""Incarnation of a producer id (int16); a lower one is fenced (rule E2)."""

Sequence = NewType("Sequence", int)
"""Number of a record of one producer on one partition (int32, wraps to 0)."""

Instant = NewType("Instant", float)
"""Seconds on the running loop's monotonic clock; only differences have a meaning."""

TimestampMs = NewType("TimestampMs", int)
"""Wall-clock milliseconds since 1970-01-01 UTC, as records carry them."""

TopicId = NewType("TopicId", bytes)
"""Sixteen bytes that name one incarnation of a topic."""

NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = Sequence(-1)
NO_TOPIC_ID = TopicId(bytes(16))


class TopicPartition(NamedTuple):
    """One partition of a topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return Kafka's form, as in directory names and log lines: ``topic-0``."""
        return f"{self.topic}-{self.partition}"
