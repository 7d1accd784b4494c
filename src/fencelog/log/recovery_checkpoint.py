"""The recovery checkpoint: all that follows from a log's batches below an offset.

Recovery continues from it instead of reading those batches (ADR 16). Of each full segment it has
the size of the file and a checksum over the side files, because Kafka's formats of indexes have
none; of the newest segment, which has no side files yet, their content; and at its end the
snapshot, of producers and owners, and the leader epochs. Everything below its end was on stable
storage when it was stored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from crc32c import crc32c

from fencelog.errors import CorruptionError
from fencelog.log.snapshot import encode_snapshot
from fencelog.log.state import LogState
from fencelog.log.values import EpochStart, SideFiles
from fencelog.types import Offset, TimestampMs

_HEAD = Struct(">4sI")  # magic with the version, CRC-32C of the rest
_MAGIC = b"FLr1"
_NEWEST = Struct(">qqqqqqq")
_COUNTS = Struct(">6i")  # full segments, leader epochs, bytes of the three side files, of snapshot
_FULL = Struct(">qqI")
_EPOCH = Struct(">iq")


class FullSegment(NamedTuple):
    """A segment with a successor: the size of its file, and the checksum of its side files."""

    base_offset: Offset
    size: int
    checksum: int


class NewestSegment(NamedTuple):
    """The newest segment up to the checkpoint's end; the fields are those of ``Segment``."""

    base_offset: Offset
    size: int
    next_offset: Offset
    first_timestamp: TimestampMs
    max_timestamp: TimestampMs
    max_timestamp_offset: Offset
    bytes_since_index: int


@dataclass(frozen=True, slots=True)
class RecoveryCheckpoint:
    """The state of a log at an offset; ``side_files`` are those of the newest segment up to it."""

    full: tuple[FullSegment, ...]
    newest: NewestSegment
    side_files: SideFiles
    snapshot: bytes
    leader_epochs: tuple[EpochStart, ...]

    @property
    def start_offset(self) -> Offset:
        """The first segment began here: everything below was deleted, or was never here."""
        return self.full[0].base_offset if self.full else self.newest.base_offset

    @property
    def end_offset(self) -> Offset:
        """Everything below was synced."""
        return self.newest.next_offset

    def size_from(self, base_offset: Offset) -> int:
        """Return how many bytes it covers in the segments from this one on."""
        sizes = (each.size for each in self.full if each.base_offset >= base_offset)
        return sum(sizes) + self.newest.size

    def encode(self) -> bytes:
        """Return the content of the file."""
        contents = (*self.side_files, self.snapshot)
        counts = (len(self.full), len(self.leader_epochs), *map(len, contents))
        body = b"".join(
            (
                _NEWEST.pack(*self.newest),
                _COUNTS.pack(*counts),
                *(_FULL.pack(*each) for each in self.full),
                *(_EPOCH.pack(*each) for each in self.leader_epochs),
                *contents,
            )
        )
        return _HEAD.pack(_MAGIC, crc32c(body)) + body


def checkpoint_of(
    state: LogState, checksums: Mapping[Offset, int], side_files: SideFiles
) -> RecoveryCheckpoint:
    """Return the checkpoint of a log's end; all of the log must be in the files.

    ``checksums`` has those of the full segments' side files, by base offset; ``side_files`` are the
    newest segment's.
    """
    active = state.active
    return RecoveryCheckpoint(
        tuple(
            FullSegment(each.base_offset, each.size, checksums[each.base_offset])
            for each in state.segments[:-1]
        ),
        NewestSegment(
            active.base_offset,
            active.size,
            active.next_offset,
            active.first_timestamp,
            active.max_timestamp,
            active.max_timestamp_offset,
            active.bytes_since_index,
        ),
        side_files,
        encode_snapshot(state.snapshot()),
        state.epochs.entries,
    )


def checkpoint_at(
    base_offset: Offset,
    full: Iterable[FullSegment],
    snapshot: bytes,
    leader_epochs: Iterable[EpochStart],
) -> RecoveryCheckpoint:
    """Return the checkpoint that ends where a segment begins, by the snapshot taken there.

    ``full`` are the segments before it, ``leader_epochs`` those that are known by then.
    """
    none = TimestampMs(-1)
    newest = NewestSegment(base_offset, 0, base_offset, none, none, base_offset, 0)
    side_files = SideFiles(b"", b"", b"")
    return RecoveryCheckpoint(tuple(full), newest, side_files, snapshot, tuple(leader_epochs))


def decode_recovery_checkpoint(data: bytes) -> RecoveryCheckpoint:
    """Return the checkpoint of a file's content; raises CorruptionError."""
    try:
        magic, crc = _HEAD.unpack_from(data)
        if magic != _MAGIC or crc != crc32c(memoryview(data)[_HEAD.size :]):
            raise CorruptionError("the checksum of the recovery checkpoint is wrong")
        newest = NewestSegment(*_NEWEST.unpack_from(data, _HEAD.size))
        at = _HEAD.size + _NEWEST.size
        full_count, epoch_count, *sizes = _COUNTS.unpack_from(data, at)
    except struct_error:
        raise CorruptionError(f"recovery checkpoint of {len(data)} bytes is truncated") from None
    at += _COUNTS.size
    full = tuple(_FULL.iter_unpack(data[at : at + full_count * _FULL.size]))
    at += full_count * _FULL.size
    epochs = tuple(_EPOCH.iter_unpack(data[at : at + epoch_count * _EPOCH.size]))
    at += epoch_count * _EPOCH.size
    contents = []
    for size in sizes:
        contents.append(data[at : at + size])
        at += size
    return RecoveryCheckpoint(
        tuple(FullSegment(*each) for each in full),
        newest,
        SideFiles(*contents[:3]),
        contents[3],
        tuple(EpochStart(*each) for each in epochs),
    )


def side_checksum(side_files: SideFiles) -> int:
    """Return the checksum over a full segment's side files, their lengths included."""
    value = 0
    for content in side_files:
        value = crc32c(content, crc32c(len(content).to_bytes(8), value))
    return value
