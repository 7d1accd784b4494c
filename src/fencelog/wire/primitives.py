"""The protocol's primitive types: a reader that checks bounds, and functions that write.

"Flexible" (KIP-482) message versions have compact lengths (an unsigned varint of length + 1) and
tagged fields.
"""

import sys
from collections.abc import Iterable, Sequence, Sized
from struct import Struct
from struct import error as struct_error
from typing import Any

from fencelog.errors import ErrorCode, LimitError, WireError
from fencelog.types import Buffer

STRING_BYTES_MAX = 0x7FFF
ERROR_MESSAGE_BYTES_MAX = 2048
_ELLIPSIS = "…"
REQUEST_ITEMS_MAX = 25_000
"""Items of all arrays, and tagged fields, that one request may have: enough for 10,000 partitions
of as many topics. Each becomes an object or more, so this bounds the memory and the time that a
request takes.
"""

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_FLOAT64 = Struct(">d")

pack_int8 = _INT8.pack
pack_int16 = _INT16.pack
pack_int32 = _INT32.pack
pack_int64 = _INT64.pack
_INT64_SIGN = 1 << 63
UINT64_MAX = (1 << 64) - 1
VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10
pack_float64 = _FLOAT64.pack


class Reader:
    """Reads a buffer from front to back; each method raises WireError for bytes it cannot read."""

    __slots__ = ("data", "end", "items_left", "position")

    def __init__(self, data: Buffer, position: int = 0, items_max: int = sys.maxsize) -> None:
        """Start at ``position``; views handed out later are views of ``data``.

        ``items_max``: how many items of arrays, and tagged fields, are read in all; LimitError if
        there are more.
        """
        self.data = data if type(data) is memoryview else memoryview(data)
        self.position = position
        self.end = len(self.data)
        self.items_left = items_max

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return self.end - self.position

    def expect_end(self) -> None:
        """Raise WireError when bytes are left over."""
        if self.position != self.end:
            raise WireError(f"{self.remaining} bytes after the end of the message")

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        """Return the values of a fixed layout."""
        position = self.position
        try:
            values = layout.unpack_from(self.data, position)
        except struct_error:
            raise self._short(layout.size) from None
        self.position = position + layout.size
        return values

    def _number(self, layout: Struct) -> int:
        position = self.position
        try:
            (value,) = layout.unpack_from(self.data, position)
        except struct_error:
            raise self._short(layout.size) from None
        self.position = position + layout.size
        return value  # type: ignore[no-any-return]

    def int8(self) -> int:
        """Return a signed byte."""
        return self._number(_INT8)

    def int16(self) -> int:
        """Return a signed 16-bit number."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Return a signed 32-bit number."""
        return self._number(_INT32)

    def int64(self) -> int:
        """Return a signed 64-bit number."""
        return self._number(_INT64)

    def float64(self) -> float:
        """Return a 64-bit floating-point number."""
        (value,) = self.unpack(_FLOAT64)
        return float(value)

    def boolean(self) -> bool:
        """Return a byte as a truth value: everything but 0 is true, as in Kafka."""
        return self._number(_INT8) != 0

    def uuid(self) -> bytes:
        """Return sixteen bytes."""
        return bytes(self.view(16))

    def uvarint(self) -> int:
        """Return an unsigned varint of at most 32 bits."""
        return self._base128(VARINT_BYTES_MAX)

    def varint(self) -> int:
        """Return a zigzag varint of at most 32 bits, as records use for lengths."""
        value = self._base128(VARINT_BYTES_MAX)
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """Return a zigzag varint of at most ten bytes; its lowest 64 bits count, as in Kafka."""
        value = self._base128(VARLONG_BYTES_MAX) & UINT64_MAX
        return (value >> 1) ^ -(value & 1)

    def _base128(self, bytes_max: int) -> int:
        data = self.data
        position = self.position
        if position < self.end and data[position] < 0x80:  # most are this short
            self.position = position + 1
            return data[position]
        value = shift = 0
        for _ in range(bytes_max):
            if position >= self.end:
                raise self._short(1)
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if bytes_max == VARINT_BYTES_MAX and value >> 32:
                    break
                self.position = position
                return value
            shift += 7
        raise WireError(f"varint at byte {self.position} does not fit its type")

    def view(self, size: int) -> memoryview:
        """Return the next ``size`` bytes without copying."""
        position = self.position
        if size < 0 or size > self.end - position:
            raise self._short(size)
        self.position = position + size
        return self.data[position : position + size]

    def _length(self, flexible: bool, fixed: Struct) -> int:
        """Return a length field; -1 is null."""
        position = self.position
        if not flexible:
            length = self._number(fixed)
        elif position < self.end and (byte := self.data[position]) < 0x80:  # most are this short
            self.position = position + 1
            length = byte - 1
        else:
            length = self._base128(VARINT_BYTES_MAX) - 1
        if length < -1 or length > self.end - self.position:
            raise WireError(
                f"length {length} at byte {self.position}, {self.remaining} bytes remain"
            )
        return length

    def nullable_string(self, flexible: bool) -> str | None:
        """Return a string or None."""
        length = self._length(flexible, _INT16)
        if length < 0:
            return None
        if length > STRING_BYTES_MAX:
            raise LimitError(f"string of {length} bytes, limit {STRING_BYTES_MAX}")
        position = self.position
        self.position = position + length
        try:
            return str(self.data[position : position + length], "utf-8")
        except UnicodeDecodeError:
            raise WireError(f"string at byte {position} is not UTF-8") from None

    def string(self, flexible: bool) -> str:
        """Return a string."""
        value = self.nullable_string(flexible)
        if value is None:
            raise self._null()
        return value

    def nullable_view(self, flexible: bool) -> memoryview | None:
        """Return a view of a bytes or records field, or None."""
        length = self._length(flexible, _INT32)
        if length < 0:
            return None
        position = self.position
        self.position = position + length
        return self.data[position : position + length]

    def required_view(self, flexible: bool) -> memoryview:
        """Return a view of a bytes or records field."""
        value = self.nullable_view(flexible)
        if value is None:
            raise self._null()
        return value

    def nullable_bytes(self, flexible: bool) -> bytes | None:
        """Return a copy of a bytes field, or None."""
        value = self.nullable_view(flexible)
        return None if value is None else bytes(value)

    def required_bytes(self, flexible: bool) -> bytes:
        """Return a copy of a bytes field."""
        return bytes(self.required_view(flexible))

    def nullable_array_length(self, flexible: bool, item_bytes_min: int = 1) -> int:
        """Return how many items follow, -1 for null; no more than the remaining bytes can hold."""
        length = self._length(flexible, _INT32)
        if length * item_bytes_min > self.end - self.position:
            raise self._too_many(length)
        if length > 0:
            self._count(length)
        return length

    def array_length(self, flexible: bool, item_bytes_min: int = 1) -> int:
        """Return how many items follow; null is refused."""
        length = self._length(flexible, _INT32)
        if length < 0:
            raise self._null()
        if length * item_bytes_min > self.end - self.position:
            raise self._too_many(length)
        self.items_left -= length
        if self.items_left < 0:
            raise self._over_limit()
        return length

    def _count(self, items: int) -> None:
        self.items_left -= items
        if self.items_left < 0:
            raise self._over_limit()

    def skip_tags(self) -> None:
        """Skip a section of unknown tagged fields."""
        if self.position < self.end and self.data[self.position] == 0:
            self.position += 1
            return
        for _ in range(self._tag_count()):
            self.uvarint()
            self.view(self.uvarint())

    def tags(self) -> Iterable[tuple[int, "Reader"]]:
        """Yield each tagged field's number with a reader over just its bytes."""
        for _ in range(self._tag_count()):
            tag = self.uvarint()
            yield tag, Reader(self.view(self.uvarint()), 0, self.items_left)

    def _tag_count(self) -> int:
        count = self.uvarint()
        self._count(count)
        return count

    def _too_many(self, items: int) -> WireError:
        return WireError(f"array of {items} items, {self.remaining} bytes remain")

    def _over_limit(self) -> LimitError:
        return LimitError(f"the request has too many items, at byte {self.position}")

    def _short(self, wanted: int) -> WireError:
        return WireError(f"{wanted} bytes needed at byte {self.position}, {self.remaining} remain")

    def _null(self) -> WireError:
        return WireError(f"null before byte {self.position} where a value is required")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def write_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint (32 or 64 bits alike)."""
    write_uvarint(out, (value << 1) ^ (value >> 63))


def write_varlong(out: bytearray, value: int) -> None:
    """Append a zigzag varint of a number that may leave 64 bits; it wraps around, as in Kafka."""
    write_varint(out, as_int64(value))


def as_int64(value: int) -> int:
    """Return the signed number that has the lowest 64 bits of this one."""
    return ((value + _INT64_SIGN) & UINT64_MAX) - _INT64_SIGN


def write_string(out: bytearray, value: str | None, flexible: bool) -> None:
    """Append a string; the caller knows whether None is allowed in this version."""
    if value is None:
        out += b"\0" if flexible else b"\xff\xff"
        return
    data = value.encode()
    if flexible:
        write_uvarint(out, len(data) + 1)
    else:
        out += pack_int16(len(data))
    out += data


def write_error_message(out: bytearray, value: str | None, flexible: bool) -> None:
    """Append a message for people, cut where it is long: it may quote what a client sent."""
    if value is not None and len(value.encode()) > ERROR_MESSAGE_BYTES_MAX:
        kept = value.encode()[: ERROR_MESSAGE_BYTES_MAX - len(_ELLIPSIS.encode())]
        value = kept.decode(errors="ignore") + _ELLIPSIS
    write_string(out, value, flexible)


def write_bytes(out: bytearray, value: Buffer | None, flexible: bool) -> None:
    """Append a bytes or records field; the caller knows whether None is allowed."""
    write_length(out, value, flexible)
    if value is not None:
        out += value


def write_length(out: bytearray, value: Sized | None, flexible: bool) -> None:
    """Append the length field of bytes or of an array."""
    if flexible:
        write_uvarint(out, 0 if value is None else len(value) + 1)
    else:
        out += pack_int32(-1 if value is None else len(value))


def write_tags(out: bytearray, fields: Sequence[tuple[int, Buffer]]) -> None:
    """Append a section of tagged fields, which must come in the order of their numbers."""
    write_uvarint(out, len(fields))
    for tag, data in fields:
        write_uvarint(out, tag)
        write_uvarint(out, len(data))
        out += data


def write_uuid(out: bytearray, value: bytes) -> None:
    """Append sixteen bytes."""
    assert len(value) == 16, value
    out += value


def error_code(number: int) -> ErrorCode:
    """Return the code; an unknown one, from a newer broker, counts as UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
