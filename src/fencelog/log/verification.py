"""Guards between a question to the coordinator and the append that relies on its answer (E14, V5).

While the broker asks whether a transaction is open, a marker may end it: the answer is then old.
The guard that was handed out before the question is void after any marker that may have ended its
transaction, so that check and append are one step although the question takes time.
"""

from typing import TypeVar

from fencelog.log.values import MarkerToWrite
from fencelog.types import ProducerEpoch, ProducerId

_Value = TypeVar("_Value")

EPOCHS_MAX = 4
"""Of one producer in verification at a time; above it the one that asked first must ask again."""

GUARDS_MAX = 10_000
"""Producers in verification on one partition; above it the oldest must ask again."""


class VerificationGuard:
    """Permission to begin one transaction here, as long as nothing ends it first."""

    __slots__ = ("from_zero", "lowest_sequence", "producer_epoch", "producer_id")

    def __init__(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, sequence: int
    ) -> None:
        """Made by ``Guards.begin`` only; compared by identity."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.lowest_sequence = sequence
        self.from_zero = False
        """Whether a producer without sequences here must begin at 0: its epoch is new (E5)."""


class Guards:
    """The guards in force, and the first sequences of producers not yet known here.

    A producer without a state may begin at any sequence (E5). Where its first batch was refused or
    is still being verified, a later one in flight must not take that freedom: it would be stored
    before the first (E13).
    """

    __slots__ = ("_guards", "_refused")

    def __init__(self) -> None:
        """Start empty."""
        self._guards: dict[ProducerId, tuple[VerificationGuard, ...]] = {}
        """Each of a producer has an epoch of its own."""
        self._refused: dict[ProducerId, tuple[int, int]] = {}

    def begin(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, sequence: int
    ) -> VerificationGuard:
        """Return the guard for this producer and epoch, a new one where none is in force.

        Those of older epochs are void then; a late request of one voids none of a newer.
        """
        guard = self._of(producer_id, producer_epoch)
        if guard is None:
            guard = VerificationGuard(producer_id, producer_epoch, sequence)
            guards = self._guards.get(producer_id, ())
            newer = (each for each in guards if each.producer_epoch > producer_epoch)
            _put(self._guards, producer_id, (*newer, guard)[-EPOCHS_MAX:])
        elif 0 <= sequence < guard.lowest_sequence or guard.lowest_sequence < 0:
            guard.lowest_sequence = sequence
        return guard

    def permits(
        self, guard: VerificationGuard | None, producer_id: ProducerId, epoch: ProducerEpoch
    ) -> bool:
        """Tell whether this very guard is still in force for this producer."""
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
        """Tell whether a producer of whom no sequence is known may begin with this one."""
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
        """A marker is here: an answer about its producer from before says nothing any more.

        Except where it ends a transaction of version 2 and has the epoch of the guard: that one's
        transaction comes after the marker, and the producer need not wait for it to begin.
        """
        spared = self._of(marker.producer_id, marker.producer_epoch) if marker.is_bumped else None
        self._guards.pop(marker.producer_id, None)
        if spared is not None:
            self._guards[marker.producer_id] = (spared,)

    def stored(self, producer_id: ProducerId, *, opens: bool) -> None:
        """A batch of this producer is in the log: its sequence is known from now on.

        ``opens``: its transaction is open here now, so there is nothing left to verify.
        """
        self._refused.pop(producer_id, None)
        if opens:
            self._guards.pop(producer_id, None)

    def __bool__(self) -> bool:
        """Tell whether anything is remembered."""
        return bool(self._guards or self._refused)


def _put(entries: dict[ProducerId, _Value], key: ProducerId, value: _Value) -> None:
    if key not in entries and len(entries) >= GUARDS_MAX:
        del entries[next(iter(entries))]
    entries[key] = value
