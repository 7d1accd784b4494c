"""What the leader of a partition knows of its followers: the high watermark and who is in sync.

A proposal to change the in-sync replicas counts twice until its outcome is known: the high
watermark waits for the members before and after it, because the metadata store may have either.
"""

from collections.abc import Collection
from typing import NamedTuple

from fencelog.types import Instant, LeaderEpoch, NodeId, Offset

_UNKNOWN = Offset(-1)
_NEVER = Instant(float("-inf"))


class Leadership(NamedTuple):
    """How one leadership of one partition begins."""

    node_id: NodeId
    """The leader."""
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    leader_epoch: LeaderEpoch
    epoch_start: Offset
    """The end of the leader's log."""
    high_watermark: Offset
    """As it is known here; committed may be more."""
    min_isr: int
    """How many in-sync replicas the high watermark needs to move."""


class _Follower:
    """What one follower has said since it connected."""

    __slots__ = (
        "asked_at",
        "caught_up_at",
        "durable_end",
        "fetch_end",
        "log_end_then",
        "log_start",
        "unflushed_end",
        "unflushed_since",
    )

    def __init__(self, caught_up_at: Instant) -> None:
        self.caught_up_at = caught_up_at
        """When it last had all that the leader had."""
        self.forget()

    def forget(self) -> None:
        """It has to say again what it has."""
        self.fetch_end = self.durable_end = self.log_end_then = self.unflushed_end = _UNKNOWN
        self.log_start = _UNKNOWN
        self.asked_at = self.unflushed_since = _NEVER

    def said(self, fetch_end: Offset, durable_end: Offset, now: Instant, log_end: Offset) -> None:
        """Take a position. Time counts as in Kafka's ``Replica.updateFetchState``.

        Who has now what the leader had at the request before was caught up at that time: while
        records come all the time, no request finds the follower at the leader's end.
        """
        if fetch_end >= log_end:
            self.caught_up_at = now
        elif self.asked_at != _NEVER and fetch_end >= self.log_end_then:
            self.caught_up_at = self.asked_at
        if durable_end >= self.unflushed_end:
            self.unflushed_end, self.unflushed_since = fetch_end, now
        self.fetch_end, self.durable_end = fetch_end, durable_end
        self.asked_at, self.log_end_then = now, log_end

    def flushes(self, now: Instant, lag_s: float) -> bool:
        """Whether what it had ``lag_s`` ago is durable there: else its disk holds all others up."""
        return self.durable_end >= self.unflushed_end or now - self.unflushed_since <= lag_s


class LeaderProgress:
    """One leadership of one partition: F2 and F7 as the leader sees them.

    Invariant: ``high_watermark`` never goes back, and all members of the in-sync replicas, of the
    known and of the proposed ones, have said that everything below it is durable.
    """

    __slots__ = (
        "_all_replicas",
        "_durable_end",
        "_followers",
        "_is_resigned",
        "_isr",
        "_min_isr",
        "_node_id",
        "_proposed",
        "_replicas",
        "epoch_start",
        "high_watermark",
        "leader_epoch",
    )

    def __init__(self, begun: Leadership, *, all_replicas: bool, now: Instant) -> None:
        """Begin to lead. Call ``flushed`` at once with the end of what is durable here.

        ``all_replicas``: committed is only what all replicas have, in sync or not (F2).
        """
        self._node_id = begun.node_id
        self._replicas = begun.replicas
        self._isr = self._proposed = self._members(begun.isr)
        self._min_isr = begun.min_isr
        self._all_replicas = all_replicas
        self._durable_end = begun.high_watermark
        self._is_resigned = False
        self._followers = {
            each: _Follower(now if each in self._isr else _NEVER)
            for each in begun.replicas
            if each != begun.node_id
        }
        self.leader_epoch = begun.leader_epoch
        self.epoch_start = begun.epoch_start
        self.high_watermark = begun.high_watermark

    def _members(self, isr: Collection[NodeId]) -> frozenset[NodeId]:
        return frozenset(isr).intersection(self._replicas) | {self._node_id}

    @property
    def isr(self) -> tuple[NodeId, ...]:
        """The in-sync replicas as the metadata store is known to have them, in replica order."""
        return tuple(each for each in self._replicas if each in self._isr)

    def is_member(self, replica: NodeId) -> bool:
        """Whether a replica is in sync, as far as the store is known."""
        return replica in self._isr

    def is_replica(self, node: NodeId) -> bool:
        """Whether a broker holds the partition, as far as is known here."""
        return node in self._replicas

    @property
    def has_enough(self) -> bool:
        """Whether ``min.insync.replicas`` are in sync, or all where there are fewer replicas."""
        members = min(len(self._isr), len(self._proposed))
        return members >= min(self._min_isr, len(self._replicas))

    @property
    def serves(self) -> bool:
        """Whether readers and coordinators may begin: all that earlier leaders committed is known.

        Before, the high watermark may be lower than what an earlier leader has shown, and after
        ``resign`` lower than what the next one shows (F8).
        """
        return not self._is_resigned and self.high_watermark >= self.epoch_start

    def resign(self) -> None:
        """Serve readers no more: another leader may be stored from now on.

        Writers go on: what the in-sync replicas acknowledge in this epoch, the next leader has.
        """
        self._is_resigned = True

    @property
    def is_settled(self) -> bool:
        """Whether no proposal is on its way."""
        return self._proposed == self._isr

    # -- acknowledgements ------------------------------------------------------------------------

    def flushed(self, end: Offset) -> Offset:
        """Everything below ``end`` is durable here; return the high watermark."""
        self._durable_end = max(self._durable_end, end)
        return self._advance()

    def acknowledged(
        self,
        replica: NodeId,
        fetch_end: Offset,
        durable_end: Offset,
        now: Instant,
        *,
        log_end: Offset,
        log_start: Offset,
    ) -> Offset:
        """A follower has said where it is, and its log agrees; return the high watermark.

        ``fetch_end`` is the end of its log, ``durable_end`` of what is durable there, ``log_start``
        where it begins; ``log_end`` is the end of this log. Never call it before the follower has
        truncated what differs (F7).
        """
        follower = self._followers.get(replica)
        if follower is not None:
            follower.said(fetch_end, min(durable_end, fetch_end), now, log_end)
            follower.log_start = log_start
        return self._advance()

    def disconnected(self, replica: NodeId) -> None:
        """The follower's stream has ended: it may come back with less, and says what it has."""
        if replica in self._followers:
            self._followers[replica].forget()

    def has_heard(self, replica: NodeId) -> bool:
        """Whether a follower has said where it is since it connected, or left the ISR."""
        follower = self._followers.get(replica)
        return follower is not None and follower.fetch_end != _UNKNOWN

    def require(self, min_isr: int) -> Offset:
        """The topic's ``min.insync.replicas`` has changed; return the high watermark."""
        self._min_isr = min_isr
        return self._advance()

    def _advance(self) -> Offset:
        if self.has_enough:
            counted = self._replicas if self._all_replicas else self._isr | self._proposed
            end = min(self._durable_end_of(each) for each in counted)
            self.high_watermark = max(self.high_watermark, end)
        return self.high_watermark

    def _durable_end_of(self, replica: NodeId) -> Offset:
        if replica == self._node_id:
            return self._durable_end
        return self._followers[replica].durable_end

    def low_watermark(self, log_start: Offset) -> Offset:
        """Return the lowest log start of the in-sync replicas, if this one's is ``log_start``.

        Who is elected among them begins there or above. A follower that has not said where it
        begins counts as -1.
        """
        members = (self._isr | self._proposed) - {self._node_id}
        return min([log_start, *(self._followers[each].log_start for each in members)])

    # -- the in-sync replicas --------------------------------------------------------------------

    def placed(self, replicas: tuple[NodeId, ...]) -> None:
        """The partition has these replicas: more than before, or in another order.

        A new one has to catch up before it joins. Call ``settled`` next.
        """
        for each in replicas:
            if each != self._node_id:
                self._followers.setdefault(each, _Follower(_NEVER))
        self._replicas = replicas

    def isr_change(
        self, now: Instant, lag_s: float, *, log_end: Offset, log_start: Offset
    ) -> tuple[NodeId, ...] | None:
        """Return the in-sync replicas to propose; None if they are as they should be.

        None, too, while a proposal is on its way. Who has not caught up with the log's end for
        ``lag_s`` leaves, and so does whose disk takes longer to make it durable; who has, and has
        all that is committed and all that earlier leaders wrote, and begins where this log does or
        above, joins (F2, D4). Call it after acknowledgements, and from time to time. ``log_end``
        and ``log_start`` are this log's.
        """
        if not self.is_settled:
            return None
        members = tuple(
            each for each in self._replicas if self._belongs(each, now, lag_s, log_end, log_start)
        )
        return None if members == self.isr else members

    def _belongs(
        self, replica: NodeId, now: Instant, lag_s: float, log_end: Offset, log_start: Offset
    ) -> bool:
        if replica == self._node_id:
            return True
        follower = self._followers[replica]
        if follower.fetch_end >= log_end:
            follower.caught_up_at = now
        if now - follower.caught_up_at > lag_s or not follower.flushes(now, lag_s):
            return False
        if replica in self._isr:
            return True
        has_all = follower.durable_end >= max(self.high_watermark, self.epoch_start)
        return has_all and follower.log_start >= log_start

    def proposed(self, isr: Collection[NodeId]) -> None:
        """A change is being written: from here on until ``settled`` it may be in force."""
        assert self._node_id in isr, (self._node_id, isr)
        assert self.is_settled, (self._isr, self._proposed)
        self._proposed = self._members(isr)

    def settled(self, isr: Collection[NodeId]) -> Offset:
        """These are the in-sync replicas, and no proposal can be stored any more.

        Returns the high watermark. Whoever has left says again what it has before it joins: it may
        have left because it lost some of it.
        """
        before = self._isr | self._proposed
        self._isr = self._proposed = self._members(isr)
        for left in before - self._isr:
            self._followers[left].forget()
        return self._advance()
