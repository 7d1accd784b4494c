"""What the generated keys and values of records share: a version in front, and damage on reading.

The classes themselves are in ``fencelog.coordination.schemas``. What is read here was stored by us,
so malformed bytes are damage: a CorruptionError.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import ClassVar, Self

from fencelog.errors import CorruptionError, WireError
from fencelog.types import TopicPartition
from fencelog.wire.message import Structure
from fencelog.wire.primitives import Reader, pack_int16


class Data(Structure):
    """A record's key or value: its version in 16 bits, then the fields of that version."""

    __slots__ = ()

    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]

    def write(self, version: int) -> bytes:
        """Return the bytes of this version."""
        assert self.MIN_VERSION <= version <= self.MAX_VERSION, (type(self).__name__, version)
        out = bytearray(pack_int16(version))
        self.write_to(out, version)
        return bytes(out)

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return what the bytes say.

        Raises CorruptionError on another version, on malformed bytes, and on bytes that follow.
        """
        try:
            reader = Reader(data)
            version = reader.int16()
            if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
                raise CorruptionError(f"{cls.__name__} of version {version}")
            value = cls.read_from(reader, version)
            reader.expect_end()
        except WireError as error:
            raise CorruptionError(f"{cls.__name__}: {error}") from error
        return value

    @classmethod
    def has_version_of(cls, data: bytes) -> bool:
        """Tell whether a key is of this kind: in one topic each kind has its own versions.

        Raises CorruptionError on bytes that are too short for a version.
        """
        try:
            version = Reader(data).int16()
        except WireError as error:
            raise CorruptionError(f"{cls.__name__}: {error}") from error
        return cls.MIN_VERSION <= version <= cls.MAX_VERSION


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partitions grouped as the wire and the log have them, both levels sorted."""
    grouped = groupby(sorted(partitions), key=lambda partition: partition.topic)
    return [(topic, [each.partition for each in group]) for topic, group in grouped]
