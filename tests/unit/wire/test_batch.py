"""The batch header: read, validated, patched in place; compared with other libraries' batches."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.errors import ErrorCode, WireError
from fencelog.types import LeaderEpoch, Offset, TimestampMs
from fencelog.wire.batch import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    TimestampType,
    assign,
    check_crc,
    iterate,
    read_header,
    seal,
    validate_produced,
)
from fencelog.wire.control import marker_batch
from fencelog.wire.records import RecordToWrite, build_batch, read_records

RECORDS = [RecordToWrite(b"k", b"v", 1000), RecordToWrite(None, b"w", 1007)]


def batch(**changes: Any) -> bytearray:
    return build_batch(RECORDS, **changes)


def patched(original: bytearray, **changes: Any) -> bytearray:
    """The batch with other header fields and a CRC that is right again."""
    return seal(read_header(original)._replace(**changes), original[HEADER_BYTES:])


def test_a_header_says_where_the_batch_begins_and_ends() -> None:
    header = read_header(batch(base_offset=40))
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 41, 42)
    assert header.size == len(batch())
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1007)
    assert header.timestamp_type is TimestampType.CREATE_TIME


def test_a_header_is_read_in_the_middle_of_a_buffer() -> None:
    assert read_header(b"xyz" + batch(base_offset=9), 3).base_offset == 9


def test_a_header_is_readable_before_its_records_have_arrived() -> None:
    assert read_header(batch()[:HEADER_BYTES]).record_count == 2


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_a_header_cut_short_is_a_wire_error(size: int) -> None:
    with pytest.raises(WireError, match="61"):
        read_header(batch()[:size])


@pytest.mark.parametrize("changes", [{"magic": 1}, {"magic": 0}, {"attributes": 5}])
def test_a_header_of_another_format_or_an_unknown_codec_is_a_wire_error(
    changes: dict[str, int],
) -> None:
    with pytest.raises(WireError):
        read_header(patched(batch(), **changes))


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_a_length_shorter_than_the_header_is_a_wire_error(length: int) -> None:
    broken = batch()
    broken[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(WireError, match="shorter"):
        read_header(broken)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=8), st.integers(21, HEADER_BYTES + 5))
def test_the_checksum_covers_everything_from_the_attributes_on(noise: bytes, at: int) -> None:
    whole = batch()
    assert check_crc(whole)
    broken = whole[:at] + noise + whole[at + len(noise) :]
    assert check_crc(broken) is (broken == whole)


def test_a_buffer_shorter_than_a_header_has_no_valid_checksum() -> None:
    assert not check_crc(batch()[:30])


@settings(deadline=None)
@given(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 31) - 1))
def test_offset_and_epoch_are_assigned_in_place_and_leave_the_checksum_valid(
    offset: int, epoch: int
) -> None:
    whole = batch()
    before = read_header(whole)
    assign(memoryview(whole), Offset(offset), LeaderEpoch(epoch))
    assert read_header(whole) == before._replace(base_offset=offset, leader_epoch=epoch)
    assert check_crc(whole)


def test_log_append_time_is_assigned_with_a_new_checksum_and_read_as_every_records_time() -> None:
    whole = batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    assign(memoryview(whole), Offset(7), LeaderEpoch(0), TimestampMs(5000))
    header = read_header(whole)
    assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 5000)
    assert header.is_transactional
    assert check_crc(whole)
    assert [record.timestamp for record in read_records(whole)] == [5000, 5000]


def test_batches_are_walked_up_to_a_partial_one() -> None:
    first, second = batch(base_offset=0), batch(base_offset=2)
    buffer = first + second + batch(base_offset=4)[:-1]
    walked = list(iterate(buffer))
    assert [header.base_offset for header, _ in walked] == [0, 2]
    assert [bytes(view) for _, view in walked] == [bytes(first), bytes(second)]


@pytest.mark.parametrize("rest", [0, 1, 60, 61, 62])
def test_a_cut_anywhere_in_the_last_batch_leaves_it_out(rest: int) -> None:
    buffer = batch() + batch(base_offset=2)[:rest]
    assert [header.base_offset for header, _ in iterate(buffer)] == [0]


def test_bytes_between_batches_are_a_wire_error() -> None:
    with pytest.raises(WireError):
        list(iterate(batch() + b"\0" * 100))


PRODUCED = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 0}


@pytest.mark.parametrize(
    "good",
    [batch(), batch(**PRODUCED), batch(**PRODUCED, transactional=True)]
    + [batch(compression=codec) for codec in Compression],
)
def test_a_sound_batch_is_accepted_with_its_header(good: bytearray) -> None:
    assert validate_produced(memoryview(good)) == read_header(good)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch()[:50], ErrorCode.INVALID_RECORD),
        (batch()[:-1], ErrorCode.INVALID_RECORD),
        (batch() + b"\0", ErrorCode.INVALID_RECORD),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (patched(batch(), magic=1), ErrorCode.INVALID_RECORD),
        (batch(base_offset=1), ErrorCode.INVALID_RECORD),
        (patched(batch(), last_offset_delta=2), ErrorCode.INVALID_RECORD),
        (patched(batch(), last_offset_delta=0), ErrorCode.INVALID_RECORD),
        (patched(batch(), record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (patched(batch(), record_count=-2, last_offset_delta=-3), ErrorCode.INVALID_RECORD),
        (batch(**PRODUCED, control=True), ErrorCode.INVALID_RECORD),
        (batch(transactional=True), ErrorCode.INVALID_RECORD),
        (batch(**PRODUCED | {"base_sequence": -1}), ErrorCode.INVALID_RECORD),
        (batch(**PRODUCED | {"producer_epoch": -1}), ErrorCode.INVALID_RECORD),
        (batch(**PRODUCED | {"producer_id": -2}), ErrorCode.INVALID_RECORD),
        (patched(batch(), attributes=6), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch()[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=[
        "nothing", "half a header", "cut short", "a byte too many", "two batches", "old format",
        "base offset", "count below delta", "count above delta", "no records", "negative count",
        "control batch", "transaction without producer", "producer without sequence",
        "producer without epoch", "producer below none", "unknown codec", "wrong checksum",
    ],
)  # fmt: skip
def test_an_unsound_batch_is_refused(bad: bytes, error: ErrorCode) -> None:
    assert validate_produced(memoryview(bad)) is error


def test_a_marker_is_no_batch_for_clients_to_produce() -> None:
    marker = marker_batch(4, 0, commit=True, coordinator_epoch=1, timestamp_ms=5)
    assert validate_produced(marker) is ErrorCode.INVALID_RECORD


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_are_validated_without_an_exception(data: bytes) -> None:
    assert isinstance(validate_produced(data), ErrorCode)


@settings(deadline=None)
@given(st.data())
def test_any_changed_byte_is_validated_without_an_exception(data: st.DataObject) -> None:
    whole = batch(**PRODUCED)
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(validate_produced(whole), ErrorCode | BatchHeader)
