"""Kafka's TransactionLogKey and TransactionLogValue.

Version 0 is written as long as it can say all; version 1 (Kafka 3.8 and newer) once there is more:
the previous identity, in Kafka's own tagged field for its producer id and in one of ours for its
epoch, which Kafka's tools skip (Kafka forgets that epoch on a load and then fences a producer that
merely repeats a request); the next producer id; the transaction version of the client.
"""

import struct
from collections.abc import Iterable

from fencelog.coordination.encoding import Reader, Writer, by_topic, stored
from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction.state import (
    ClientVersion,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from fencelog.errors import CorruptionError
from fencelog.types import (
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

_KEY_VERSION = 0
_TAG_PREVIOUS_PRODUCER_ID = 0
_TAG_NEXT_PRODUCER_ID = 1
_TAG_CLIENT_VERSION = 2
_TAG_PREVIOUS_EPOCH = 10_000


def write_transaction(transaction: Transaction) -> LogRecord:
    """Return the record that says all of this transactional id."""
    key = write_key(transaction.transactional_id)
    tags = _tags(transaction)
    value = _write_value_1(transaction, tags) if tags else _write_value_0(transaction)
    return LogRecord(key, value)


def write_key(transactional_id: str) -> bytes:
    """Return the key of this transactional id."""
    return Writer().int16(_KEY_VERSION).text(transactional_id).done()


def _write_value_0(transaction: Transaction) -> bytes:
    writer = Writer().int16(0)
    _write_head(writer, transaction)
    if transaction.state is TxnState.EMPTY:
        writer.int32(-1)  # Kafka refuses to load an Empty value with an array in it.
    else:
        writer.partitions(transaction.partitions)
    return writer.int64(transaction.updated_ms).int64(transaction.started_ms).done()


def _write_value_1(transaction: Transaction, tags: dict[int, bytes]) -> bytes:
    writer = Writer().int16(1)
    _write_head(writer, transaction)
    if transaction.state is TxnState.EMPTY:
        writer.uvarint(0)
    else:
        _write_compact_partitions(writer, transaction.partitions)
    return writer.int64(transaction.updated_ms).int64(transaction.started_ms).tagged(tags).done()


def _tags(transaction: Transaction) -> dict[int, bytes]:
    """What version 0 has no room for; each is left out where it says nothing, as in Kafka."""
    tags = {}
    if transaction.previous is not None:
        tags[_TAG_PREVIOUS_PRODUCER_ID] = struct.pack(">q", transaction.previous.producer_id)
        tags[_TAG_PREVIOUS_EPOCH] = struct.pack(">h", transaction.previous.producer_epoch)
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags[_TAG_NEXT_PRODUCER_ID] = struct.pack(">q", transaction.next_producer_id)
    if transaction.client_version is not ClientVersion.V1:
        tags[_TAG_CLIENT_VERSION] = struct.pack(">h", transaction.client_version)
    return tags


def _write_head(writer: Writer, transaction: Transaction) -> None:
    writer.int64(transaction.producer.producer_id).int16(transaction.producer.producer_epoch)
    writer.int32(transaction.timeout_ms).int8(transaction.state)


def _write_compact_partitions(writer: Writer, partitions: Iterable[TopicPartition]) -> None:
    topics = by_topic(partitions)
    writer.uvarint(len(topics) + 1)
    for topic, numbers in topics:
        writer.compact_text(topic).uvarint(len(numbers) + 1)
        for number in numbers:
            writer.int32(number)
        writer.tagged({})


@stored()
def read_key(key: bytes) -> str:
    """Return the transactional id. Raises CorruptionError on anything but Kafka's key."""
    reader = Reader(key)
    version = reader.int16()
    if version != _KEY_VERSION:
        raise CorruptionError(f"transaction log key of version {version}")
    transactional_id = reader.text()
    reader.expect_end()
    return transactional_id


@stored()
def read_value(transactional_id: str, value: bytes) -> Transaction:
    """Return what the value says. Raises CorruptionError on anything but versions 0 and 1."""
    reader = Reader(value)
    version = reader.int16()
    if version not in (0, 1):
        raise CorruptionError(f"transaction log value of version {version}")
    producer = ProducerIdAndEpoch(ProducerId(reader.int64()), ProducerEpoch(reader.int16()))
    timeout_ms = reader.int32()
    state = _state(reader.int8())
    partitions = reader.partitions() if version == 0 else _compact_partitions(reader)
    updated_ms, started_ms = TimestampMs(reader.int64()), TimestampMs(reader.int64())
    tags = reader.tagged() if version == 1 else {}
    reader.expect_end()
    return Transaction(
        transactional_id=transactional_id,
        producer=producer,
        previous=_previous(tags),
        next_producer_id=_next_producer_id(tags),
        client_version=_client_version(tags),
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        updated_ms=updated_ms,
        started_ms=started_ms,
    )


def _state(number: int) -> TxnState:
    try:
        return TxnState(number)
    except ValueError as error:
        raise CorruptionError(f"transaction state {number}") from error


def _compact_partitions(reader: Reader) -> frozenset[TopicPartition]:
    def topic(it: Reader) -> list[TopicPartition]:
        name = it.compact_text()
        numbers = it.compact_array(Reader.int32, 4)
        it.tagged()
        return [TopicPartition(name, number) for number in numbers]

    return frozenset(each for group in reader.compact_array(topic, 3) for each in group)


def _previous(tags: dict[int, bytes]) -> ProducerIdAndEpoch | None:
    if _TAG_PREVIOUS_PRODUCER_ID not in tags or _TAG_PREVIOUS_EPOCH not in tags:
        return None
    producer_id = Reader(tags[_TAG_PREVIOUS_PRODUCER_ID]).int64()
    return ProducerIdAndEpoch(
        ProducerId(producer_id), ProducerEpoch(Reader(tags[_TAG_PREVIOUS_EPOCH]).int16())
    )


def _next_producer_id(tags: dict[int, bytes]) -> ProducerId:
    if _TAG_NEXT_PRODUCER_ID not in tags:
        return NO_PRODUCER_ID
    return ProducerId(Reader(tags[_TAG_NEXT_PRODUCER_ID]).int64())


def _client_version(tags: dict[int, bytes]) -> ClientVersion:
    if _TAG_CLIENT_VERSION not in tags:
        return ClientVersion.V1
    number = Reader(tags[_TAG_CLIENT_VERSION]).int16()
    return ClientVersion.V2 if number >= ClientVersion.V2 else ClientVersion.V1
