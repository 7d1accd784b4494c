"""Record keys and values of the coordinators, field by field, in Kafka's encoding.

What is read here was stored by us, so bytes that make no sense are damage: ``stored`` makes of the
wire's complaint a CorruptionError.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

from fencelog.errors import CorruptionError, WireError
from fencelog.types import TopicPartition
from fencelog.wire import primitives

T = TypeVar("T")


@contextmanager
def stored() -> Iterator[None]:
    """Around the reading of a key or value: what is no such thing is a CorruptionError."""
    try:
        yield
    except WireError as error:
        raise CorruptionError(f"coordinator record: {error}") from error


class Writer:
    """Appends fields to a buffer."""

    def __init__(self) -> None:
        """Start empty."""
        self._buffer = bytearray()

    def done(self) -> bytes:
        """Return what was written."""
        return bytes(self._buffer)

    def int8(self, value: int) -> "Writer":
        """Append a signed byte."""
        self._buffer += primitives.pack_int8(value)
        return self

    def int16(self, value: int) -> "Writer":
        """Append two bytes, signed."""
        self._buffer += primitives.pack_int16(value)
        return self

    def int32(self, value: int) -> "Writer":
        """Append four bytes, signed."""
        self._buffer += primitives.pack_int32(value)
        return self

    def int64(self, value: int) -> "Writer":
        """Append eight bytes, signed."""
        self._buffer += primitives.pack_int64(value)
        return self

    def uvarint(self, value: int) -> "Writer":
        """Append an unsigned varint."""
        primitives.write_uvarint(self._buffer, value)
        return self

    def text(self, value: str) -> "Writer":
        """Append a 16-bit length and UTF-8."""
        primitives.write_string(self._buffer, value, flexible=False)
        return self

    def compact_text(self, value: str) -> "Writer":
        """Append a varint of length + 1 and UTF-8."""
        primitives.write_string(self._buffer, value, flexible=True)
        return self

    def blob(self, value: bytes) -> "Writer":
        """Append a 32-bit length and the bytes."""
        primitives.write_bytes(self._buffer, value, flexible=False)
        return self

    def tagged(self, fields: dict[int, bytes]) -> "Writer":
        """Append the tagged fields of a flexible version, by rising tag."""
        primitives.write_tags(self._buffer, sorted(fields.items()))
        return self

    def partitions(self, partitions: Iterable[TopicPartition]) -> "Writer":
        """Append an array of (topic, array of partition numbers), sorted."""
        topics = by_topic(partitions)
        self.int32(len(topics))
        for topic, numbers in topics:
            self.text(topic).int32(len(numbers))
            for number in numbers:
                self.int32(number)
        return self


class Reader(primitives.Reader):
    """The wire's reader, with the types that only stored records have; to be used in ``stored``."""

    __slots__ = ()

    def text(self) -> str:
        """Return what ``Writer.text`` wrote."""
        return self.string(flexible=False)

    def compact_text(self) -> str:
        """Return what ``Writer.compact_text`` wrote."""
        return self.string(flexible=True)

    def blob(self) -> bytes:
        """Return what ``Writer.blob`` wrote."""
        return self.required_bytes(flexible=False)

    def tagged(self) -> dict[int, bytes]:
        """Return what ``Writer.tagged`` wrote."""
        return {tag: bytes(field.data) for tag, field in self.tags()}

    def array(self, element: "Callable[[Reader], T]", element_bytes_min: int) -> list[T]:
        """Return that number of elements which a 32-bit count says (-1 for none)."""
        count = self.nullable_array_length(flexible=False, item_bytes_min=element_bytes_min)
        return [element(self) for _ in range(count)]

    def compact_array(self, element: "Callable[[Reader], T]", element_bytes_min: int) -> list[T]:
        """Return that number of elements which a varint of count + 1 says (0 for none)."""
        count = self.nullable_array_length(flexible=True, item_bytes_min=element_bytes_min)
        return [element(self) for _ in range(count)]

    def partitions(self) -> frozenset[TopicPartition]:
        """Return what ``Writer.partitions`` wrote."""
        topics = self.array(lambda it: (it.text(), it.array(Reader.int32, 4)), 6)
        return frozenset(TopicPartition(topic, number) for topic, ns in topics for number in ns)


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partitions grouped as the wire and the log have them, both levels sorted."""
    grouped = groupby(sorted(partitions), key=lambda partition: partition.topic)
    return [(topic, [each.partition for each in group]) for topic, group in grouped]
