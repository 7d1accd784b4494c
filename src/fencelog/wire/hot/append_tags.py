"""What fencelog's own clients and brokers add to Produce, in tagged fields that others skip.

In the request, of a partition's batch: that its sender knows the ranges of a stream (R1), a
condition (R4), and the id of the topic that it means. In the response: what follows for a batch
that a sealed segment has refused (R2).
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from types import MappingProxyType
from typing import NamedTuple

from fencelog.types import Buffer, TopicId
from fencelog.wire.primitives import Reader, write_length, write_uvarint

_MEDIAN_HASH_TAG, _CONDITION_TAG, _TOPIC_ID_TAG = 10_000, 10_001, 10_002
SEALED_TAG = 10_000
_MEDIAN_HASH = Struct(">i")
_CONDITION = Struct(">iq")
_TOPIC_ID = Struct(">16s")
_SEALED = Struct(">qi")
_SUCCESSOR = Struct(">iqq")


class Revision(NamedTuple):
    """How far a writer has read a partition, up to the high watermark (R4)."""

    leader_epoch: int
    """That of the last batch below the offset; -1 where there is none."""
    offset: int


class AppendTags(NamedTuple):
    """What a client of fencelog says of a batch."""

    median_hash: int | None = None
    """Its sender divides keys by the ranges of a stream's segments. The hash that half of the
    batch's keys do not exceed, -1 where no record has a key; None: the sender does not."""
    condition: Revision | None = None
    """Append only if nothing was appended since."""
    topic_id: TopicId | None = None
    """The topic that is meant: another one may have its name by now. None: whichever has it."""


NO_APPEND_TAGS = AppendTags()
NO_TAGS: Mapping[tuple[str, int], AppendTags] = MappingProxyType({})
"""Of a request without any."""


class Successor(NamedTuple):
    """A segment that replaced a sealed one, and its range of hashes."""

    segment: int
    low: int
    high: int


class SealedSegment(NamedTuple):
    """What follows for a batch that a sealed segment has refused."""

    end_offset: int
    """The offset of the seal."""
    last_sequence: int
    """The last sequence of this producer and epoch that the segment has; -1 if it has none."""
    successors: tuple[Successor, ...]


def read_append_tags(reader: Reader) -> AppendTags:
    """Read the tagged fields of a partition in a request. Raises WireError."""
    tags = NO_APPEND_TAGS
    for number, field in reader.tags():
        if number == _MEDIAN_HASH_TAG:
            (median_hash,) = field.unpack(_MEDIAN_HASH)
            tags = tags._replace(median_hash=median_hash)
        elif number == _CONDITION_TAG:
            tags = tags._replace(condition=Revision(*field.unpack(_CONDITION)))
        elif number == _TOPIC_ID_TAG:
            (topic_id,) = field.unpack(_TOPIC_ID)
            tags = tags._replace(topic_id=TopicId(topic_id))
    return tags


def write_append_tags(out: bytearray, tags: AppendTags) -> None:
    """Append the tagged fields of a partition in a request."""
    fields: list[tuple[int, Buffer]] = []
    if tags.median_hash is not None:
        fields.append((_MEDIAN_HASH_TAG, _MEDIAN_HASH.pack(tags.median_hash)))
    if tags.condition is not None:
        fields.append((_CONDITION_TAG, _CONDITION.pack(*tags.condition)))
    if tags.topic_id is not None:
        fields.append((_TOPIC_ID_TAG, tags.topic_id))
    _write_tags(out, fields)


def write_sealed(out: bytearray, sealed: SealedSegment) -> None:
    """Append the tagged fields of a partition in a response that is refused so."""
    field = bytearray(_SEALED.pack(sealed.end_offset, sealed.last_sequence))
    write_length(field, sealed.successors, True)
    for each in sealed.successors:
        field += _SUCCESSOR.pack(*each)
    _write_tags(out, [(SEALED_TAG, field)])


def read_sealed(field: Reader) -> SealedSegment:
    """Return what ``write_sealed`` has written. Raises WireError."""
    end_offset, last_sequence = field.unpack(_SEALED)
    count = field.array_length(True, _SUCCESSOR.size)
    successors = tuple(Successor(*field.unpack(_SUCCESSOR)) for _ in range(count))
    return SealedSegment(end_offset, last_sequence, successors)


def _write_tags(out: bytearray, fields: Sequence[tuple[int, Buffer]]) -> None:
    write_uvarint(out, len(fields))
    for tag, field in fields:
        write_uvarint(out, tag)
        write_uvarint(out, len(field))
        out += field
