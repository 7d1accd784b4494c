"""Verification guards: make a coordinator's answer and the append one step (E14, V5; KIP-890).

While the broker asks the coordinator whether a transaction is open, a marker may end it: the answer
is then stale. The guard is taken before the request, and any marker that may have ended the
transaction invalidates it, so no append relies on a stale answer.
"""

from typing import TypeVar

from fencelog.log.values import MarkerToWrite
from fencelog.types import ProducerEpoch, ProducerId

_Value = TypeVar("_Value")

EPOCHS_MAX = 4
"""Epochs of one producer in verification; above it the oldest guard is dropped and retried."""

GUARDS_MAX = 10_000
"""Producers in verification on one partition; above it the oldest guard is dropped and retried."""


class VerificationGuard:
    """Permission to begin one transaction on this partition, unless a marker comes first."""

    __slots__ = ("from_zero", "lowest_sequence", "producer_epoch")

    def __init__(self, producer_epoch: ProducerEpoch, sequence: int) -> None:
        """Made by ``Guards.begin`` only; compared by identity."""
        self.producer_epoch = producer_epoch
        self.lowest_sequence = sequence
        self.from_zero = False
        """Whether a producer without a known sequence must begin at 0: its epoch is new (E5)."""


class Guards:
    """The valid guards, and the first sequences of producers not yet known here.

    A producer without a state may begin at any sequence (E5). If its first batch was refused or is
    still being verified, a later one in flight must not begin in its place: it would be stored
    before the first (E13).
    """

    __slots__ = ("_guards", "_refused")

    def __init__(self) -> None:
        """Start empty."""
        self._guards: dict[ProducerId, tuple[VerificationGuard, ...]] = {}
        """The guards of one producer have different epochs."""
        self._refused: dict[ProducerId, tuple[int, int]] = {}

    def begin(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, sequence: int
    ) -> VerificationGuard:
        """Return the guard for this producer and epoch; makes one if there is none.

        A new guard drops those of older epochs; a late request of an older epoch drops none.
        """
        guard = self._of(producer_id, producer_epoch)
        if guard is None:
            guard = VerificationGuard(producer_epoch, sequence)
            guards = self._guards.get(producer_id, ())
            newer = (each for each in guards if each.producer_epoch > producer_epoch)
            _put(self._guards, producer_id, (*newer, guard)[-EPOCHS_MAX:])
        elif 0 <= sequence < guard.lowest_sequence or guard.lowest_sequence < 0:
            guard.lowest_sequence = sequence
        return guard

    def permits(
        self, guard: VerificationGuard | None, producer_id: ProducerId, epoch: ProducerEpoch
    ) -> bool:
        """Tell whether this guard is still valid for this producer."""
        return guard is not None and self._of(producer_id, epoch) is guard

    def _of(self, producer_id: ProducerId, epoch: int) -> VerificationGuard | None:
        for guard in self._guards.get(producer_id, ()):
            if guard.producer_epoch == epoch:
                return guard
        return None

    def refused(self, producer_id: ProducerId, epoch: int, sequence: int) -> None:
        """A batch of a producer without a state was refused."""
        known = self._refused.get(producer_id)
        if known is None or epoch > known[0] or (epoch == known[0] and sequence < known[1]):
            _put(self._refused, producer_id, (epoch, sequence))

    def may_begin(self, producer_id: ProducerId, epoch: int, sequence: int) -> bool:
        """Tell whether a producer without a known sequence may begin with this one."""
        guard = self._of(producer_id, epoch)
        if guard is None:
            may_begin = True
        elif guard.from_zero:
            may_begin = sequence <= 0
        else:
            may_begin = guard.lowest_sequence < 0 or sequence <= guard.lowest_sequence
        refused = self._refused.get(producer_id)
        if refused is not None and refused[0] == epoch:
            may_begin = may_begin and sequence <= refused[1]
        return may_begin

    def invalidate(self, marker: MarkerToWrite) -> None:
        """Drop the producer's guards, because a marker was appended.

        Except one with the epoch of a marker of transaction version 2: its transaction is the one
        after the marker, and the producer may begin it before the marker is written.
        """
        kept = self._of(marker.producer_id, marker.producer_epoch) if marker.is_bumped else None
        self._guards.pop(marker.producer_id, None)
        if kept is not None:
            self._guards[marker.producer_id] = (kept,)

    def stored(self, producer_id: ProducerId, *, opens: bool) -> None:
        """A batch of this producer is in the log: its sequence is known from now on.

        ``opens``: its transaction is open here now, so no verification is needed.
        """
        self._refused.pop(producer_id, None)
        if opens:
            self._guards.pop(producer_id, None)

    def __bool__(self) -> bool:
        """Tell whether there is any guard or refused sequence."""
        return bool(self._guards or self._refused)


def _put(entries: dict[ProducerId, _Value], key: ProducerId, value: _Value) -> None:
    if key not in entries and len(entries) >= GUARDS_MAX:
        del entries[next(iter(entries))]
    entries[key] = value
