"""The recovery checkpoint's format: what is read is what was written, or is refused (ADR 16)."""

import pytest

from fencelog.errors import CorruptionError
from fencelog.log.recovery_checkpoint import (
    FullSegment,
    NewestSegment,
    RecoveryCheckpoint,
    decode_recovery_checkpoint,
    side_checksum,
)
from fencelog.log.values import EpochStart, SideFiles
from fencelog.types import Offset, TimestampMs

CHECKPOINT = RecoveryCheckpoint(
    (FullSegment(Offset(0), 1000, 7), FullSegment(Offset(10), 2000, (1 << 32) - 1)),
    NewestSegment(Offset(25), 300, Offset(31), TimestampMs(-1), TimestampMs(99), Offset(30), 12),
    SideFiles(b"index---", b"timeindex---", b""),
    b"snapshot",
    (EpochStart(0, Offset(0)), EpochStart(4, Offset(20))),
)


def test_what_is_read_is_what_was_written() -> None:
    assert decode_recovery_checkpoint(CHECKPOINT.encode()) == CHECKPOINT
    assert CHECKPOINT.end_offset == 31
    assert [CHECKPOINT.size_from(Offset(base)) for base in (0, 10, 25)] == [3300, 2300, 300]


def test_no_cut_and_no_flipped_bit_is_read() -> None:  # D3
    data = CHECKPOINT.encode()
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_recovery_checkpoint(data[:size])
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_recovery_checkpoint(bytes(damaged))


def test_bytes_that_move_between_side_files_change_their_checksum() -> None:  # D3
    one, other = SideFiles(b"ab", b"c", b""), SideFiles(b"a", b"bc", b"")
    assert side_checksum(one) != side_checksum(other)
