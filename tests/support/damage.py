"""Damage to well-formed requests, done where their fields are: lengths, counts, varints, nulls.

The places come from reading the request once with a reader that notes where each field stands.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from struct import Struct
from typing import Any
from unittest.mock import patch

from crc32c import crc32c

from fencelog.errors import WireError
from fencelog.types import Buffer
from fencelog.wire import hot
from fencelog.wire.api_versions import SUPPORTED, ApiKey, is_flexible
from fencelog.wire.batch import HEADER_BYTES
from fencelog.wire.headers import read_request_header
from fencelog.wire.primitives import REQUEST_ITEMS_MAX, Reader
from tests.support.requests import EDGES, KEYS_AND_VERSIONS, a_request, request_classes

SIZE = Struct(">i")
HEADER = Struct(">hh")
MAGIC_AT, CRC_AT, CRC_FROM = 16, 17, 21
FRAMES_MAX = 8
_FORMATS = {1: Struct(">b"), 2: Struct(">h"), 4: Struct(">i"), 8: Struct(">q")}


@dataclass
class Noted:
    """Where the fields of one body stand: position and size of each, by kind."""

    numbers: list[tuple[int, int]] = field(default_factory=list)
    lengths: list[tuple[int, int]] = field(default_factory=list)
    tags: list[tuple[int, int]] = field(default_factory=list)
    records: list[tuple[int, int]] = field(default_factory=list)


class NotingReader(Reader):
    """Reads as any other, and notes where."""

    __slots__ = ("noted",)
    last: "Noted"

    def __init__(self, data: Buffer, position: int = 0, items_max: int = 0) -> None:
        super().__init__(data, position, items_max or REQUEST_ITEMS_MAX)
        self.noted = NotingReader.last

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        position = self.position
        values = super().unpack(layout)
        for code in layout.format.lstrip(">"):
            size = Struct(f">{code}").size
            self.noted.numbers.append((position, size))
            position += size
        return values

    def _number(self, layout: Struct) -> int:
        position = self.position
        value = super()._number(layout)
        self.noted.numbers.append((position, layout.size))
        return value

    def _length(self, flexible: bool, fixed: Struct) -> int:
        position = self.position
        length = super()._length(flexible, fixed)
        if not flexible:
            self.noted.numbers.pop()
        self.noted.lengths.append((position, self.position - position))
        return length

    def nullable_view(self, flexible: bool) -> memoryview | None:
        view = super().nullable_view(flexible)
        if view is not None and len(view) >= HEADER_BYTES:
            self.noted.records.append((self.position - len(view), len(view)))
        return view

    def skip_tags(self) -> None:
        position = self.position
        super().skip_tags()
        self.noted.tags.append((position, self.position - position))


def noted(frame: bytes) -> tuple[Noted, int]:
    """Where the fields of a frame's body stand, and where the body begins."""
    NotingReader.last = found = Noted()
    try:
        header, body = read_request_header(frame)
        key, version = header.api_key, header.api_version
        if key == ApiKey.PRODUCE:
            with patch.object(hot.produce, "Reader", NotingReader):
                hot.read_produce_request(body, version)
        elif key == ApiKey.FETCH:
            with patch.object(hot.fetch, "Reader", NotingReader):
                hot.read_fetch_request(body, version)
        elif key in request_classes():
            request_classes()[key].read_from(NotingReader(body), version)
    except WireError:  # what was read until there is known
        return found, len(frame) - len(body) if "body" in locals() else len(frame)
    return found, len(frame) - len(body)


# -- kinds of damage -------------------------------------------------------------------------------

Damage = Callable[[bytes, Random], bytes]


def _put(frame: bytes, position: int, size: int, value: bytes) -> bytes:
    return frame[:position] + value + frame[position + size :]


def _packed(value: int, size: int) -> bytes:
    bits = 8 * size
    return _FORMATS[size].pack((value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def wrong_number(frame: bytes, random: Random) -> bytes:
    """A number becomes an extreme one, or its neighbour."""
    places, begin = noted(frame)
    if not places.numbers:
        return frame
    position, size = random.choice(places.numbers)
    position += begin
    now = int.from_bytes(frame[position : position + size], "big", signed=True)
    value = random.choice((*EDGES, now + 1, now - 1))
    return _put(frame, position, size, _packed(value, size))


def wrong_length(frame: bytes, random: Random) -> bytes:
    """A length or a count is wrong: null, negative, one more, all that is left, far too many."""
    places, begin = noted(frame)
    if not places.lengths:
        return frame
    position, size = random.choice(places.lengths)
    position += begin
    left = len(frame) - position - size
    if is_flexible(*HEADER.unpack_from(frame)):
        now = frame[position]
        choices = (
            0,
            1,
            now + 1,
            now - 1,
            left,
            left + 1,
            left + 2,
            2**31,
            2**32 - 1,
            REQUEST_ITEMS_MAX,
        )
        value = _uvarint(max(random.choice(choices), 0))
        if random.random() < 0.1:
            value = random.choice((b"\xff" * 5, b"\xff" * 11, b"\x80" * 4 + b"\x00", b"\x80"))
        return _put(frame, position, size, value)
    now = int.from_bytes(frame[position : position + size], "big", signed=True)
    choices = (-1, -2, 0, now + 1, now - 1, left, left + 1, 2**31 - 1, -(2**31), REQUEST_ITEMS_MAX)
    return _put(frame, position, size, _packed(random.choice(choices), size))


def wrong_tags(frame: bytes, random: Random) -> bytes:
    """Unknown tagged fields, too many of them, or ones with wrong lengths."""
    places, begin = noted(frame)
    at = [*((position + begin, size) for position, size in places.tags)]
    at.append((begin, 0))
    position, size = random.choice(at)
    tags = random.choice(
        (
            b"\x01\x63\x02ab",
            b"\x02\x00\x01x\x01\x01y",
            b"\x01\x00\x00",
            b"\x01\x00" + _uvarint(2**31),
            _uvarint(2**32 - 1),
            _uvarint(REQUEST_ITEMS_MAX + 1) + bytes(20),
            b"\x01\xff\xff\xff\xff\x0f\x00",
            b"",
        )
    )
    return _put(frame, position, size, tags)


def cut(frame: bytes, random: Random) -> bytes:
    """The frame ends too early."""
    return frame[: random.randrange(len(frame) + 1)]


def longer(frame: bytes, random: Random) -> bytes:
    """Trailing bytes that belong to no field."""
    return frame + random.choice((b"\0", b"\xff" * 8, frame, bytes(100)))


def flipped(frame: bytes, random: Random) -> bytes:
    """One to eight bits are wrong."""
    damaged = bytearray(frame)
    for _ in range(random.choice((1, 1, 2, 8))):
        if damaged:
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    return bytes(damaged)


def other_version(frame: bytes, random: Random) -> bytes:
    """The body is read as another version, or as another request."""
    if len(frame) < HEADER.size:
        return frame
    key, version = HEADER.unpack_from(frame)
    if random.random() < 0.3:
        key, version = random.choice(KEYS_AND_VERSIONS)
    elif random.random() < 0.3 or key not in SUPPORTED:
        key, version = random.choice((99, 999, -1, 68)), random.choice((0, 3, -1))
    else:
        spoken = SUPPORTED[ApiKey(key)]
        version = random.randint(spoken.minimum - 1, spoken.maximum + 1)
    return HEADER.pack(key, version) + frame[HEADER.size :]


def spliced(frame: bytes, random: Random) -> bytes:
    """A piece of another request, or of this one, stands in the middle."""
    other = random.choice((frame, a_request(*random.choice(KEYS_AND_VERSIONS), random)))
    begin = random.randrange(len(other) + 1)
    piece = other[begin : begin + random.choice((1, 4, 16, 64))]
    position = random.randrange(len(frame) + 1)
    return _put(frame, position, random.choice((0, len(piece))), piece)


def wrong_batch(frame: bytes, random: Random) -> bytes:
    """A record batch with a wrong header or wrong records, under a valid checksum."""
    places, begin = noted(frame)
    if not places.records:
        return wrong_length(frame, random)
    position, size = random.choice(places.records)
    batch = bytearray(frame[position + begin : position + begin + size])
    if random.random() < 0.6:  # a field of the header
        at, width = random.choice(
            (
                (8, 4),
                (16, 1),
                (21, 2),
                (23, 4),
                (27, 8),
                (35, 8),
                (43, 8),
                (51, 2),
                (53, 4),
                (57, 4),
            )
        )
        batch[at : at + width] = _packed(random.choice(EDGES), width)
    elif size > HEADER_BYTES:
        at = random.randrange(HEADER_BYTES, size)
        batch[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    if random.random() < 0.9:
        batch[CRC_AT:CRC_FROM] = crc32c(bytes(batch[CRC_FROM:])).to_bytes(4, "big")
    return _put(frame, position + begin, size, bytes(batch))


KINDS: tuple[Damage, ...] = (
    wrong_number,
    wrong_number,
    wrong_number,
    wrong_length,
    wrong_length,
    wrong_tags,
    cut,
    longer,
    flipped,
    other_version,
    spliced,
    wrong_batch,
)


def damaged(frame: bytes, random: Random) -> bytes:
    """A frame with one to three kinds of damage."""
    for _ in range(random.choice((1, 1, 2, 3))):
        frame = random.choice(KINDS)(frame, random)
    return frame


# -- streams: frames behind their sizes ------------------------------------------------------------


def join(frames: list[bytes]) -> bytes:
    """The bytes that a client sends."""
    return b"".join(SIZE.pack(len(frame)) + frame for frame in frames)


def split(stream: bytes) -> list[bytes]:
    """The frames of a stream; what is no whole frame at its end is taken as one."""
    frames: list[bytes] = []
    position = 0
    while len(stream) - position >= SIZE.size and len(frames) < FRAMES_MAX:
        (size,) = SIZE.unpack_from(stream, position)
        position += SIZE.size
        if not 0 <= size <= len(stream) - position:
            size = len(stream) - position
        frames.append(stream[position : position + size])
        position += size
    return frames


def mutated(stream: bytes, random: Random, size_max: int) -> bytes:
    """A stream with one of its frames damaged, replaced, repeated, taken out, or one more."""
    frames = split(stream)
    chosen = random.random()
    if not frames or chosen < 0.1:
        frames.insert(
            random.randrange(len(frames) + 1), a_request(*random.choice(KEYS_AND_VERSIONS), random)
        )
    else:
        at = random.randrange(len(frames))
        if chosen < 0.15:
            frames.insert(at, frames[at])
        elif chosen < 0.2 and len(frames) > 1:
            del frames[at]
        else:
            frames[at] = damaged(frames[at], random)
    return join(frames[:FRAMES_MAX])[:size_max]
