"""What one partition's batches may say of producers and transactions, checked one by one.

Written independently of ``fencelog.log``, because it checks it: nothing here
looks at the log's own state. A method that takes a batch returns what is wrong with it, or None,
and applies it in any case, so that one fault is reported once.

Producers that expire are not known here: a run is far shorter than the day that it takes.
"""

from collections import deque
from typing import NamedTuple

from fencelog.wire.batch import SEQUENCE_MODULUS, BatchHeader
from fencelog.wire.control import Marker

UNKNOWN = -1


class Producer:
    """One producer on one partition."""

    __slots__ = (
        "coordinator_epoch",
        "epoch",
        "last_offset",
        "last_sequence",
        "next_sequence",
        "open_offset",
    )

    def __init__(self, epoch: int) -> None:
        """Nothing but its epoch is known."""
        self.epoch = epoch
        self.next_sequence = UNKNOWN
        self.last_sequence = UNKNOWN
        self.last_offset = UNKNOWN
        """Of its last data batch of this epoch that has a sequence."""
        self.coordinator_epoch = UNKNOWN
        self.open_offset = UNKNOWN

    def begin_epoch(self, epoch: int) -> None:
        """A newer incarnation: it starts at sequence 0."""
        self.epoch = epoch
        self.next_sequence = 0
        self.last_sequence = self.last_offset = UNKNOWN


class Aborted(NamedTuple):
    """An aborted transaction: its producer, its first record, its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int


class Ledger:
    """Producers and transactions of one partition."""

    def __init__(self) -> None:
        """No batch yet."""
        self.producers: dict[int, Producer] = {}
        self.open: dict[int, int] = {}
        """First offset of each open transaction by producer id, in the order of the offsets."""
        self.aborted: list[Aborted] = []
        self.marked: dict[int, int] = {}
        """Offset of each producer's last marker."""
        self.sealed_at = UNKNOWN
        """Offset of the seal: no records follow it (R2)."""
        self._ended: deque[tuple[int, int]] = deque()

    def seal(self, header: BatchHeader) -> str | None:
        """Apply a seal; returns its violation or None."""
        if self.sealed_at >= 0:
            return f"a second seal, the first one is at {self.sealed_at} (R2)"
        self.sealed_at = header.base_offset
        return None

    def behind_seal(self, header: BatchHeader) -> str | None:
        """Return what is wrong with records here: whether the log was sealed before."""
        if self.sealed_at < 0:
            return None
        return f"records of producer {header.producer_id} behind the seal at {self.sealed_at} (R2)"

    def data(self, header: BatchHeader) -> str | None:
        """Apply a data batch of a producer; returns its violation or None."""
        _, _, _, _, _, _, delta, _, _, producer_id, epoch, sequence, _ = header
        producer = self.producers.get(producer_id)
        if producer is None:
            producer = self.producers[producer_id] = Producer(epoch)
        problem = self._misplaced(producer, header)
        if epoch > producer.epoch:
            producer.begin_epoch(epoch)
        if sequence >= 0:
            producer.last_sequence = (sequence + delta) % SEQUENCE_MODULUS
            producer.next_sequence = (producer.last_sequence + 1) % SEQUENCE_MODULUS
            producer.last_offset = header.last_offset
        if header.is_transactional and producer.open_offset < 0:
            producer.open_offset = self.open[producer_id] = header.base_offset
        return problem

    @staticmethod
    def _misplaced(producer: Producer, header: BatchHeader) -> str | None:
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch < producer.epoch:
            return f"a batch of epoch {epoch}, fenced by {producer.epoch} (E2)"
        if producer.open_offset >= 0:
            if epoch != producer.epoch:
                return f"epoch {epoch} inside the open transaction of epoch {producer.epoch} (E7)"
            if not header.is_transactional:
                return "a plain batch inside the producer's open transaction (E10)"
        if sequence < 0:
            return None  # a coordinator's own batch: it numbers nothing
        due = producer.next_sequence if epoch == producer.epoch else 0
        if due not in (sequence, UNKNOWN):
            behind = (due - sequence) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2
            rule = "twice (E4)" if behind and epoch == producer.epoch else "after a gap (E5)"
            return f"sequence {sequence} {rule}: expected {due} of epoch {epoch}"
        return None

    def marker(self, header: BatchHeader, marker: Marker) -> str | None:
        """Apply a transaction marker; returns its violation or None."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        producer = self.producers.get(producer_id)
        problem = self._misplaced_marker(producer, epoch, marker)
        if producer is None:
            if marker.drops_state:
                return problem
            producer = self.producers[producer_id] = Producer(epoch)
        self.marked[producer_id] = header.base_offset
        if producer.open_offset >= 0:
            self._ended.append((producer.open_offset, header.base_offset))
            if not marker.commit:
                self.aborted.append(Aborted(producer_id, producer.open_offset, header.base_offset))
            producer.open_offset = UNKNOWN
            del self.open[producer_id]
        if marker.drops_state:
            del self.producers[producer_id]
            return problem
        if epoch > producer.epoch:
            producer.begin_epoch(epoch)
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        return problem

    @staticmethod
    def _misplaced_marker(producer: Producer | None, epoch: int, marker: Marker) -> str | None:
        if producer is None:
            # The first marker of an epoch fences older epochs here, so it is needed.
            return "a marker that drops no producer state (V5)" if marker.drops_state else None
        if marker.coordinator_epoch < producer.coordinator_epoch:
            return (
                f"a marker of coordinator epoch {marker.coordinator_epoch} after one of "
                f"{producer.coordinator_epoch} (E17)"
            )
        if producer.open_offset >= 0:
            if epoch < producer.epoch:
                return f"a marker of epoch {epoch} ends a transaction of {producer.epoch} (E14)"
            return None
        is_news = epoch > producer.epoch or (
            epoch == producer.epoch and marker.coordinator_epoch > producer.coordinator_epoch
        )
        if is_news or marker.drops_state:
            return None
        return f"a second marker of epoch {epoch}, though nothing is open (E10)"

    def last_stable_offset(self, high_watermark: int, log_start: int, *, begun_at: int = 0) -> int:
        """Where the last stable offset must be; the high watermark never goes back between calls.

        A transaction is undecided until its marker is below the high watermark. ``begun_at``: those
        that began below are not known any more.
        """
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        begun = [*self.open.values(), *(first_offset for first_offset, _ in ended)]
        lowest = min((each for each in begun if each >= begun_at), default=high_watermark)
        return max(min(lowest, high_watermark), log_start)
