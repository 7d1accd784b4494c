"""One partition that a fetch asks for: from where, and how much there is, by offsets alone."""

from typing import NamedTuple, Protocol

from fencelog.broker.partitions.partition import Partition
from fencelog.broker.partitions.reading import Fetched
from fencelog.errors import ErrorCode
from fencelog.log.values import Isolation, ReadPlan
from fencelog.types import LeaderEpoch, Offset, TopicId
from fencelog.wire.hot import FetchedPartition, FetchPartition

ENOUGH = 1 << 62
"""More bytes than any fetch waits for: the answer has an error to tell, so it does not wait."""


class Key(NamedTuple):
    """A partition as a fetch names it: by the name of its topic or by the id."""

    topic: str | None
    topic_id: TopicId | None
    number: int


class Owner(Protocol):
    """The fetch or session that an interest belongs to."""

    def advanced(self, interest: "Interest") -> bool:
        """There may be more to read; return whether the interest goes on listening."""
        ...

    def interrupted(self, interest: "Interest") -> None:
        """The interest must be resolved and measured again."""
        ...


class Interest:
    """A partition of a fetch or of a session."""

    __slots__ = (
        "_current_leader_epoch",
        "_exhausted",
        "_owner",
        "_start",
        "available",
        "key",
        "listening",
        "max_bytes",
        "offset",
        "partition",
        "told",
    )

    def __init__(self, key: Key, requested: FetchPartition) -> None:
        """Start unresolved: it listens to nothing yet."""
        self._owner: Owner | None = None
        """Who is told while it listens; none after ``stop``, so that both can be freed."""
        self.key = key
        self.partition: Partition | None = None
        self.listening = False
        """Whether its partition calls it at changes."""
        self.available = 0
        """Bytes that count towards the minimum of the fetch that waits; see ``measure``."""
        self.told: tuple[int, int, int] | None = None
        """High watermark, LSO and log start as the client knows them; None after an error."""
        self.update(requested)

    def update(self, requested: FetchPartition) -> None:
        """Read from another offset, or with another limit, from now on."""
        self.offset = Offset(requested.fetch_offset)
        self.max_bytes = requested.partition_max_bytes
        self._current_leader_epoch = requested.current_leader_epoch
        self._forget()

    def _forget(self) -> None:
        self._start: tuple[Offset, int] | None = None
        """Segment and position where the offset is, as far as it is known."""
        self._exhausted: tuple[Offset, int] | None = None
        """An upper offset, and the bytes that a read has found below it."""

    # -- waiting ---------------------------------------------------------------------------------

    def resolve(self, partition: Partition | None) -> None:
        """Its key means this partition now; None: there is none."""
        if partition is not self.partition:
            self.stop()
            self.partition = partition
            self._forget()

    def listen(self, owner: Owner) -> None:
        """Be called by the partition at its changes, and tell the owner."""
        self._owner = owner
        if self.partition is not None and not self.listening:
            self.partition.add_reader(self)
            self.listening = True

    def stop(self) -> None:
        """Listen no more."""
        if self.listening and self.partition is not None:
            self.partition.remove_reader(self)
        self.listening = False
        self._owner = None

    def advanced(self) -> bool:
        """The high watermark or the LSO has moved."""
        self.listening = self._owner is not None and self._owner.advanced(self)
        return self.listening

    def interrupted(self) -> None:
        """Files or the log start have changed, or the partition has failed or was deleted."""
        self.listening = False
        self._forget()
        if self._owner is not None:
            self._owner.interrupted(self)

    # -- measuring -------------------------------------------------------------------------------

    def epoch_error(self) -> ErrorCode:
        """Check the leader epoch that the client knows (KIP-320)."""
        assert self.partition is not None, self.key
        return epoch_error(self._current_leader_epoch, self.partition.log.leader_epoch)

    def measure(self, isolation: Isolation) -> int:
        """Return how many bytes there are to read, without reading; ENOUGH if there is an error.

        Up to one interval of the offset index too many, until a read has found the exact end.
        """
        if self.partition is None:
            return ENOUGH
        plan = self._plan(self.partition, isolation)
        if isinstance(plan, ErrorCode):
            # A new leader is waited for until it serves, one that has resigned until it is known.
            return 0 if plan is ErrorCode.OFFSET_NOT_AVAILABLE else ENOUGH
        if self._start is None:
            self._start = plan.segment_base_offset, plan.position
        if plan.is_empty:
            return 0
        if self._exhausted is not None and self._exhausted[0] == plan.upper_offset:
            return self._exhausted[1]
        segment_base_offset, start = self._start
        if segment_base_offset != plan.segment_base_offset or not plan.reaches_upper:
            return max(self.max_bytes, 1)  # a read ends with its segment, so it waits for nothing
        return max(min(plan.end_position - start, self.max_bytes), 1)

    def _plan(self, partition: Partition, isolation: Isolation) -> ReadPlan | ErrorCode:
        error = self.epoch_error() or partition.refusal(isolation)
        return error or partition.log.read(self.offset, self.max_bytes, isolation)

    def correct(self, found: Fetched) -> None:
        """Take the exact size from a read, if it found all that may be read by now."""
        plan = found.plan
        if plan is not None and not plan.is_empty and found.is_exhausted:
            size = found.size
            self._start = plan.segment_base_offset, plan.end_position - size
            self._exhausted = plan.upper_offset, size

    # -- telling ---------------------------------------------------------------------------------

    def tell(self, fetched: FetchedPartition) -> bool:
        """The client is told this; return whether it is news."""
        told = None
        if fetched.error is ErrorCode.NONE:
            told = fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset
        is_news = bool(fetched.records) or told is None or told != self.told
        self.told = told
        return is_news


def epoch_error(requested: int, current: LeaderEpoch) -> ErrorCode:
    """Check the leader epoch that a client sent; -1 is not checked (KIP-320)."""
    if requested < 0 or requested == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if requested < current else ErrorCode.UNKNOWN_LEADER_EPOCH
