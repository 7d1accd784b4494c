"""Events of a broker, reported to one listener: metrics, a console, a monitor.

A part that reports events holds ``Observer | None`` and checks ``is not None`` first, so a broker
without a listener pays one comparison. An observer changes nothing and awaits nothing: it is called
between a change and its consequences, with no await in between.
"""

from collections.abc import Mapping, Sequence

from fencelog.coordination.group.records import CommittedOffset
from fencelog.coordination.shard import LogRecord
from fencelog.errors import ErrorCode
from fencelog.log.values import MarkerToWrite
from fencelog.types import CoordinatorEpoch, Offset, ProducerId, TopicPartition


class Observer:
    """Ignores every event; a listener overrides the methods it needs."""

    # Partitions

    def appended(self, partition: TopicPartition, base_offset: Offset, end_offset: Offset) -> None:
        """The log has grown: a producer's batch, a coordinator's records, markers or a roll."""

    def rejected(
        self, partition: TopicPartition, producer_id: ProducerId, error: ErrorCode
    ) -> None:
        """A fence (an epoch, a sequence) or a limit refused a batch or a marker."""

    def markers_appended(self, partition: TopicPartition, markers: Sequence[MarkerToWrite]) -> None:
        """Transactions have ended on this partition; ``appended`` was called before."""

    def flushed(self, partition: TopicPartition, end_offset: Offset) -> None:
        """All below ``end_offset`` is durable in the mode in force (D1)."""

    def high_watermark_moved(self, partition: TopicPartition, high_watermark: Offset) -> None:
        """Records below ``high_watermark`` are committed; waiting requests are woken after this."""

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        """The partition accepts no more writes (D2)."""

    # Coordinators: a shard is named by the partition that holds its records

    def shard_loaded(self, shard: TopicPartition, epoch: CoordinatorEpoch) -> None:
        """A coordinator was replayed and is in service under this epoch."""

    def shard_unloaded(self, shard: TopicPartition) -> None:
        """A coordinator was unloaded; its next request loads it again."""

    def decided(
        self, shard: TopicPartition, base_offset: Offset, records: Sequence[LogRecord]
    ) -> None:
        """A decision was appended at ``base_offset`` and replayed; it is not committed yet."""

    def answered(self, shard: TopicPartition, end_offset: Offset, response: object) -> None:
        """A response that reveals the shard's state below ``end_offset`` is about to be sent."""

    def producer_id_assigned(self, producer_id: ProducerId) -> None:
        """A producer id was assigned (E1)."""

    def offsets_committed(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """A request to store these offsets of a group was accepted; they are not committed yet."""

    def offsets_fetched(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """A request for a group's offsets found these; they are sent once all is committed."""
