"""The elementary types: what is written is read back, and broken bytes are WireErrors only."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.errors import ErrorCode, WireError
from fencelog.wire import primitives
from fencelog.wire.primitives import ERROR_MESSAGE_BYTES_MAX, Reader, write_error_message

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@settings(deadline=None)
@given(st.integers(0, (1 << 32) - 1))
def test_an_unsigned_varint_is_read_back(value: int) -> None:
    out = bytearray()
    primitives.write_uvarint(out, value)
    reader = Reader(out)
    assert reader.uvarint() == value
    reader.expect_end()


@settings(deadline=None)
@given(INT64)
def test_a_zigzag_varlong_is_read_back(value: int) -> None:
    out = bytearray()
    primitives.write_varint(out, value)
    assert Reader(out).varlong() == value


@pytest.mark.parametrize(
    ("value", "data"), [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001"), (300, "d804")]
)
def test_zigzag_puts_small_numbers_of_both_signs_into_one_byte(value: int, data: str) -> None:
    out = bytearray()
    primitives.write_varint(out, value)
    assert out.hex() == data
    assert Reader(out).varint() == value


@pytest.mark.parametrize(
    "data",
    ["", "80", "ffffffff", "ffffffff1f", "ffffffffff", "808080808001"],
    ids=["nothing", "one byte", "four bytes", "33 bits", "five bytes", "six bytes"],
)
def test_a_varint_that_ends_early_or_does_not_fit_is_a_wire_error(data: str) -> None:
    with pytest.raises(WireError):
        Reader(bytes.fromhex(data)).uvarint()


def test_of_a_varlong_the_lowest_64_bits_count() -> None:
    assert Reader(b"\xff" * 9 + b"\x03").varlong() == Reader(b"\xff" * 9 + b"\x01").varlong()
    with pytest.raises(WireError):
        Reader(b"\xff" * 10 + b"\x01").varlong()


@pytest.mark.parametrize("value", [0, -1, (1 << 63) - 1, -1 << 63])
@pytest.mark.parametrize("turns", [-1, 0, 1])
def test_a_number_wraps_around_at_64_bits(value: int, turns: int) -> None:
    assert primitives.as_int64(value + (turns << 64)) == value


@settings(deadline=None)
@given(st.text(max_size=400), st.booleans())
def test_a_string_is_read_back(text: str, flexible: bool) -> None:
    out = bytearray()
    primitives.write_string(out, text, flexible)
    assert Reader(out).string(flexible) == text


@pytest.mark.parametrize("flexible", [True, False])
def test_null_is_read_as_none_or_refused(flexible: bool) -> None:
    out = bytearray()
    primitives.write_string(out, None, flexible)
    assert Reader(out).nullable_string(flexible) is None
    with pytest.raises(WireError, match="null"):
        Reader(out).string(flexible)


@pytest.mark.parametrize("flexible", [True, False])
@pytest.mark.parametrize("value", [None, b"", b"abc", bytes(300)])
def test_bytes_are_read_back(value: bytes | None, flexible: bool) -> None:
    out = bytearray()
    primitives.write_bytes(out, value, flexible)
    assert Reader(out).nullable_bytes(flexible) == value


def test_a_string_that_is_not_utf8_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="UTF-8"):
        Reader(b"\x00\x02\xc3\x28").string(flexible=False)


def test_a_compact_string_above_the_limit_of_all_strings_is_a_wire_error() -> None:
    out = bytearray()
    primitives.write_bytes(out, b"x" * 0x8000, flexible=True)
    with pytest.raises(WireError, match="limit"):
        Reader(out).string(flexible=True)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x80\x00", b"\x00\x05abcd"])
def test_a_length_below_null_or_beyond_the_end_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError, match="length"):
        Reader(data).nullable_string(flexible=False)


def test_an_array_must_fit_with_its_smallest_items() -> None:
    data = struct.pack(">i", 3) + bytes(11)
    assert Reader(data).array_length(False, 3) == 3
    with pytest.raises(WireError, match="array of 3 items"):
        Reader(data).array_length(False, 4)


@pytest.mark.parametrize(
    ("read", "size"),
    [
        (Reader.int8, 1),
        (Reader.boolean, 1),
        (Reader.int16, 2),
        (Reader.int32, 4),
        (Reader.int64, 8),
        (Reader.float64, 8),
        (Reader.uuid, 16),
    ],
)
def test_a_number_cut_short_is_a_wire_error(read: Callable[[Reader], object], size: int) -> None:
    reader = Reader(bytes(size))
    read(reader)
    reader.expect_end()
    with pytest.raises(WireError, match=r"needed at byte 0"):
        read(Reader(bytes(size - 1)))


def test_a_view_shares_the_memory_it_was_read_from() -> None:
    frame = bytearray(b"\0\0\0\x03abc")
    view = Reader(frame).required_view(flexible=False)
    frame[4:5] = b"X"
    assert bytes(view) == b"Xbc"


def test_tagged_fields_are_handed_out_one_by_one() -> None:
    out = bytearray()
    primitives.write_tags(out, [(0, bytearray(b"a")), (3, bytearray(b"bcd"))])
    reader = Reader(out)
    assert [(tag, bytes(field.data)) for tag, field in reader.tags()] == [(0, b"a"), (3, b"bcd")]
    reader.expect_end()


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x01\x00", b"\x01\x00\x02a", b"\xff\xff\xff\xff\x0f"]
)
def test_tagged_fields_cut_short_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        Reader(data).skip_tags()


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_skipping_tags_raises_nothing_but_wire_errors(data: bytes) -> None:
    reader = Reader(data)
    try:
        reader.skip_tags()
    except WireError:
        return
    assert 0 < reader.position <= len(data)


def test_an_error_code_from_the_future_counts_as_an_unknown_error() -> None:
    assert primitives.error_code(47) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert primitives.error_code(9999) is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("size", [0, 1, 5, 2_047, 2_048, 2_049, 40_000])
@pytest.mark.parametrize("text", ["a", "ä", "€", "\N{SNOWMAN}x"])
def test_an_error_message_is_cut_between_characters(size: int, text: str) -> None:
    message = (text * size)[:size]
    out = bytearray()
    write_error_message(out, message, flexible=False)
    read = Reader(out).nullable_string(flexible=False) or ""
    if len(message.encode()) <= ERROR_MESSAGE_BYTES_MAX:
        assert read == message
    else:
        assert len(read.encode()) <= ERROR_MESSAGE_BYTES_MAX < len(read.encode()) + 8
        assert message.startswith(read.removesuffix("…"))
