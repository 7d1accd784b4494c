"""The hand-written codec of Produce, versions 0 to 12.

Versions 0 to 2 are decoded only to refuse them with a response that the client understands.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from fencelog.errors import ErrorCode
from fencelog.types import Buffer
from fencelog.wire import flexible_versions
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot.append_tags import (
    NO_APPEND_TAGS,
    NO_TAGS,
    SEALED_TAG,
    AppendTags,
    SealedSegment,
    read_append_tags,
    read_sealed,
    write_append_tags,
    write_sealed,
)
from fencelog.wire.primitives import (
    REQUEST_ITEMS_MAX,
    Reader,
    error_code,
    pack_int32,
    write_error_message,
    write_length,
    write_string,
    write_uvarint,
)

FLEXIBLE_FROM = flexible_versions.FLEXIBLE_FROM[ApiKey.PRODUCE]
LEADERS_FROM = 10
"""From here on an error names the current leader, and the response where it is (KIP-951)."""
_LEADER = Struct(">BBBiiB")
_LEADER_BYTES = 9


class ProduceRequest(NamedTuple):
    """Batches to append; ``topics`` holds name and (partition, records) pairs.

    ``tags``: by topic and partition, of those that have any.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[tuple[int, memoryview | None]]]]
    tags: Mapping[tuple[str, int], AppendTags] = NO_TAGS


class CurrentLeader(NamedTuple):
    """The leader that a broker knows of a partition which another one leads (KIP-951)."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where to reach a leader that a response names (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class ProduceResponse(NamedTuple):
    """A produce response as a client reads it."""

    topics: "list[tuple[str, list[PartitionResult]]]"
    throttle_time_ms: int
    endpoints: tuple[NodeEndpoint, ...] = ()


class PartitionResult(NamedTuple):
    """The result of one partition's batch."""

    partition: int
    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    """The batch's invalid records, by position, and why (KIP-467)."""
    current_leader: CurrentLeader | None = None
    sealed: SealedSegment | None = None


_ACKS_TIMEOUT = Struct(">hi")
_ACKS_TO_NAME = Struct(">hiBB")
"""Acks, timeout, and the compact lengths of the topics and of the first one's name."""
_ONE_ITEM = 2
"""The compact length of an array with one item."""
_PARTITIONS_TO_INDEX = Struct(">Bi")
_NO_TAGS_AT_END = b"\0\0\0"
"""No tagged fields, of the partition, the topic and the request."""


def read_produce_request(
    body: Buffer, version: int, items_max: int = REQUEST_ITEMS_MAX
) -> ProduceRequest:
    """Return the request; each partition's records are a view of ``body``, or None.

    Raises WireError if it is malformed, LimitError if it has more than ``items_max`` topics and
    partitions. The batches are not decoded.
    """
    flexible = version >= FLEXIBLE_FROM
    data = body if type(body) is memoryview else memoryview(body)
    if flexible and items_max > 1:
        common = _read_common(data)
        if common is not None:
            return common
    reader = Reader(data, 0, items_max)
    transactional_id = reader.nullable_string(flexible) if version >= 3 else None
    acks, timeout_ms = reader.unpack(_ACKS_TIMEOUT)
    topics = []
    all_tags: dict[tuple[str, int], AppendTags] = {}
    for _ in range(reader.array_length(flexible, 2)):
        name = reader.string(flexible)
        partitions = []
        for _ in range(reader.array_length(flexible, 5)):
            index, records = reader.int32(), reader.nullable_view(flexible)
            partitions.append((index, records))
            if flexible:
                tags = read_append_tags(reader)
                if tags is not NO_APPEND_TAGS:
                    all_tags[name, index] = tags
        if flexible:
            reader.skip_tags()
        topics.append((name, partitions))
    if flexible:
        reader.skip_tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, all_tags)


def _read_common(body: memoryview) -> ProduceRequest | None:
    """Return what most flexible requests are, one partition's batch, read in one pass.

    None for any other request, a malformed one too.
    """
    try:
        # Each compact length is one more than what it counts, 0 is null, and from 0x80 on it has
        # more than one byte.
        position = 1
        transactional_id = None
        if body[0]:
            position = body[0]
            if position >= 0x80:
                return None
            transactional_id = str(body[1:position], "utf-8")
        acks, timeout_ms, topics, end = _ACKS_TO_NAME.unpack_from(body, position)
        position += _ACKS_TO_NAME.size
        end += position - 1
        if topics != _ONE_ITEM or not position <= end < position + 0x7F:
            return None
        name = str(body[position:end], "utf-8")
        partitions, index = _PARTITIONS_TO_INDEX.unpack_from(body, end)
        position = end + _PARTITIONS_TO_INDEX.size
        byte = length = body[position]
        shift = 7
        while byte >= 0x80 and shift < 28:
            position += 1
            byte = body[position]
            length += (byte - 1) << shift
            shift += 7
    except (IndexError, struct_error, UnicodeDecodeError):
        return None
    position += 1
    end = position + length - 1
    if byte >= 0x80 or partitions != _ONE_ITEM or end < position or body[end:] != _NO_TAGS_AT_END:
        return None
    # ``_make`` takes half the time of a call.
    return ProduceRequest._make(
        (transactional_id, acks, timeout_ms, [(name, [(index, body[position:end])])], NO_TAGS)
    )


_RESULT = Struct(">ihq")
_RESULT_V2 = Struct(">ihqq")
_RESULT_V5 = Struct(">ihqqq")


def write_produce_response(
    version: int,
    results: Iterable[tuple[str, Iterable[PartitionResult]]],
    throttle_time_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """Return the body of a produce response, with the results in the given order.

    ``endpoints``: of the current leaders that results name; from version 10 on.
    """
    flexible = version >= FLEXIBLE_FROM
    out = bytearray()
    topics = list(results)
    write_length(out, topics, flexible)
    for topic, partitions in topics:
        write_string(out, topic, flexible)
        listed = list(partitions)
        write_length(out, listed, flexible)
        for result in listed:
            _write_result(out, result, version)
        if flexible:
            out.append(0)
    if version >= 1:
        out += pack_int32(throttle_time_ms)
    if endpoints and version >= LEADERS_FROM:
        write_endpoints(out, endpoints)
    elif flexible:
        out.append(0)
    return bytes(out)


def write_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """Append the tagged fields of a response that names leaders: tag 0, their endpoints."""
    field = bytearray()
    write_length(field, endpoints, True)
    for node_id, host, port, rack in endpoints:
        field += pack_int32(node_id)
        write_string(field, host, True)
        field += pack_int32(port)
        write_string(field, rack, True)
        field.append(0)
    out += b"\x01\x00"
    write_uvarint(out, len(field))
    out += field


def read_endpoints(reader: Reader) -> tuple[NodeEndpoint, ...]:
    """Read the tagged fields of a response that may name leaders."""
    found: list[NodeEndpoint] = []
    for tag, field in reader.tags():
        if tag == 0:
            for _ in range(field.array_length(True, 11)):
                node_id, host = field.int32(), field.string(True)
                found.append(
                    NodeEndpoint(node_id, host, field.int32(), field.nullable_string(True))
                )
                field.skip_tags()
    return tuple(found)


def write_current_leader(out: bytearray, tag: int, leader: CurrentLeader) -> None:
    """Append the tagged fields of a partition: its current leader."""
    out += _LEADER.pack(1, tag, _LEADER_BYTES, *leader, 0)


def read_current_leader(reader: Reader, tag: int) -> CurrentLeader | None:
    """Read the tagged fields of a partition that may name its current leader."""
    found = None
    for number, field in reader.tags():
        if number == tag:
            found = CurrentLeader(field.int32(), field.int32())
    return found


def _write_result(out: bytearray, result: PartitionResult, version: int) -> None:
    partition, error, base_offset, append_time_ms, start_offset = result[:5]
    error_message, records, leader, sealed = result[5:]
    if version >= 5:
        out += _RESULT_V5.pack(partition, error, base_offset, append_time_ms, start_offset)
    elif version >= 2:
        out += _RESULT_V2.pack(partition, error, base_offset, append_time_ms)
    else:
        out += _RESULT.pack(partition, error, base_offset)
    if version >= 8:
        flexible = version >= FLEXIBLE_FROM
        if flexible and error_message is None and leader is None and sealed is None:
            out += b"\x01\x00\x00"  # an empty array, null, no tags
            return
        write_length(out, records, flexible)
        for position, reason in records:
            out += pack_int32(position)
            write_error_message(out, reason, flexible)
            if flexible:
                out.append(0)
        write_error_message(out, error_message, flexible)
        if sealed is not None and flexible:
            write_sealed(out, sealed)
        elif leader is not None and version >= LEADERS_FROM:
            write_current_leader(out, 0, leader)
        elif flexible:
            out.append(0)


def write_produce_request(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Iterable[tuple[str, Iterable[tuple[int, Buffer]]]],
    tags: Mapping[tuple[str, int], AppendTags] = NO_TAGS,
) -> list[Buffer]:
    """Return the body of a produce request as buffers; record buffers are not copied.

    ``tags`` go into flexible versions only.
    """
    flexible = version >= FLEXIBLE_FROM
    parts: list[Buffer] = []
    out = bytearray()
    if version >= 3:
        write_string(out, transactional_id, flexible)
    out += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    all_topics = list(topics)
    write_length(out, all_topics, flexible)
    for topic, partitions in all_topics:
        write_string(out, topic, flexible)
        listed = list(partitions)
        write_length(out, listed, flexible)
        for partition, records in listed:
            out += pack_int32(partition)
            write_length(out, records, flexible)
            parts += (out, records)
            out = bytearray()
            if flexible:
                write_append_tags(out, tags.get((topic, partition), NO_APPEND_TAGS))
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    parts.append(out)
    return parts


def read_produce_response(body: Buffer, version: int) -> ProduceResponse:
    """Return the response; raises WireError when malformed."""
    flexible = version >= FLEXIBLE_FROM
    reader = Reader(body)
    topics = []
    for _ in range(reader.array_length(flexible, 2)):
        name = reader.string(flexible)
        count = reader.array_length(flexible, _RESULT.size)
        topics.append((name, [_read_result(reader, version) for _ in range(count)]))
        if flexible:
            reader.skip_tags()
    throttle_time_ms = reader.int32() if version >= 1 else 0
    endpoints = read_endpoints(reader) if flexible else ()
    return ProduceResponse(topics, throttle_time_ms, endpoints)


def _read_result_tags(reader: Reader) -> tuple[CurrentLeader | None, SealedSegment | None]:
    leader = sealed = None
    for number, field in reader.tags():
        if number == 0:
            leader = CurrentLeader(field.int32(), field.int32())
        elif number == SEALED_TAG:
            sealed = read_sealed(field)
    return leader, sealed


def _read_result(reader: Reader, version: int) -> PartitionResult:
    log_append_time_ms = log_start_offset = -1
    partition, error, base_offset = reader.unpack(_RESULT)
    if version >= 2:
        log_append_time_ms = reader.int64()
    if version >= 5:
        log_start_offset = reader.int64()
    error_message = leader = sealed = None
    records = []
    if version >= 8:
        flexible = version >= FLEXIBLE_FROM
        for _ in range(reader.array_length(flexible, 5)):
            records.append((reader.int32(), reader.nullable_string(flexible)))
            if flexible:
                reader.skip_tags()
        error_message = reader.nullable_string(flexible)
        if flexible:
            leader, sealed = _read_result_tags(reader)
    return PartitionResult(
        partition,
        error_code(error),
        base_offset,
        log_append_time_ms,
        log_start_offset,
        error_message,
        tuple(records),
        leader,
        sealed,
    )
