"""Fetch: whole batches as they are on disk, up to what the reader's isolation may see.

Behaviour: a fetch that finds less than ``min_bytes`` waits for news of its partitions, at most
``max_wait_ms``. The first batch is always whole, even above every limit, so that no reader is
stuck. Sessions are not kept: answering session id 0 makes every client send whole requests.
"""

import asyncio

from fencelog.broker.context import Broker
from fencelog.broker.dispatch import LONG_BODY_BYTES, respond
from fencelog.broker.network.connection import Answer, Reply, Request
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import CorruptionError, ErrorCode, StorageError
from fencelog.log.values import Isolation
from fencelog.types import LeaderEpoch, Offset
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
    """One that names very many partitions is read in a turn of its own."""
    await broker.time_slices.next()
    message = read_fetch_request(request.body, request.header.api_version)
    return await _fetch(broker, request, message)


async def _fetch(broker: Broker, request: Request, message: FetchRequest) -> Reply:
    version = request.header.api_version
    if message.isolation_level not in tuple(Isolation):
        return respond(request, *write_fetch_response(version, ErrorCode.INVALID_REQUEST, 0, []))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(message.max_wait_ms, 0) / 1000
    while True:
        # Registered before reading: what arrives while one partition is read still wakes us.
        waiter: asyncio.Future[None] = loop.create_future()
        waited = _register(broker, message, waiter)
        try:
            topics, size, final = await _read_all(broker, message, version)
            if final or size >= message.min_bytes or loop.time() >= deadline:
                if len(request.body) > LONG_BODY_BYTES:
                    await broker.time_slices.next()
                return respond(request, *write_fetch_response(version, ErrorCode.NONE, 0, topics))
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
    for asked in message.topics:
        name = _name_of(broker, asked)
        if name is None:
            continue
        for part in asked.partitions:
            partition = broker.logs.get(name, part.partition)
            if partition is not None:
                partition.add_reader(waiter)
                waited.append(partition)
    return waited


def _name_of(broker: Broker, asked: FetchTopic) -> str | None:
    """The topic's name; None where no topic has the id by which it was asked for."""
    if asked.topic_id is None:
        return asked.topic
    known = broker.catalog.by_id(asked.topic_id)
    return known.name if known else None


async def _read_all(
    broker: Broker, message: FetchRequest, version: int
) -> tuple[list[FetchedTopic], int, bool]:
    """Everything to answer, its record bytes, and whether it must leave now (an error)."""
    isolation = Isolation(message.isolation_level)
    budget = min(message.max_bytes, broker.config.fetch_bytes_max)
    topics: list[FetchedTopic] = []
    total = 0
    final = not message.topics
    async for asked in broker.time_slices.each(message.topics):
        name = _name_of(broker, asked)
        fetched = []
        async for part in broker.time_slices.each(asked.partitions):
            partition = broker.logs.get(name, part.partition) if name is not None else None
            if partition is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
                if name is not None:
                    code = broker.logs.missing(name, part.partition)
                fetched.append(FetchedPartition(part.partition, code))
                final = True
                continue
            limit = min(part.partition_max_bytes, budget - total)
            one = await _read_one(partition, part, isolation, limit, first=total == 0)
            if version < ZSTD_FROM and _holds_zstd(one):
                one = FetchedPartition(part.partition, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            total += sum(len(records) for records in one.records)
            final = final or one.error is not ErrorCode.NONE
            fetched.append(one)
        topics.append(FetchedTopic(asked.topic, asked.topic_id, fetched))
    return topics, total, final


def _holds_zstd(fetched: FetchedPartition) -> bool:
    """Whether the data begins with a zstd batch, which old clients cannot read."""
    return bool(fetched.records) and read_header(fetched.records[0]).compression is Compression.ZSTD


async def _read_one(
    partition: Partition,
    asked: FetchPartition,
    isolation: Isolation,
    limit: int,
    *,
    first: bool,
) -> FetchedPartition:
    error = epoch_error(asked.current_leader_epoch, partition.log.leader_epoch)
    if error is not ErrorCode.NONE:
        return FetchedPartition(asked.partition, error)
    offset = Offset(asked.fetch_offset)
    try:
        found = await partition.read(offset, limit, isolation, at_least_one=first)
    except (CorruptionError, StorageError):
        return FetchedPartition(asked.partition, ErrorCode.KAFKA_STORAGE_ERROR)
    aborted: list[tuple[int, int]] | None = None
    if isolation is Isolation.TRANSACTIONAL and found.error is ErrorCode.NONE:
        aborted = [(entry.producer_id, entry.first_offset) for entry in found.aborted]
    return FetchedPartition(
        asked.partition,
        found.error,
        found.high_watermark,
        found.last_stable_offset,
        found.log_start_offset,
        aborted,
        [found.records] if found.records else [],
    )


def epoch_error(asked: int, current: LeaderEpoch) -> ErrorCode:
    """Judge the leader epoch that a client believes in; -1 is not checked (KIP-320)."""
    if asked < 0 or asked == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH
