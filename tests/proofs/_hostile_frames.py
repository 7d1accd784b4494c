"""The requests of hostile clients, as frames."""

import struct
from collections.abc import Sequence
from functools import cache

from fencelog.types import TimestampMs
from fencelog.wire import hot
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import PLAIN_HEADER, Compression, attributes, seal
from fencelog.wire.compression import compress
from fencelog.wire.headers import read_response_header, response_is_flexible
from fencelog.wire.message import Message
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from fencelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencelog.wire.messages.end_txn import EndTxnRequest
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from fencelog.wire.messages.metadata import MetadataRequest
from fencelog.wire.messages.own import OwnRequest, OwnResource, OwnResponse
from fencelog.wire.messages.release_ownership import ReleaseOwnershipRequest
from fencelog.wire.messages.watch_ownership import WatchOwnershipRequest
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.requests import frame_of

PRODUCE_VERSION, FETCH_VERSION = 9, 11
BIG_BATCH_BYTES = 900_000
BOMB_RECORDS = 3_000_000
FETCH_BYTES = 55 << 20
MEDIUM_BATCH_BYTES, COPIED_BYTES = 64_000, 200 << 10
"""So much of a partition is read into memory; a broker maps what is larger."""


def sent(frame: bytes) -> bytes:
    """A frame with its size."""
    return struct.pack(">i", len(frame)) + frame


def of(message: Message, version: int) -> bytes:
    """A generated message as it is sent."""
    key = ApiKey(message.API_KEY)
    return sent(frame_of(key, version, message.write(version)))


def versions() -> bytes:
    """The smallest request."""
    return sent(frame_of(ApiKey.API_VERSIONS, 0, b""))


def everything() -> bytes:
    """Metadata of all topics."""
    return of(MetadataRequest(topics=None), 9)


def fetch(
    topic: str, *, max_bytes: int, max_wait_ms: int, offset: int = 0, partitions: int = 1
) -> bytes:
    """A fetch of so many bytes of each partition."""
    wanted = [hot.FetchPartition(at, -1, offset, -1, max_bytes) for at in range(partitions)]
    asked = hot.FetchTopic(topic, None, wanted)
    request = hot.FetchRequest(-1, max_wait_ms, 1, partitions * max_bytes, 0, 0, -1, [asked])
    return sent(frame_of(ApiKey.FETCH, FETCH_VERSION, hot.write_fetch_request(11, request)))


def produce(
    topic: str,
    batch: bytes | bytearray,
    *,
    partitions: int = 1,
    acks: int = -1,
    timeout_ms: int = 30_000,
    transactional_id: str | None = None,
) -> bytes:
    """One batch to the first so many partitions of a topic."""
    parts = [(topic, [(index, batch) for index in range(partitions)])]
    body = hot.write_produce_request(PRODUCE_VERSION, transactional_id, acks, timeout_ms, parts)
    return sent(frame_of(ApiKey.PRODUCE, PRODUCE_VERSION, b"".join(body)))


def record(**how: object) -> bytearray:
    """A batch of one small record."""
    return build_batch([RecordToWrite(key=b"k", value=b"v", timestamp_ms=0)], **how)  # type: ignore[arg-type]


@cache
def big_batch() -> bytearray:
    """A batch of nearly the largest size."""
    return build_batch([RecordToWrite(key=b"k", value=bytes(BIG_BATCH_BYTES), timestamp_ms=0)])


@cache
def medium_batch() -> bytearray:
    """A batch of which three are read into memory."""
    return build_batch([RecordToWrite(key=b"k", value=bytes(MEDIUM_BATCH_BYTES), timestamp_ms=0)])


@cache
def compressed_bombs(topic: str) -> tuple[bytes, bytes]:
    """Batches of a few kilobytes: of 200,000 records, and of one that has 30 MiB."""
    records = [RecordToWrite(key=b"", value=b"", timestamp_ms=0)] * 200_000
    wide = [RecordToWrite(key=b"k", value=bytes(30 << 20), timestamp_ms=0)]
    return (
        produce(topic, build_batch(records, compression=Compression.ZSTD)),
        produce(topic, build_batch(wide, compression=Compression.GZIP)),
    )


@cache
def bomb(records: int = BOMB_RECORDS) -> bytearray:
    """A batch of a kilobyte or two that says how many records it holds, and holds them."""
    plain = bytes([12, 0, 0, 0, 1, 1, 0]) * records  # no key, no value, no headers
    header = PLAIN_HEADER._replace(
        attributes=attributes(compression=Compression.ZSTD),
        base_timestamp=TimestampMs(0),
        max_timestamp=TimestampMs(1000),
        last_offset_delta=records - 1,
        record_count=records,
    )
    return seal(header, bytes(compress(Compression.ZSTD, plain)))


def lookup(topic: str, timestamp: int) -> bytes:
    """A lookup by time."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsTopic(name=topic, partitions=[asked])]
    return of(ListOffsetsRequest(replica_id=-1, topics=topics), 7)


def create(names: list[str], partitions: int, **configs: str) -> bytes:
    """Topics of so many partitions."""
    settings = [
        CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
        for name in names
    ]
    return of(CreateTopicsRequest(topics=topics, timeout_ms=120_000), 7)


def delete(names: list[str]) -> bytes:
    """The end of topics."""
    topics = [DeleteTopicState(name=name) for name in names]
    return of(DeleteTopicsRequest(topics=topics, timeout_ms=120_000), 6)


def init(transactional_id: str, timeout_ms: int) -> bytes:
    """A transactional producer begins."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
    )
    return of(request, 4)


def initialized(answer: bytes) -> tuple[int, int]:
    """The producer id and the epoch."""
    _, body = read_response_header(answer, response_is_flexible(ApiKey.INIT_PRODUCER_ID, 4))
    found = InitProducerIdResponse.read(body, 4)
    return found.producer_id, found.producer_epoch


def add_partitions(transactional_id: str, producer: tuple[int, int], topic: str, n: int) -> bytes:
    """The first so many partitions of a topic join a transaction."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(range(n)))],
    )
    return of(request, 3)


def end(transactional_id: str, producer: tuple[int, int], *, committed: bool) -> bytes:
    """The end of a transaction."""
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=committed,
    )
    return of(request, 3)


def own(
    group: str,
    names: Sequence[str],
    *,
    generation: int = -1,
    prev_epoch: int = -1,
    claim_id: str = "",
    wait_ms: int = 0,
) -> bytes:
    """A claim of resources."""
    request = OwnRequest(
        group=group,
        resources=[
            OwnResource(resource=each, generation=generation, prev_epoch=prev_epoch)
            for each in names
        ],
        holder="hostile",
        session_timeout_ms=60_000,
        claim_id=claim_id,
        wait_ms=wait_ms,
    )
    return of(request, 0)


def owned(answer: bytes) -> OwnResponse:
    """What a claim was answered."""
    _, body = read_response_header(answer, response_is_flexible(ApiKey.OWN, 0))
    return OwnResponse.read(body, 0)


def release(group: str, names: list[str]) -> bytes:
    """The end of what others hold."""
    return of(ReleaseOwnershipRequest(group=group, resources=names), 0)


def watch(group: str, *, seen_revision: int) -> bytes:
    """A watch of a whole group."""
    request = WatchOwnershipRequest(group=group, seen_revision=seen_revision, max_wait_ms=30_000)
    return of(request, 0)
