"""What is news on the stream between a follower and a leader: the rest is not sent.

The connection is the session. A request names the partitions whose position has changed since the
request before, an answer those that have something to tell. So partitions where nothing happens
cost nothing, however many there are. A new connection begins with nothing known on either side.
"""

from typing import Generic, NamedTuple, TypeVar

from fencelog.types import LeaderEpoch, Offset

K = TypeVar("K")
"""How a partition is named on the stream."""


class Position(NamedTuple):
    """Where a follower is in one partition."""

    leader_epoch: LeaderEpoch
    """The epoch that it follows."""
    fetch_offset: Offset
    """The end of its log."""
    last_epoch: int
    """The epoch of its last batch; -1 for a log that never had one."""
    durable_end: Offset
    """The end of what is durable there in the mode in force."""
    log_start: Offset
    """The start of its log."""


class Watermarks(NamedTuple):
    """What every answer tells of a partition."""

    high_watermark: Offset
    log_start: Offset


class News(NamedTuple, Generic[K]):
    """The content of one request; what is forgotten comes first."""

    positions: list[tuple[K, Position]]
    forgotten: list[K]


class FollowerSession(Generic[K]):
    """The follower's side: what its next request says."""

    def __init__(self) -> None:
        """Follow nothing."""
        self._followed: dict[K, Position] = {}
        self._told: dict[K, Position] = {}
        """The positions that the leader knows."""
        self._news: dict[K, None] = {}
        self._forgotten: dict[K, None] = {}

    def __len__(self) -> int:
        """Return the number of partitions that are followed."""
        return len(self._followed)

    def __contains__(self, key: K) -> bool:
        """Tell whether a partition is followed."""
        return key in self._followed

    @property
    def has_news(self) -> bool:
        """Whether there is something to say."""
        return bool(self._news or self._forgotten)

    def follow(self, key: K, position: Position) -> None:
        """The follower is here, from now on."""
        self._followed[key] = position
        if self._told.get(key) == position:
            self._news.pop(key, None)
        else:
            self._news[key] = None

    def again(self, key: K) -> None:
        """Say the position once more, although it is the same, as that of a new partition."""
        if key in self._followed:
            self._news[key] = None
            if self._told.pop(key, None) is not None:
                self._forgotten[key] = None

    def forget(self, key: K) -> None:
        """Follow a partition no more."""
        if self._followed.pop(key, None) is not None:
            self._news.pop(key, None)
            if self._told.pop(key, None) is not None:
                self._forgotten[key] = None

    def restart(self) -> None:
        """There is a new connection: the leader knows nothing."""
        self._told.clear()
        self._forgotten.clear()
        self._news = dict.fromkeys(self._followed)

    def take(self, limit: int) -> News[K]:
        """Return the content of the next request, of up to ``limit`` positions; it is told then."""
        positions = []
        for key in list(self._news)[:limit]:
            del self._news[key]
            position = self._told[key] = self._followed[key]
            positions.append((key, position))
        forgotten, self._forgotten = list(self._forgotten), {}
        return News(positions, forgotten)


class _Entry:
    """One partition of the leader's side."""

    __slots__ = ("is_armed", "position", "told")

    def __init__(self, position: Position) -> None:
        self.position = position
        self.is_armed = True
        """Whether it may be answered: what was answered waits for the position that follows."""
        self.told: Watermarks | None = None


class LeaderSession(Generic[K]):
    """The leader's side: which partitions the next answer looks at.

    ``ready`` has those that may have records or an error to tell, ``stale`` those of which only the
    watermarks have changed, which are told when there is an answer anyway. Records are sent once
    for each position.
    """

    def __init__(self) -> None:
        """Know of no partition."""
        self._entries: dict[K, _Entry] = {}
        self.ready: dict[K, None] = {}
        self.stale: dict[K, None] = {}

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self._entries)

    def partitions(self) -> list[K]:
        """Return all partitions."""
        return list(self._entries)

    def position(self, key: K) -> Position | None:
        """Return where the follower is; None if it does not follow the partition here."""
        entry = self._entries.get(key)
        return None if entry is None else entry.position

    def moved(self, key: K, position: Position) -> None:
        """The follower has said where it is."""
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(position)
            self.ready[key] = None
            return
        # What is durable there changes while an answer for the same position is on its way.
        is_same_log = _log_of(entry.position) == _log_of(position)
        entry.position = position
        if not is_same_log:
            entry.is_armed = True
            self.ready[key] = None

    def has_all(self, key: K) -> None:
        """The follower is at the log's end, and the logs agree: no answer is due.

        What has changed of the watermarks is told with the next records, or now and then.
        """
        if self._entries[key].told is not None:
            self.ready.pop(key, None)
            self.stale[key] = None

    def forget(self, key: K) -> None:
        """The follower does not follow the partition any more, or begins with it anew."""
        self._entries.pop(key, None)
        self.ready.pop(key, None)
        self.stale.pop(key, None)

    def changed(self, key: K, log_end: Offset) -> bool:
        """The partition has changed; ``log_end`` is the end of what may be sent.

        Returns whether there is something to send now.
        """
        entry = self._entries.get(key)
        if entry is None:
            return False
        if entry.is_armed and log_end > entry.position.fetch_offset:
            self.ready[key] = None
            return True
        self.stale[key] = None
        return False

    def look(self, key: K) -> Position | None:
        """Take a partition out of both lists; None if there is nothing to answer it."""
        self.ready.pop(key, None)
        self.stale.pop(key, None)
        entry = self._entries.get(key)
        return None if entry is None else entry.position

    def may_send(self, key: K) -> bool:
        """Whether records have not been sent yet for the position of a partition."""
        return self._entries[key].is_armed

    def answered(
        self, key: K, position: Position, watermarks: Watermarks, *, ends_position: bool
    ) -> bool:
        """The partition was looked at; return whether the answer names it.

        ``ends_position``: it has records or a divergence for this position. It is left out if the
        follower has moved on since ``look``.
        """
        entry = self._entries.get(key)
        if entry is None or _log_of(entry.position) != _log_of(position):
            return False
        is_news = ends_position or entry.told != watermarks
        entry.told = watermarks
        entry.is_armed = entry.is_armed and not ends_position
        return is_news


def _log_of(position: Position) -> tuple[LeaderEpoch, Offset, int]:
    return position[:3]
