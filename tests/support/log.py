"""A partition log with a disk of a few lines, so that a test reads as what happens to the log."""

from dataclasses import dataclass, field

from fencelog.log.config import LogConfig
from fencelog.log.ownership import Owner
from fencelog.log.partition_log import PartitionLog
from fencelog.log.rebuild import LogBuilder
from fencelog.log.snapshot import encode_snapshot
from fencelog.log.transactions import aborted_between
from fencelog.log.values import Appended, Duplicate, Isolation, MarkerToWrite, ReadPlan, Rejected
from fencelog.log.verification import VerificationGuard
from fencelog.types import Offset
from fencelog.wire.batch import (
    PLAIN_HEADER,
    BatchHeader,
    attributes,
    iterate,
    read_header,
    seal,
)
from fencelog.wire.control import read_control
from fencelog.wire.hot.append_tags import Revision

NOW_MS = 1_700_000_000_000

Outcome = Appended | Duplicate | Rejected


@dataclass
class SegmentFiles:
    """The files of one segment as far as they were written."""

    log: bytearray = field(default_factory=bytearray)
    index: bytearray = field(default_factory=bytearray)
    time_index: bytearray = field(default_factory=bytearray)
    txn_index: bytearray = field(default_factory=bytearray)
    snapshot: bytes | None = None


def complete_indexes(log: PartitionLog) -> None:
    """Complete the active segment's time index, as a roll does."""
    log._state.active.seal()
    log._unflushed.side_files_changed()


def make_batch(
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    count: int = 1,
    *,
    transactional: bool = False,
    control: bool = False,
    timestamp: int = NOW_MS,
    payload: int = 20,
    flags: int = 0,
) -> memoryview:
    """A batch as a client sends it; its records are zeros, which nobody opens here."""
    header = PLAIN_HEADER._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_offset_delta=count - 1,
        record_count=count,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        attributes=attributes(transactional=transactional, control=control) | flags,
    )
    return memoryview(seal(header, bytes(payload)))


def flush_and_commit(log: PartitionLog, end_offset: Offset) -> None:
    """All below is durable, and with one replica that commits it (F2)."""
    log.flushed(end_offset)
    log.advance_high_watermark(end_offset)


def commit(producer_id: int, epoch: int = 0, coordinator_epoch: int = 1) -> MarkerToWrite:
    """A commit marker."""
    return marker(producer_id, epoch, coordinator_epoch, commit=True)


def abort(producer_id: int, epoch: int = 0, coordinator_epoch: int = 1) -> MarkerToWrite:
    """An abort marker."""
    return marker(producer_id, epoch, coordinator_epoch, commit=False)


def marker(
    producer_id: int,
    epoch: int = 0,
    coordinator_epoch: int = 1,
    *,
    commit: bool = True,
    is_bumped: bool = False,
    drop_state: bool = False,
) -> MarkerToWrite:
    """Any marker."""
    return MarkerToWrite(
        producer_id=producer_id,
        producer_epoch=epoch,
        commit=commit,
        coordinator_epoch=coordinator_epoch,
        is_bumped=is_bumped,
        drop_state=drop_state,
    )


def owner(
    epoch: int = 1, group: str | None = None, *, live: bool = True, **more: str | None
) -> Owner:
    """A grant, or its end."""
    session = f"{group or ''}-session-{epoch}"
    known = {"session": session, "transactional_id": None, "holder": f"holder {epoch}", **more}
    return Owner(group=group, epoch=epoch, is_live=live, **known)  # type: ignore[arg-type]


class Driver:
    """One partition, its files, and a clock that stands still unless moved."""

    def __init__(self, log: PartitionLog | None = None, **config: object) -> None:
        self.config = LogConfig(**config) if log is None else log.config
        self.log = PartitionLog.create(self.config) if log is None else log
        self.files: dict[int, SegmentFiles] = {
            base: SegmentFiles() for base in self.log.segment_base_offsets
        }
        self.leader_epochs: str | None = None
        self.now_ms = NOW_MS

    def append(
        self,
        batch: memoryview,
        guard: VerificationGuard | None = None,
        *,
        condition: Revision | None = None,
        internal: bool = False,
    ) -> Outcome:
        return self.log.append(
            batch,
            read_header(batch),
            now_ms=self.now_ms,
            guard=guard,
            condition=condition,
            internal=internal,
        )

    def produce(self, *args: int, guard: VerificationGuard | None = None, **more: int) -> Outcome:
        """A batch outside transactions: (producer id, epoch, sequence, count)."""
        return self.append(make_batch(*args, **more), guard)

    def produce_in_transaction(
        self, producer_id: int, epoch: int = 0, sequence: int = 0, count: int = 1, **more: int
    ) -> Outcome:
        """A transactional batch that the coordinator has verified where that is needed."""
        guard = self.log.begin_verification(producer_id, epoch, sequence)
        batch = make_batch(producer_id, epoch, sequence, count, transactional=True, **more)
        return self.append(batch, guard)

    def mark(self, *markers: MarkerToWrite) -> Appended | Rejected:
        return self.log.append_markers(markers, now_ms=self.now_ms)

    def own(self, *args: object, **more: object) -> Appended | Rejected:
        """A grant or its end, as ``owner`` makes it."""
        return self.log.set_owner(owner(*args, **more), now_ms=self.now_ms)

    def seal(self) -> Appended | Rejected:
        return self.log.seal(now_ms=self.now_ms)

    def revision(self) -> Revision:
        """The revision of a reader that was given all that is left (R4)."""
        last = Revision(-1, self.log.log_start_offset)
        while headers := self.read(last.offset):
            last = Revision(headers[-1].leader_epoch, headers[-1].next_offset)
        return last

    def write(self) -> int | None:
        """Take the tail to the files; returns its end, None where there was nothing."""
        end_offset = None
        for write in self.log.take_unflushed():
            if write.roll:
                assert write.segment_base_offset not in self.files
                assert write.position == 0
                self.files[write.segment_base_offset] = SegmentFiles(snapshot=write.snapshot)
            files = self.files[write.segment_base_offset]
            assert write.position == len(files.log), (write.position, len(files.log))
            for buffer in write.buffers:
                files.log += buffer
            assert write.position + write.size == len(files.log)
            files.index += write.index
            files.time_index += write.time_index
            files.txn_index += write.txn_index
            self.leader_epochs = write.leader_epochs or self.leader_epochs
            end_offset = write.end_offset
        if end_offset is not None:
            self.log.written(end_offset)
        return end_offset

    def flush(self) -> None:
        """Make everything durable."""
        end_offset = self.write()
        if end_offset is not None:
            flush_and_commit(self.log, end_offset)

    def builder(self) -> LogBuilder:
        """The state rebuilt from the files' batches alone."""
        builder = LogBuilder(self.config, log_start=self.log.log_start_offset)
        for base_offset, files in sorted(self.files.items()):
            builder.open_segment(base_offset)
            for header, batch in iterate(files.log):
                builder.replay(header, read_control(batch), builder.position)
        return builder

    def rebuilt(self) -> PartitionLog:
        """The log as recovery makes it from the files."""
        return self.builder().finish()

    def restarted(self) -> "Driver":
        """A restart on the same files."""
        driver = Driver(self.rebuilt())
        driver.files = self.files
        driver.now_ms = self.now_ms
        return driver

    def read(
        self, offset: int, isolation: Isolation = Isolation.REPLICATED, max_bytes: int = 1 << 20
    ) -> list[BatchHeader]:
        """Read as the storage does: whole batches within the plan."""
        plan = self.log.read(offset, max_bytes, isolation)
        assert isinstance(plan, ReadPlan), plan
        return [] if plan.is_empty else self.read_plan(plan)

    def read_plan(self, plan: ReadPlan) -> list[BatchHeader]:
        data = memoryview(self.files[plan.segment_base_offset].log)
        found: list[BatchHeader] = []
        size = 0
        for header, _ in iterate(data[plan.position : plan.end_position]):
            if header.last_offset < plan.offset:
                continue
            if header.base_offset >= plan.upper_offset:
                break
            if found and size + header.size > plan.max_bytes:
                break
            found.append(header)
            size += header.size
        return found

    def visible(self, isolation: Isolation) -> list[int]:
        """Base offsets of all data batches that a consumer of this isolation delivers."""
        offsets: list[int] = []
        position = self.log.log_start_offset
        while headers := self.read(position, isolation):
            position = headers[-1].next_offset
            aborted = aborted_between(self.log.aborted, headers[0].base_offset, position)
            for header in headers:
                is_void = isolation is Isolation.TRANSACTIONAL and any(
                    entry.producer_id == header.producer_id
                    and header.is_transactional
                    and entry.first_offset <= header.base_offset < entry.last_offset
                    for entry in aborted
                )
                if not header.is_control and not is_void:
                    offsets.append(header.base_offset)
        return offsets


def state_of(log: PartitionLog) -> dict[str, object]:
    """Everything that must be the same in a rebuilt log."""
    state = log._state
    return {
        "producers": dict(state.producers),
        "open": log.open_transactions(),
        "aborted": list(state.transactions.aborted),
        "epochs": state.epochs.entries,
        "offsets": (state.log_start, state.log_end, log.last_stable_offset),
        "highest_producer_id": state.highest_producer_id,
        "sealed_at": state.sealed_at,
        "owners": {stored.owner.group: stored for stored in state.owners},
        "segments": [
            (
                segment.base_offset,
                segment.next_offset,
                segment.size,
                segment.index.encode(),
                segment.time_index.encode(),
                segment.max_timestamp,
                segment.max_timestamp_offset,
                segment.first_timestamp if segment.size else None,
                segment.bytes_since_index,
            )
            for segment in state.segments
        ],
    }


def snapshot_of(log: PartitionLog) -> bytes:
    """The producer snapshot at a log's end."""
    return encode_snapshot(log._state.snapshot())
