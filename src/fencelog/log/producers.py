"""Producer state of one partition: the rules of idempotence (E1-E6, E13).

``validate_sequence`` decides on a batch and changes nothing; the methods of ``ProducerState`` that
change it are called once the batch is in the log, live or replayed.
"""

from collections import deque
from typing import NamedTuple

from fencelog.errors import ErrorCode
from fencelog.log.values import ProducerView
from fencelog.settings.table import default_of
from fencelog.types import (
    CoordinatorEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
)
from fencelog.wire.batch import SEQUENCE_MODULUS

WINDOW_BATCHES = 5
"""Batches that a client may have in flight, and so may retry."""
PRODUCER_EXPIRATION_MS = default_of("producer.id.expiration.ms")
_SEQUENCE_MASK = SEQUENCE_MODULUS - 1
UNKNOWN_SEQUENCE = -1
NO_COORDINATOR_EPOCH = CoordinatorEpoch(-1)
NO_OFFSET = Offset(-1)
UNSEEN = TimestampMs(-1)
"""When a producer was seen last, if no time is known: it counts from the next upkeep."""


class StoredBatch(NamedTuple):
    """A batch in the window: enough to recognise a retry and to answer it."""

    first_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: TimestampMs


class ProducerState:
    """One producer on one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "next_sequence",
        "open_offset",
        "seen_ms",
    )

    def __init__(self, epoch: ProducerEpoch) -> None:
        """Start a producer of this epoch, with nothing else known."""
        self.epoch = epoch
        self.next_sequence = UNKNOWN_SEQUENCE
        """Sequence that must come next; -1: any sequence is accepted (E5)."""
        self.batches: deque[StoredBatch] = deque(maxlen=WINDOW_BATCHES)
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.open_offset = NO_OFFSET
        """First offset of the open transaction, -1 without one."""
        self.seen_ms = UNSEEN
        """Time of its last append by the broker's clock; -1 after a start and on a follower."""

    def __eq__(self, other: object) -> bool:
        """Compare all but ``seen_ms``, which the log does not record."""
        if not isinstance(other, ProducerState):
            return NotImplemented
        return self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """Show what is compared."""
        return f"ProducerState{self._key()}"

    def _key(self) -> tuple[object, ...]:
        return (
            self.epoch,
            self.next_sequence,
            tuple(self.batches),
            self.coordinator_epoch,
            self.open_offset,
        )

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record, -1 if none is known."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_timestamp(self) -> TimestampMs:
        """Largest timestamp of its last batch, -1 if none is known."""
        return self.batches[-1].timestamp if self.batches else TimestampMs(-1)

    def adopt(self, epoch: ProducerEpoch) -> None:
        """Begin a newer epoch: it starts at sequence 0 with an empty window (E6)."""
        self.epoch = epoch
        self.next_sequence = 0
        self.batches.clear()

    def before(self, offset: Offset) -> "ProducerState":
        """Return what the batches from this offset on do not say of it: replay them after it."""
        state = ProducerState(self.epoch)
        state.batches.extend(each for each in self.batches if each.last_offset < offset)
        state.coordinator_epoch = self.coordinator_epoch
        if self.open_offset < offset:
            state.open_offset = self.open_offset
        if len(state.batches) == len(self.batches):
            state.next_sequence = self.next_sequence
        elif state.batches:
            state.next_sequence = (state.last_sequence + 1) & _SEQUENCE_MASK
        return state

    def store(self, batch: StoredBatch) -> None:
        """Record a batch that is in the log now."""
        if batch.first_sequence != self.next_sequence:
            # Any sequence is accepted where none was known (E5); in a replay, the state had expired
            # here before the restart. The window must not span the gap.
            self.batches.clear()
        self.batches.append(batch)
        self.next_sequence = (batch.last_sequence + 1) & _SEQUENCE_MASK


def last_sequence(first_sequence: int, last_offset_delta: int) -> int:
    """Return the sequence of a batch's last record; 0 follows 2^31 - 1 (E1)."""
    return (first_sequence + last_offset_delta) & _SEQUENCE_MASK


def validate_sequence(
    state: ProducerState | None, epoch: int, first_sequence: int, last_sequence: int
) -> StoredBatch | ErrorCode | None:
    """Return None to append, the stored batch that this one repeats, or the error.

    Without a state any epoch and sequence is accepted (E5): the producer is new, or its state
    expired.
    """
    if state is None:
        return None
    if epoch < state.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH  # E2
    if first_sequence < 0:
        return None  # a coordinator's own batch: it has no sequences
    # KIP-360: an idempotent producer raises its epoch by itself and starts again at 0 (E6).
    expected = state.next_sequence if epoch == state.epoch else 0
    if expected in (first_sequence, UNKNOWN_SEQUENCE):
        return None  # E3
    if epoch == state.epoch:
        for stored in state.batches:
            if stored.first_sequence == first_sequence and stored.last_sequence == last_sequence:
                return stored  # E4
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # E4, E5


class Producers(dict[ProducerId, ProducerState]):
    """The producers of one partition by id."""

    def knows(self, producer_id: ProducerId) -> bool:
        """Tell whether a sequence of this producer is known."""
        state = self.get(producer_id)
        return state is not None and state.next_sequence != UNKNOWN_SEQUENCE

    def view(self, producer_id: ProducerId) -> ProducerView | None:
        """Return the state of one producer, to be shown; None: it is not known here."""
        state = self.get(producer_id)
        return None if state is None else _view(producer_id, state)

    def views(self) -> list[ProducerView]:
        """Return the state of each producer, to be shown."""
        return [_view(producer_id, state) for producer_id, state in self.items()]

    def expire(self, now_ms: TimestampMs, expiration_ms: int) -> list[ProducerId]:
        """Forget idle producers that have no open transaction; return their ids.

        Idle time counts from the last append by the broker's clock (records may carry any
        timestamp), or from the first call after a start, so that a restart turns no retry into a
        new record.
        """
        expired = []
        for producer_id, state in self.items():
            if state.seen_ms == UNSEEN:
                state.seen_ms = now_ms
            elif now_ms - state.seen_ms >= expiration_ms and state.open_offset < 0:
                expired.append(producer_id)
        for producer_id in expired:
            del self[producer_id]
        return expired


def _view(producer_id: ProducerId, state: ProducerState) -> ProducerView:
    return ProducerView(
        producer_id,
        state.epoch,
        Sequence(state.last_sequence),
        state.last_timestamp,
        state.coordinator_epoch,
        state.open_offset if state.open_offset >= 0 else None,
    )
