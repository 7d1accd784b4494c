"""Divides a finished batch anew: at a seal, and where a topic is not what it was (R2).

The records of a key stay in their order, and go to one place.
"""

import asyncio
from dataclasses import replace

from fencelog.client.batches import EncodedBatch
from fencelog.client.records_buffer import encoded, key_hash
from fencelog.client.streams.known import Places
from fencelog.client.streams.ranges import median
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.failures import failure
from fencelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from fencelog.wire.records import RecordToWrite, read_records

RECORDS_PER_SLICE = 1_000
"""After so many the event loop goes on with others: they take about ten milliseconds."""


async def divided(batch: EncodedBatch, places: Places, turn: int) -> list[EncodedBatch]:
    """Return the batches that have the records of this one, for a topic's places as they are now.

    Records without a key go to one place, which ``turn`` chooses. Raises WireError if the batch
    cannot be read, which it can if it was made by this client.
    """
    topic = batch.partition.topic
    if not isinstance(places, int) and len(places.covering) == 1:
        # A merge: all records have one place, and the batch need not be opened.
        partition = TopicPartition(topic, places.covering[0].segment)
        return [replace(batch, partition=partition, topic_id=places.topic_id)]
    batch.finish(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, transactional=False)
    rows: dict[int, list[RecordToWrite]] = {}
    hashes: dict[int, list[int]] = {}
    hash_of: dict[bytes, int] = {}
    for number, record in enumerate(read_records(batch.buffer)):
        if number % RECORDS_PER_SLICE == RECORDS_PER_SLICE - 1:
            await asyncio.sleep(0)
        key = record.key
        if key is None:
            place = turn % places if isinstance(places, int) else places.keyless(turn)
        else:
            hashed = hash_of.get(key)
            if hashed is None:
                hashed = hash_of[key] = key_hash(key)
            place = hashed % places if isinstance(places, int) else places.segment_of(hashed)
            hashes.setdefault(place, []).append(hashed)
        to_write = RecordToWrite(key, record.value, record.timestamp, record.headers)
        rows.setdefault(place, []).append(to_write)
    topic_id = None if isinstance(places, int) else places.topic_id
    return [
        encoded(
            TopicPartition(topic, place),
            found,
            batch.compression,
            topic_id,
            median(hashes.get(place, [])),
        )
        for place, found in rows.items()
    ]


def forgotten(partition: TopicPartition, count: int, *, is_transactional: bool) -> RequestError:
    """Return what a writer is told whose batch may be in a sealed segment that cannot tell it."""
    what = f"write of {count} records to {partition}"
    if is_transactional:
        # Of an open transaction the segment would know the producer.
        return failure(
            ErrorCode.INVALID_TXN_STATE,
            what,
            "the segment is sealed, and no transaction of this producer is open there any more",
        )
    return failure(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        what,
        "the segment is sealed and knows this producer no more, as its records were deleted: "
        "whether these were stored before is not known; read the stream, or what was copied of it, "
        "before you write them again",
    )
