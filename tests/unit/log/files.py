"""A log whose files are buffers, and rounds of compaction on it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fencelog.log.compaction_round import Cleaned
from fencelog.log.config import LogConfig
from fencelog.log.partition_log import PartitionLog
from fencelog.log.rebuild import LogBuilder
from fencelog.log.values import Appended, MarkerToWrite
from fencelog.wire.batch import BatchHeader, Compression, iterate, read_header
from fencelog.wire.control import read_control
from fencelog.wire.records import RecordToWrite, build_batch, read_records
from tests.support.log import flush_and_commit

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 60 * 60 * 1000
COMPACT = {"cleanup_policy": frozenset({"compact"}), "segment_bytes": 1 << 20}

KeyValue = tuple[str | None, str | None]


@dataclass
class Files:
    """A log whose files are buffers, and the rounds that were done on it."""

    config: LogConfig
    log: PartitionLog = field(init=False)
    segments: dict[int, bytearray] = field(default_factory=dict)
    first_dirty: int = 0

    def __post_init__(self) -> None:
        self.log = PartitionLog.create(self.config)

    @classmethod
    def of(cls, **config: object) -> "Files":
        return cls(LogConfig(**{**COMPACT, **config}))

    def write(
        self,
        *records: KeyValue,
        producer_id: int = -1,
        sequence: int = -1,
        epoch: int = 0,
        transactional: bool = False,
        compression: Compression = Compression.NONE,
        timestamp: int = NOW_MS,
    ) -> int:
        """Append one batch; returns its first offset."""
        encoded = [
            RecordToWrite(k and k.encode(), None if v is None else v.encode(), timestamp + i)
            for i, (k, v) in enumerate(records)
        ]
        batch = memoryview(
            build_batch(
                encoded,
                producer_id=producer_id,
                producer_epoch=epoch if producer_id >= 0 else -1,
                base_sequence=sequence,
                transactional=transactional,
                compression=compression,
            )
        )
        guard = self.log.begin_verification(producer_id, epoch, sequence) if transactional else None
        outcome = self.log.append(
            batch, read_header(batch), now_ms=NOW_MS, guard=guard, internal=True
        )
        assert isinstance(outcome, Appended), outcome
        self._flush()
        return outcome.base_offset

    def end(self, producer_id: int, *, commit: bool, epoch: int = 0, drop: bool = False) -> None:
        marker = MarkerToWrite(
            producer_id=producer_id,
            producer_epoch=epoch,
            commit=commit,
            coordinator_epoch=1,
            drop_state=drop,
        )
        assert isinstance(self.log.append_markers([marker], now_ms=NOW_MS), Appended)
        self._flush()

    def roll(self) -> None:
        self.log._appender.roll(0, NOW_MS, NOW_MS)
        self._flush()

    def _flush(self) -> None:
        for write in self.log.take_unflushed():
            for buffer in write.buffers:
                self.segments.setdefault(write.segment_base_offset, bytearray()).extend(buffer)
            end = write.end_offset
            self.log.written(end)
            flush_and_commit(self.log, end)

    def compact(
        self, now_ms: int = NOW_MS, keys_max: int = 1000, *, keeps_deletions: bool = False
    ) -> list[Cleaned]:
        """A round, due or not; returns what changed."""
        need = self.log.compaction_need(self.first_dirty, self.log.log_end_offset, now_ms)
        compaction = self.log.compaction(self.first_dirty, need.end, now_ms, keys_max)
        compaction.keeps_deletions = keeps_deletions
        for base in compaction.dirty():
            for header, batch in iterate(self.segments[base]):
                compaction.map.visit(header, batch)
        changed = []
        for group in compaction.groups():
            for base in group.base_offsets:
                for header, batch in iterate(bytes(self.segments[base])):
                    group.visit(header, batch)
            content = b"".join(bytes(buffer) for buffer in group.take())
            cleaned = group.finish()
            assert cleaned.segment.size == len(content)
            if group.is_changed:
                for base in cleaned.replaced:
                    del self.segments[base]
                self.segments[cleaned.replaced[0]] = bytearray(content)
                self.log.replace_segments(cleaned)
                changed.append(cleaned)
        self.first_dirty = compaction.end
        return changed

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        for base in sorted(self.segments):
            yield from iterate(self.segments[base])

    def records(self) -> dict[int, KeyValue]:
        """Every record that is no marker, by its offset."""
        return {
            r.offset: (r.key and r.key.decode(), None if r.value is None else r.value.decode())
            for header, batch in self.batches()
            if not header.is_control
            for r in read_records(batch)
        }

    def markers(self) -> list[int]:
        return [header.base_offset for header, _ in self.batches() if header.is_control]

    def offsets(self) -> list[tuple[int, int]]:
        """First and last offset of each batch."""
        return [(header.base_offset, header.last_offset) for header, _ in self.batches()]

    def rebuilt(self) -> PartitionLog:
        """The log as a recovery makes it from what is left."""
        builder = LogBuilder(self.config, was_compacted=True)
        for base in self.log.segment_base_offsets:
            builder.open_segment(base)
            for header, batch in iterate(self.segments.get(base, b"")):
                builder.replay(header, read_control(batch))
        return builder.finish()
