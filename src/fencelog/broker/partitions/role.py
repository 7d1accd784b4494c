"""The role of a replica, which decides which offsets are committed and who may read.

In Kafka a leader counts its in-sync replicas, and a follower learns the high watermark from its
leader. The role is an object, so a replica that changes its role keeps no state of the old one.
"""

from typing import Protocol

from fencelog.errors import ErrorCode
from fencelog.types import LeaderEpoch, Offset


class Role(Protocol):
    """The current role of a replica."""

    leads: bool
    """Whether this broker decides what is appended."""
    is_alone: bool
    """Whether there is no other replica."""

    def flushed(self, end_offset: Offset) -> Offset:
        """Everything below ``end_offset`` is durable here; return the high watermark (F2)."""
        ...

    def told(self, high_watermark: Offset) -> Offset:
        """Another broker has moved the high watermark so far; return the one in force here."""
        ...

    def has_enough(self, min_insync_replicas: int) -> bool:
        """Tell whether so many replicas are in sync, for appends that wait for them."""
        ...

    @property
    def read_error(self) -> ErrorCode:
        """Why nobody but a replica may read now; NONE if everybody may (F8)."""
        ...


class Alone:
    """The only replica: what is durable here is committed (F2)."""

    __slots__ = ()
    leads = is_alone = True
    read_error = ErrorCode.NONE

    def flushed(self, end_offset: Offset) -> Offset:
        """Return the end of what is durable here."""
        return end_offset

    def told(self, high_watermark: Offset) -> Offset:
        """Return it as it is; there is nobody to tell it."""
        return high_watermark

    def has_enough(self, min_insync_replicas: int) -> bool:
        """Tell whether one replica is enough."""
        return min_insync_replicas <= 1


class Progress(Protocol):
    """What the leader of a partition knows of its followers (``replication.leader``)."""

    leader_epoch: LeaderEpoch

    def flushed(self, end: Offset) -> Offset:
        """Everything below ``end`` is durable here; return the high watermark."""
        ...

    @property
    def has_enough(self) -> bool:
        """Whether ``min.insync.replicas`` are in sync."""
        ...

    @property
    def serves(self) -> bool:
        """Whether all that earlier leaders have committed is known to be."""
        ...


class LeaderRole:
    """The leader of several replicas: its followers decide, too, what is committed."""

    __slots__ = ("_progress",)
    leads = True
    is_alone = False

    def __init__(self, progress: Progress) -> None:
        """Lead as long as this leadership lasts."""
        self._progress = progress

    def flushed(self, end_offset: Offset) -> Offset:
        """Return how far the in-sync replicas are."""
        return self._progress.flushed(end_offset)

    def told(self, high_watermark: Offset) -> Offset:
        """Return what the acknowledgement of a follower has made of it."""
        return high_watermark

    def has_enough(self, min_insync_replicas: int) -> bool:
        """Tell whether so many are in sync; the leadership knows the topic's number."""
        del min_insync_replicas
        return self._progress.has_enough

    @property
    def read_error(self) -> ErrorCode:
        """Readers wait for the start of its epoch, or the next one: HW would go back (KIP-207)."""
        return ErrorCode.NONE if self._progress.serves else ErrorCode.OFFSET_NOT_AVAILABLE


class FollowerRole:
    """A replica that copies its leader: what is committed is the leader's to say."""

    __slots__ = ("_durable_end", "_high_watermark")
    leads = is_alone = False
    read_error = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __init__(self, durable_end: Offset) -> None:
        """Start without word from the leader."""
        self._durable_end = durable_end
        self._high_watermark = Offset(0)

    def flushed(self, end_offset: Offset) -> Offset:
        """Return how much of what is durable here the leader has called committed."""
        self._durable_end = end_offset
        return min(self._high_watermark, end_offset)

    def told(self, high_watermark: Offset) -> Offset:
        """Return the leader's high watermark as far as the records are durable here."""
        self._high_watermark = high_watermark
        return min(high_watermark, self._durable_end)

    def has_enough(self, min_insync_replicas: int) -> bool:
        """Tell nothing good: only a leader knows."""
        del min_insync_replicas
        return False
