"""Reading and writing of the coordinators' record keys and values.

What is read here was stored by us, so bytes that make no sense are damage: CorruptionError.
"""

import struct
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

from fencelog.errors import CorruptionError
from fencelog.types import TopicPartition

T = TypeVar("T")

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

_VARINT_BYTES_MAX = 5


class Writer:
    """Appends fields to a buffer, in Kafka's encoding."""

    def __init__(self) -> None:
        """Start empty."""
        self._buffer = bytearray()

    def done(self) -> bytes:
        """Return what was written."""
        return bytes(self._buffer)

    def int8(self, value: int) -> "Writer":
        """Append a signed byte."""
        self._buffer += _INT8.pack(value)
        return self

    def int16(self, value: int) -> "Writer":
        """Append two bytes, signed."""
        self._buffer += _INT16.pack(value)
        return self

    def int32(self, value: int) -> "Writer":
        """Append four bytes, signed."""
        self._buffer += _INT32.pack(value)
        return self

    def int64(self, value: int) -> "Writer":
        """Append eight bytes, signed."""
        self._buffer += _INT64.pack(value)
        return self

    def string(self, value: str) -> "Writer":
        """Append a 16-bit length and UTF-8."""
        data = value.encode()
        self.int16(len(data))
        self._buffer += data
        return self

    def blob(self, value: bytes) -> "Writer":
        """Append a 32-bit length and the bytes."""
        self.int32(len(value))
        self._buffer += value
        return self

    def varint(self, value: int) -> "Writer":
        """Append an unsigned varint."""
        assert value >= 0, value
        while value > 0x7F:
            self._buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self._buffer.append(value)
        return self

    def compact_string(self, value: str) -> "Writer":
        """Append a varint of length + 1 and UTF-8."""
        data = value.encode()
        self.varint(len(data) + 1)
        self._buffer += data
        return self

    def tagged(self, fields: dict[int, bytes]) -> "Writer":
        """Append the tagged fields of a flexible version, by rising tag."""
        self.varint(len(fields))
        for tag in sorted(fields):
            self.varint(tag).varint(len(fields[tag]))
            self._buffer += fields[tag]
        return self

    def partitions(self, partitions: Iterable[TopicPartition]) -> "Writer":
        """Append an array of (topic, array of partition numbers), sorted."""
        topics = by_topic(partitions)
        self.int32(len(topics))
        for topic, numbers in topics:
            self.string(topic).int32(len(numbers))
            for number in numbers:
                self.int32(number)
        return self


class Reader:
    """Takes fields from a stored key or value, in Kafka's encoding."""

    def __init__(self, data: bytes) -> None:
        """Begin at the first byte."""
        self._data = data
        self._position = 0

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise CorruptionError(
                f"coordinator record: {size} bytes wanted at {self._position} of {len(self._data)}"
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def finish(self) -> None:
        """Raise CorruptionError when bytes are left."""
        if self._position != len(self._data):
            raise CorruptionError(
                f"coordinator record: {len(self._data) - self._position} bytes left over"
            )

    def int8(self) -> int:
        """Take a signed byte."""
        return int(_INT8.unpack(self._take(1))[0])

    def int16(self) -> int:
        """Take two bytes, signed."""
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        """Take four bytes, signed."""
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        """Take eight bytes, signed."""
        return int(_INT64.unpack(self._take(8))[0])

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"coordinator record: {error}") from error

    def string(self) -> str:
        """Take a 16-bit length and UTF-8."""
        return self._text(self._take(self.int16()))

    def blob(self) -> bytes:
        """Take a 32-bit length and that number of bytes."""
        return self._take(self.int32())

    def varint(self) -> int:
        """Take an unsigned varint of at most five bytes."""
        value = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value
        raise CorruptionError("coordinator record: varint of more than five bytes")

    def compact_string(self) -> str:
        """Take a varint of length + 1 and UTF-8."""
        return self._text(self._take(self.varint() - 1))

    def tagged(self) -> dict[int, bytes]:
        """Take the tagged fields of a flexible version."""
        return {
            self.varint(): self._take(self.varint()) for _ in range(self._count(self.varint(), 2))
        }

    def _count(self, count: int, element_bytes_min: int) -> int:
        if count * element_bytes_min > len(self._data) - self._position:
            raise CorruptionError(f"coordinator record: array of {count} elements")
        return max(count, 0)

    def array(self, element: "Callable[[Reader], T]", element_bytes_min: int) -> list[T]:
        """Take a 32-bit count (-1 for none) and that number of elements."""
        return [element(self) for _ in range(self._count(self.int32(), element_bytes_min))]

    def compact_array(self, element: "Callable[[Reader], T]", element_bytes_min: int) -> list[T]:
        """Take a varint of count + 1 (0 for none) and that number of elements."""
        return [element(self) for _ in range(self._count(self.varint() - 1, element_bytes_min))]

    def partitions(self) -> frozenset[TopicPartition]:
        """Take an array of (topic, array of partition numbers)."""
        topics = self.array(lambda it: (it.string(), it.array(Reader.int32, 4)), 6)
        return frozenset(TopicPartition(topic, number) for topic, ns in topics for number in ns)


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partitions grouped as the wire and the log have them, both levels sorted."""
    grouped = groupby(sorted(partitions), key=lambda partition: partition.topic)
    return [(topic, [each.partition for each in group]) for topic, group in grouped]
