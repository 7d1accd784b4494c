"""What every generated message shares: equality, a readable form, and the two doors to bytes.

The classes themselves stand in ``fencelog.wire.messages``, one module per request, written by
``tools/generate_messages.py``.
"""

import sys
from typing import Any, ClassVar, Self

from fencelog.errors import WireError
from fencelog.types import Buffer
from fencelog.wire.primitives import Reader

EMPTY: list[Any] = []
"""Default of array parameters; a message that gets it makes a list of its own."""


class Structure:
    """A message or a part of one: fields in slots, equal when all fields are."""

    __slots__: tuple[str, ...] = ()

    def write_to(self, out: bytearray, version: int) -> None:
        """Append the fields that this version has; others are left out silently."""
        raise TypeError(f"{type(self).__name__} has no fields of its own")

    @classmethod
    def read_from(cls, reader: Reader, version: int) -> Self:
        """Read the fields that this version has; others get their defaults."""
        raise TypeError(f"{cls.__name__} has no fields of its own")

    def __eq__(self, other: object) -> bool:
        """Compare field by field, within one class."""
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show the constructor call that makes an equal value."""
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class Message(Structure):
    """A whole body of a request or a response."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    """Number of the request, in its response too."""
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]

    def write(self, version: int) -> bytes:
        """Return the body's bytes."""
        assert self.MIN_VERSION <= version <= self.MAX_VERSION, (type(self).__name__, version)
        out = bytearray()
        self.write_to(out, version)
        return bytes(out)

    @classmethod
    def read(cls, data: Buffer, version: int, items_max: int = sys.maxsize) -> Self:
        """Return the message that the bytes begin with, with ``items_max`` items in all its arrays.

        What follows it is ignored, as Kafka's broker does: librdkafka 2.16 sends three bytes too
        many in a MetadataRequest for all topics. Raises WireError when the bytes are malformed
        or when there is no such version.
        """
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise WireError(f"{cls.__name__} has no version {version}")
        return cls.read_from(Reader(data, 0, items_max), version)
