"""One partition in service: its log (rules), its files (store) and who waits on it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fencelog.broker.partitions.purgatory import Purgatory
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log.config import LogConfig
from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import Appended, MarkerToWrite, Rejected
from fencelog.storage.partition_store import PartitionStore
from fencelog.types import Offset, TopicId, TopicPartition

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Partition:
    """The three parts of a partition that a handler meets together."""

    name: TopicPartition
    topic_id: TopicId
    log: PartitionLog
    store: PartitionStore
    purgatory: Purgatory = field(init=False)
    stamps_on_append: bool = field(init=False)
    """Whether the broker sets the timestamps (LogAppendTime)."""
    is_compacted: bool = field(init=False)
    """Whether every record must have a key."""
    failure: Exception | None = None
    marked: Callable[[Sequence[MarkerToWrite]], None] = field(default=lambda _markers: None)
    """Who follows the transactions that end here: a coordinator whose records are in this log."""

    def __post_init__(self) -> None:
        """Waits start from what recovery found durable."""
        self.purgatory = Purgatory(self.log.high_watermark)
        self.reconfigure(self.log.config)

    def reconfigure(self, config: LogConfig) -> None:
        """The topic's settings changed."""
        self.log.reconfigure(config)
        self.stamps_on_append = config.message_timestamp_type == "LogAppendTime"
        self.is_compacted = "compact" in config.cleanup_policy

    def append_markers(
        self, markers: Sequence[MarkerToWrite], *, now_ms: int
    ) -> Appended | Rejected:
        """End transactions here, all of them or none, and tell who follows."""
        outcome = self.log.append_markers(markers, now_ms=now_ms)
        if isinstance(outcome, Appended):
            self.marked(markers)
        return outcome

    def flushed(self, end_offset: Offset) -> None:
        """All below ``end_offset`` is durable in the mode in force: move HW and wake who waits."""
        self.log.flushed(end_offset)
        self.purgatory.advance(self.log.high_watermark)

    def fail(self, error: StorageError) -> None:
        """A write or sync failed: nothing is acknowledged from here again (D2)."""
        if self.failure is not None:
            return  # of a deleted partition, say, whose files are closed
        log.error("%s is out of service for writes: %s", self.name, error)
        self.failure = error
        self.log.failed()
        self.purgatory.fail(error)

    def removed(self) -> None:
        """The topic was deleted: whoever waits is told."""
        self.failure = NotLeaderError(f"{self.name} was deleted")
        self.log.failed()
        self.purgatory.fail(self.failure)


def failure_code(error: Exception) -> ErrorCode:
    """What a client is told whose wait on a partition ended with this failure."""
    if isinstance(error, StorageError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NOT_LEADER_OR_FOLLOWER
