"""The hand-written codec of Fetch, versions 4 to 16."""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from fencelog.errors import ErrorCode
from fencelog.types import NO_TOPIC_ID, Buffer, TopicId
from fencelog.wire import flexible_versions
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot.produce import (
    CurrentLeader,
    NodeEndpoint,
    read_current_leader,
    read_endpoints,
    write_current_leader,
    write_endpoints,
)
from fencelog.wire.primitives import (
    REQUEST_ITEMS_MAX,
    Reader,
    error_code,
    pack_int32,
    write_length,
    write_string,
    write_uvarint,
)

FLEXIBLE_FROM = flexible_versions.FLEXIBLE_FROM[ApiKey.FETCH]
TOPIC_IDS_FROM = 13
"""From here on Fetch names topics by id instead of by name (KIP-516)."""
ENDPOINTS_FROM = 16
"""From here on a response says where the leaders are that it names (KIP-951)."""
LEADER_TAG = 1


class FetchPartition(NamedTuple):
    """Where to read on one partition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    log_start_offset: int
    partition_max_bytes: int


class FetchTopic(NamedTuple):
    """Partitions of one topic; up to version 12 named by name, from 13 by id, the other None."""

    topic: str | None
    topic_id: TopicId | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions that a fetch session reads no longer; named as in ``FetchTopic``."""

    topic: str | None
    topic_id: TopicId | None
    partitions: tuple[int, ...]


class FetchRequest(NamedTuple):
    """What to read, and how long to wait for it."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: tuple[ForgottenTopic, ...] = ()


class FetchedPartition(NamedTuple):
    """What was read on one partition; ``aborted`` holds (producer id, first offset) pairs."""

    partition: int
    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    records: Sequence[Buffer] = ()
    current_leader: CurrentLeader | None = None


class FetchedTopic(NamedTuple):
    """Partitions of one topic in a fetch response; name or id as in the request."""

    topic: str | None
    topic_id: TopicId | None
    partitions: list[FetchedPartition]


class FetchResponse(NamedTuple):
    """A fetch response as a client reads it: each partition's records are at most one view."""

    throttle_time_ms: int
    error: ErrorCode
    session_id: int
    topics: list[FetchedTopic]
    endpoints: tuple[NodeEndpoint, ...] = ()


_FETCH_LIMITS = Struct(">iiib")
_SESSION = Struct(">ii")
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")


def read_fetch_request(body: Buffer, version: int) -> FetchRequest:
    """Return the request; the rack is skipped.

    Raises WireError if it is malformed.
    """
    flexible = version >= FLEXIBLE_FROM
    reader = Reader(body, 0, REQUEST_ITEMS_MAX)
    replica_id = reader.int32() if version < 15 else -1
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_FETCH_LIMITS)
    session_id, session_epoch = reader.unpack(_SESSION) if version >= 7 else (0, -1)
    topics = []
    for _ in range(reader.array_length(flexible, 2)):
        name, topic_id = _read_topic_name(reader, version)
        count = reader.array_length(flexible, _PARTITION_V4.size)
        topics.append(
            FetchTopic(name, topic_id, [_read_partition(reader, version) for _ in range(count)])
        )
        if flexible:
            reader.skip_tags()
    forgotten = _read_forgotten(reader, version) if version >= 7 else ()
    if version >= 11:
        reader.string(flexible)  # rack
    if flexible:
        replica_id = _read_replica_state(reader, version, replica_id)
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
    )


def _read_topic_name(reader: Reader, version: int) -> tuple[str | None, TopicId | None]:
    if version >= TOPIC_IDS_FROM:
        return None, TopicId(reader.uuid())
    return reader.string(version >= FLEXIBLE_FROM), None


def _write_topic_name(
    out: bytearray, topic: str | None, topic_id: TopicId | None, version: int
) -> None:
    if version >= TOPIC_IDS_FROM:
        out += topic_id or NO_TOPIC_ID
    else:
        write_string(out, topic or "", version >= FLEXIBLE_FROM)


def _read_partition(reader: Reader, version: int) -> FetchPartition:
    leader_epoch = log_start = -1
    if version >= 12:
        partition, leader_epoch, offset, _, log_start, max_bytes = reader.unpack(_PARTITION_V12)
        reader.skip_tags()
    elif version >= 9:
        partition, leader_epoch, offset, log_start, max_bytes = reader.unpack(_PARTITION_V9)
    elif version >= 5:
        partition, offset, log_start, max_bytes = reader.unpack(_PARTITION_V5)
    else:
        partition, offset, max_bytes = reader.unpack(_PARTITION_V4)
    return FetchPartition(partition, leader_epoch, offset, log_start, max_bytes)


def _read_forgotten(reader: Reader, version: int) -> tuple[ForgottenTopic, ...]:
    flexible = version >= FLEXIBLE_FROM
    forgotten = []
    for _ in range(reader.array_length(flexible, 2)):
        name, topic_id = _read_topic_name(reader, version)
        partitions = [reader.int32() for _ in range(reader.array_length(flexible, 4))]
        forgotten.append(ForgottenTopic(name, topic_id, tuple(partitions)))
        if flexible:
            reader.skip_tags()
    return tuple(forgotten)


def _read_replica_state(reader: Reader, version: int, replica_id: int) -> int:
    """Read the tagged fields; from version 15 a follower names itself in one (KIP-903)."""
    for tag, field in reader.tags():
        if tag == 1 and version >= 15:
            replica_id = field.int32()
    return replica_id


_ERROR_SESSION = Struct(">hi")
_FETCHED = Struct(">ihqq")
_FETCHED_V5 = Struct(">ihqqq")
_ABORTED = Struct(">qq")


def write_fetch_response(
    version: int,
    error: ErrorCode,
    session_id: int,
    topics: Iterable[FetchedTopic],
    throttle_time_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[Buffer]:
    """Return the body of a fetch response as buffers; record buffers are not copied.

    ``endpoints``: of the current leaders that partitions name; from version 16 on.
    """
    flexible = version >= FLEXIBLE_FROM
    parts: list[Buffer] = []
    out = bytearray(pack_int32(throttle_time_ms))
    if version >= 7:
        out += _ERROR_SESSION.pack(error, session_id)
    all_topics = list(topics)
    write_length(out, all_topics, flexible)
    for topic, topic_id, partitions in all_topics:
        _write_topic_name(out, topic, topic_id, version)
        write_length(out, partitions, flexible)
        for fetched in partitions:
            _write_fetched(out, fetched, version)
            if fetched.records:
                parts.append(out)
                parts += fetched.records
                out = bytearray()
            if fetched.current_leader is not None and flexible:
                write_current_leader(out, LEADER_TAG, fetched.current_leader)
            elif flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if endpoints and version >= ENDPOINTS_FROM:
        write_endpoints(out, endpoints)
    elif flexible:
        out.append(0)
    parts.append(out)
    return parts


def _write_fetched(out: bytearray, fetched: FetchedPartition, version: int) -> None:
    """Append one partition up to and including the length of its records."""
    flexible = version >= FLEXIBLE_FROM
    if version >= 5:
        out += _FETCHED_V5.pack(*fetched[:5])
    else:
        out += _FETCHED.pack(*fetched[:4])
    write_length(out, fetched.aborted, flexible)
    for aborted in fetched.aborted or ():
        out += _ABORTED.pack(*aborted)
        if flexible:
            out.append(0)
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # no preferred read replica
    # Empty, never null: some clients treat null records as an error.
    size = sum(map(len, fetched.records))
    if flexible:
        write_uvarint(out, size + 1)
    else:
        out += pack_int32(size)


def write_fetch_request(version: int, request: FetchRequest) -> bytes:
    """Return the body of a fetch request that names no rack."""
    flexible = version >= FLEXIBLE_FROM
    out = bytearray()
    if version < 15:
        out += pack_int32(request.replica_id)
    out += _FETCH_LIMITS.pack(*request[1:5])
    if version >= 7:
        out += _SESSION.pack(request.session_id, request.session_epoch)
    write_length(out, request.topics, flexible)
    for topic, topic_id, partitions in request.topics:
        _write_topic_name(out, topic, topic_id, version)
        write_length(out, partitions, flexible)
        for requested in partitions:
            _write_partition(out, requested, version)
        if flexible:
            out.append(0)
    if version >= 7:
        _write_forgotten(out, request.forgotten, version)
    if version >= 11:
        write_string(out, "", flexible)
    if flexible:
        out.append(0)
    return bytes(out)


def _write_forgotten(out: bytearray, forgotten: Sequence[ForgottenTopic], version: int) -> None:
    flexible = version >= FLEXIBLE_FROM
    write_length(out, forgotten, flexible)
    for topic, topic_id, partitions in forgotten:
        _write_topic_name(out, topic, topic_id, version)
        write_length(out, partitions, flexible)
        for partition in partitions:
            out += pack_int32(partition)
        if flexible:
            out.append(0)


def _write_partition(out: bytearray, requested: FetchPartition, version: int) -> None:
    partition, leader_epoch, offset, log_start, max_bytes = requested
    if version >= 12:
        out += _PARTITION_V12.pack(partition, leader_epoch, offset, -1, log_start, max_bytes)
        out.append(0)
    elif version >= 9:
        out += _PARTITION_V9.pack(*requested)
    elif version >= 5:
        out += _PARTITION_V5.pack(partition, offset, log_start, max_bytes)
    else:
        out += _PARTITION_V4.pack(partition, offset, max_bytes)


def read_fetch_response(body: Buffer, version: int) -> FetchResponse:
    """Return the response; each partition's records are a view of ``body``, or nothing.

    Raises WireError if it is malformed. The batches are not decoded.
    """
    flexible = version >= FLEXIBLE_FROM
    reader = Reader(body)
    throttle_time_ms = reader.int32()
    error, session_id = reader.unpack(_ERROR_SESSION) if version >= 7 else (0, 0)
    topics = []
    for _ in range(reader.array_length(flexible, 2)):
        name, topic_id = _read_topic_name(reader, version)
        count = reader.array_length(flexible, _FETCHED.size)
        topics.append(
            FetchedTopic(name, topic_id, [_read_fetched(reader, version) for _ in range(count)])
        )
        if flexible:
            reader.skip_tags()
    endpoints = read_endpoints(reader) if flexible else ()
    return FetchResponse(throttle_time_ms, error_code(error), session_id, topics, endpoints)


def _read_fetched(reader: Reader, version: int) -> FetchedPartition:
    flexible = version >= FLEXIBLE_FROM
    partition, error, high_watermark, last_stable_offset = reader.unpack(_FETCHED)
    log_start_offset = reader.int64() if version >= 5 else -1
    aborted = _read_aborted(reader, flexible)
    if version >= 11:
        reader.int32()  # preferred read replica
    records = reader.nullable_view(flexible)
    leader = read_current_leader(reader, LEADER_TAG) if flexible else None
    return FetchedPartition(
        partition,
        error_code(error),
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        (records,) if records else (),
        leader,
    )


def _read_aborted(reader: Reader, flexible: bool) -> list[tuple[int, int]] | None:
    count = reader.nullable_array_length(flexible, _ABORTED.size)
    if count < 0:
        return None
    aborted = []
    for _ in range(count):
        producer_id, first_offset = reader.unpack(_ABORTED)
        aborted.append((producer_id, first_offset))
        if flexible:
            reader.skip_tags()
    return aborted
