"""Fetch: whole batches as they are on disk, up to what the reader's isolation level may read.

Behaviour: a fetch that finds less than ``min_bytes`` waits for changes of its partitions, at most
``max_wait_ms``. The first batch is always returned whole, even above every limit, so that every
reader makes progress. There are no fetch sessions: session id 0 in the response makes every client
send full requests.
"""

import asyncio

from fencelog.broker.context import Broker
from fencelog.broker.dispatch import LONG_BODY_BYTES, respond
from fencelog.broker.network.connection import Answer, Reply, Request
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import CorruptionError, ErrorCode, StorageError
from fencelog.log.values import Isolation
from fencelog.types import Instant, LeaderEpoch, Offset
from fencelog.wire.batch import Compression, read_header
from fencelog.wire.hot import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_request,
    write_fetch_response,
)

ZSTD_FROM = 10


def fetch(broker: Broker, request: Request) -> Answer:
    """Handle one fetch request."""
    if len(request.body) > LONG_BODY_BYTES:
        return _fetch_long(broker, request)
    message = read_fetch_request(request.body, request.header.api_version)
    return _fetch(broker, request, message)


async def _fetch_long(broker: Broker, request: Request) -> Reply:
    """Decode a request with very many partitions in a time slice of its own."""
    await broker.time_slices.next()
    message = read_fetch_request(request.body, request.header.api_version)
    return await _fetch(broker, request, message)


async def _fetch(broker: Broker, request: Request, message: FetchRequest) -> Reply:
    version = request.header.api_version
    if message.isolation_level not in tuple(Isolation):
        return respond(request, *write_fetch_response(version, ErrorCode.INVALID_REQUEST, 0, []))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(message.max_wait_ms, 0) / 1000
    responses = request.connection.responses
    while True:
        # Registered before reading: an append while a partition is read still wakes the fetch.
        waiter: asyncio.Future[None] = loop.create_future()
        waited = _register(broker, message, waiter)
        try:
            wanted = min(message.max_bytes, broker.config.fetch_bytes_max)
            max_bytes = await responses.grant(max(wanted, 1), Instant(deadline))
            topics, size, final = await _read_all(broker, message, version, max_bytes)
            if final or size >= message.min_bytes or loop.time() >= deadline:
                if len(request.body) > LONG_BODY_BYTES:
                    await broker.time_slices.next()
                return respond(request, *write_fetch_response(version, ErrorCode.NONE, 0, topics))
            responses.give_back()
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                continue
        finally:
            for partition in waited:
                partition.remove_reader(waiter)


def _register(
    broker: Broker, message: FetchRequest, waiter: "asyncio.Future[None]"
) -> list[Partition]:
    waited = []
    for requested in message.topics:
        name = _name_of(broker, requested)
        if name is None:
            continue
        for part in requested.partitions:
            partition = broker.logs.get(name, part.partition)
            if partition is not None:
                partition.add_reader(waiter)
                waited.append(partition)
    return waited


def _name_of(broker: Broker, requested: FetchTopic) -> str | None:
    """Return the topic's name; None if no topic has the requested id."""
    if requested.topic_id is None:
        return requested.topic
    known = broker.catalog.by_id(requested.topic_id)
    return known.name if known else None


async def _read_all(
    broker: Broker, message: FetchRequest, version: int, max_bytes: int
) -> tuple[list[FetchedTopic], int, bool]:
    """Return the response's topics, their record bytes, and whether to answer at once (error)."""
    isolation = Isolation(message.isolation_level)
    topics: list[FetchedTopic] = []
    total = 0
    final = not message.topics
    async for requested in broker.time_slices.each(message.topics):
        name = _name_of(broker, requested)
        fetched = []
        async for part in broker.time_slices.each(requested.partitions):
            partition = broker.logs.get(name, part.partition) if name is not None else None
            if partition is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
                if name is not None:
                    code = broker.logs.missing(name, part.partition)
                fetched.append(FetchedPartition(part.partition, code))
                final = True
                continue
            limit = min(part.partition_max_bytes, max_bytes - total)
            first = total == 0 and max_bytes > 0
            one = await _read_one(partition, part, isolation, limit, first=first)
            if version < ZSTD_FROM and _holds_zstd(one):
                one = FetchedPartition(part.partition, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            total += sum(len(records) for records in one.records)
            final = final or one.error is not ErrorCode.NONE
            fetched.append(one)
        topics.append(FetchedTopic(requested.topic, requested.topic_id, fetched))
    return topics, total, final


def _holds_zstd(fetched: FetchedPartition) -> bool:
    """Whether the data begins with a zstd batch, which old clients cannot read."""
    return bool(fetched.records) and read_header(fetched.records[0]).compression is Compression.ZSTD


async def _read_one(
    partition: Partition,
    requested: FetchPartition,
    isolation: Isolation,
    limit: int,
    *,
    first: bool,
) -> FetchedPartition:
    error = epoch_error(requested.current_leader_epoch, partition.log.leader_epoch)
    if error is not ErrorCode.NONE:
        return FetchedPartition(requested.partition, error)
    offset = Offset(requested.fetch_offset)
    try:
        found = await partition.read(offset, limit, isolation, at_least_one=first)
    except (CorruptionError, StorageError):
        return FetchedPartition(requested.partition, ErrorCode.KAFKA_STORAGE_ERROR)
    aborted: list[tuple[int, int]] | None = None
    if isolation is Isolation.TRANSACTIONAL and found.error is ErrorCode.NONE:
        aborted = [(entry.producer_id, entry.first_offset) for entry in found.aborted]
    return FetchedPartition(
        requested.partition,
        found.error,
        found.high_watermark,
        found.last_stable_offset,
        found.log_start_offset,
        aborted,
        [found.records] if found.records else [],
    )


def epoch_error(requested: int, current: LeaderEpoch) -> ErrorCode:
    """Check the leader epoch that a client sent; -1 is not checked (KIP-320)."""
    if requested < 0 or requested == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if requested < current else ErrorCode.UNKNOWN_LEADER_EPOCH
