"""The partitions that this broker leads, with what their followers have said."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.controller.model import PartitionState
from fencelog.coordination.controller.rules import isr_size_needed
from fencelog.log.partition_log import PartitionLog
from fencelog.replication.leader import LeaderProgress, Leadership
from fencelog.replication.session import Position
from fencelog.types import Instant, NodeId, Offset, TopicId

Key: TypeAlias = tuple[TopicId, int]
"""A partition by its topic's id and its index: a name may be another topic's later."""


class Led:
    """One partition in one leadership of this broker."""

    __slots__ = ("key", "partition", "progress", "version")

    def __init__(
        self, key: Key, partition: Partition, progress: LeaderProgress, version: int
    ) -> None:
        self.key = key
        self.partition = partition
        self.progress = progress
        self.version = version
        """States of the partition's key of a lower version are older than the one in force."""

    def acknowledged(self, replica: NodeId, position: Position) -> None:
        """Take the position of a follower whose log agrees, and what it commits."""
        high_watermark = self.progress.acknowledged(
            replica,
            position.fetch_offset,
            position.durable_end,
            Instant(asyncio.get_running_loop().time()),
            log_end=self.partition.log.log_end_offset,
            log_start=position.log_start,
        )
        self.partition.advance(high_watermark)

    @property
    def low_watermark(self) -> Offset:
        """Where the log begins on all in-sync replicas, this one included, or above it."""
        return self.progress.low_watermark(self.partition.log.log_start_offset)


class LedPartitions:
    """All of them. Who follows one of them is told when it is led no more."""

    def __init__(self) -> None:
        """Lead nothing."""
        self._led: dict[Key, Led] = {}
        self.listeners: list[Callable[[Key], None]] = []
        """Told what ``changed`` is."""
        self.acknowledged: Callable[[Key], None] = lambda key: None
        """A follower has said where it is."""
        self.caught_up: Callable[[Key], None] = lambda key: None
        """A replica that is not in sync has acknowledged something."""
        self.settled: Callable[[Key], None] = lambda key: None
        """The outcome of a write of the in-sync replicas is known."""

    def changed(self, key: Key) -> None:
        """A partition is led in another epoch, or no more, or a follower has to speak again."""
        for listener in self.listeners:
            listener(key)

    def get(self, key: Key) -> Led | None:
        """Return a partition that is led here."""
        return self._led.get(key)

    def all(self) -> list[Led]:
        """Return all partitions that are led here."""
        return list(self._led.values())

    def lead(self, led: Led) -> None:
        """Serve the followers of a partition from now on."""
        self._led[led.key] = led
        self.changed(led.key)

    def resign(self, key: Key) -> None:
        """Serve them no more; harmless for a partition that is not led."""
        if self._led.pop(key, None) is not None:
            self.changed(key)


def leadership(state: PartitionState, log: PartitionLog, min_isr: int) -> Leadership:
    """Return what the leader that a state names begins with on this log."""
    return Leadership(
        state.leader,
        state.replicas,
        state.isr,
        state.leader_epoch,
        log.log_end_offset,
        log.high_watermark,
        isr_size_needed(state, min_isr),
    )
