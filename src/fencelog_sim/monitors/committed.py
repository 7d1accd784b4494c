"""What is committed in a cluster, as if one broker had written it.

The committed batches of a partition come from one leader after the other; here they are one log,
in the order in which they were committed. Each batch is checked by its producer and its transaction
(``ledger``), and against what the coordinators' logs say (``coordinator_model``): no batch twice,
none left out, no transaction that nobody began, no marker that nobody decided or that comes late.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fencelog.broker.metadata.catalog import INTERNAL_TOPICS
from fencelog.coordination.shard import LogRecord
from fencelog.errors import CorruptionError
from fencelog.types import NO_PRODUCER_ID, TopicPartition
from fencelog.wire.batch import BatchHeader, check_crc, read_header
from fencelog.wire.control import Marker, Seal, read_control
from fencelog.wire.records import read_records
from fencelog_sim.monitors.coordinator_model import Coordinators, Place
from fencelog_sim.monitors.ledger import UNKNOWN, Ledger


class ShownOffsets(NamedTuple):
    """What a replica would show readers."""

    log_start: int
    last_stable: int
    high_watermark: int
    sealed_at: int = UNKNOWN
    """Of the seal of a stream's segment (R2)."""
    is_compacted: bool = False
    """A start that reads such a log knows no transaction by batches that retention deleted."""


class CommittedLogs:
    """The committed part of every partition."""

    def __init__(self) -> None:
        """Nothing is committed."""
        self._ledgers: dict[TopicPartition, Ledger] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.coordinators = Coordinators(self)

    def deleted(self, topic: str) -> None:
        """A topic is gone, with all that was open there."""
        for name in [each for each in self._ledgers if each.topic == topic]:
            del self._ledgers[name], self._ends[name]

    def take(self, name: TopicPartition, batches: Iterable[memoryview]) -> list[str]:
        """Take over the next batches of a partition; what is wrong with them."""
        problems: list[str] = []
        for data in batches:
            header = read_header(data, 0)
            where = f"offset {header.base_offset}"
            if not check_crc(data):
                problems.append(f"{where}: its checksum does not fit (D3)")
                continue
            due = self._ends.get(name, header.base_offset)
            if header.base_offset != due:
                problems.append(f"{where} where {due} is due (F1)")
            found = self._judge(name, header, data)
            problems += [f"{where}: {each}" for each in found if each is not None]
            self._ends[name] = header.next_offset
        return problems

    def _judge(
        self, name: TopicPartition, header: BatchHeader, data: memoryview
    ) -> Sequence[str | None]:
        ledger = self._ledgers.setdefault(name, Ledger())
        producer_id, coordinators = header.producer_id, self.coordinators
        if header.is_control:
            marker = read_control(data)
            if isinstance(marker, Seal):
                return [ledger.seal(header)]
            if producer_id < 0 or not isinstance(marker, Marker):
                return []
            problem = coordinators.check(name, header, marker, serving=False)
            problems = [problem, ledger.marker(header, marker)]
            coordinators.end(name, producer_id, commit=marker.commit)
            return problems
        problems = [*self._coordinate(name, header, data)] if name.topic in INTERNAL_TOPICS else []
        problems.append(ledger.behind_seal(header))
        if producer_id >= 0:
            opens = header.is_transactional and producer_id not in ledger.open
            problems.append(coordinators.check_begin(name, header) if opens else None)
            problems.append(ledger.data(header))
            coordinators.shared.written_by.add(producer_id)
        return problems

    def _coordinate(
        self, name: TopicPartition, header: BatchHeader, data: memoryview
    ) -> list[str | None]:
        writer = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        records = [
            (each.offset, LogRecord(each.key or b"", each.value, writer))
            for each in read_records(data)
        ]
        try:
            return [*self.coordinators.take(name, records)]
        except CorruptionError as error:
            return [str(error)]

    def last_stable_offset(self, name: TopicPartition, log_start: int, begun_at: int = 0) -> int:
        """Where it must be, once all that is committed is below the high watermark."""
        ledger = self._ledgers.setdefault(name, Ledger())
        return ledger.last_stable_offset(self._ends.get(name, 0), log_start, begun_at=begun_at)

    def shown_problems(self, name: TopicPartition, shown: ShownOffsets) -> Iterator[str]:
        """Yield what a leader shows otherwise, whose high watermark is the end of all this."""
        start = shown.log_start
        expected = most = self.last_stable_offset(name, start)
        if shown.is_compacted:
            # A transaction that goes on begins at the first of its batches that is left.
            most = self.last_stable_offset(name, start, begun_at=start)
        if not expected <= shown.last_stable <= most:
            yield f"the last stable offset is {shown.last_stable}, expected {expected} (E10)"
        seal = self.sealed_at(name)
        # A seal above the high watermark may not be there for good.
        known = shown.sealed_at if shown.sealed_at < shown.high_watermark else UNKNOWN
        if known != seal:
            yield f"its seal is at {seal}, the leader has {known} (R2)"
        if 0 <= seal < shown.log_start:
            yield f"the log start {shown.log_start} is behind the seal at {seal} (R2)"

    def sealed_at(self, name: TopicPartition) -> int:
        """Return the offset of the committed seal, -1 without one."""
        ledger = self._ledgers.get(name)
        return UNKNOWN if ledger is None else ledger.sealed_at

    # -- questions of the coordinator model ------------------------------------------------------

    def is_open(self, producer_id: int, partition: TopicPartition) -> bool:
        """Whether the producer has data there without a marker after it."""
        ledger = self._ledgers.get(partition)
        return ledger is not None and producer_id in ledger.open

    def last_marker(self, producer_id: int, partition: TopicPartition) -> int | None:
        """Offset of the producer's last marker there."""
        ledger = self._ledgers.get(partition)
        return None if ledger is None else ledger.marked.get(producer_id)

    @staticmethod
    def is_committed(place: Place) -> bool:
        """Whether a record is committed: nothing else is known here."""
        del place
        return True
