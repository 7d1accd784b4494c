"""Transactional ids as Kafka's TransactionLogKey and TransactionLogValue.

Version 0 is written as long as it can say all; version 1 (Kafka 3.8 and newer) once there is more:
the previous identity, in Kafka's own tagged field for its producer id and in one of ours for its
epoch, which Kafka's tools skip (Kafka forgets that epoch on a load and then fences a producer that
merely repeats a request); the next producer id; the transaction version of the client.
"""

from fencelog.coordination.encoding import by_topic
from fencelog.coordination.schemas.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction.state import (
    ClientVersion,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from fencelog.errors import CorruptionError
from fencelog.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

_KEY_VERSION = 0


def write_transaction(transaction: Transaction) -> LogRecord:
    """Return the record that says all of this transactional id."""
    value = TransactionLogValue(
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.producer_epoch,
        next_producer_id=transaction.next_producer_id,
        client_transaction_version=transaction.client_version,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=_topics(transaction),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
    )
    if transaction.previous is not None:
        value.previous_producer_id = transaction.previous.producer_id
        value.previous_producer_epoch = transaction.previous.producer_epoch
    return LogRecord(write_key(transaction.transactional_id), value.write(_version(transaction)))


def write_key(transactional_id: str) -> bytes:
    """Return the key of this transactional id."""
    return TransactionLogKey(transactional_id=transactional_id).write(_KEY_VERSION)


def _version(transaction: Transaction) -> int:
    """The lowest version that has room for everything."""
    fits_version_0 = (
        transaction.previous is None
        and transaction.next_producer_id == NO_PRODUCER_ID
        and transaction.client_version is ClientVersion.V1
    )
    return 0 if fits_version_0 else 1


def _topics(transaction: Transaction) -> list[PartitionsSchema] | None:
    if transaction.state is TxnState.EMPTY:
        return None  # Kafka refuses to load an Empty value with an array in it.
    return [
        PartitionsSchema(topic=topic, partition_ids=numbers)
        for topic, numbers in by_topic(transaction.partitions)
    ]


def read_key(key: bytes) -> str:
    """Return the transactional id. Raises CorruptionError on anything but Kafka's key."""
    return TransactionLogKey.read(key).transactional_id


def read_value(transactional_id: str, value: bytes) -> Transaction:
    """Return what the value says. Raises CorruptionError on anything but versions 0 and 1."""
    read = TransactionLogValue.read(value)
    return Transaction(
        transactional_id=transactional_id,
        producer=ProducerIdAndEpoch(
            ProducerId(read.producer_id), ProducerEpoch(read.producer_epoch)
        ),
        previous=_previous(read),
        next_producer_id=ProducerId(read.next_producer_id),
        client_version=_client_version(read.client_transaction_version),
        timeout_ms=read.transaction_timeout_ms,
        state=_state(read.transaction_status),
        partitions=frozenset(
            TopicPartition(each.topic, number)
            for each in read.transaction_partitions or ()
            for number in each.partition_ids
        ),
        updated_ms=TimestampMs(read.transaction_last_update_timestamp_ms),
        started_ms=TimestampMs(read.transaction_start_timestamp_ms),
    )


def _state(number: int) -> TxnState:
    try:
        return TxnState(number)
    except ValueError as error:
        raise CorruptionError(f"transaction state {number}") from error


def _previous(read: TransactionLogValue) -> ProducerIdAndEpoch | None:
    """Both parts, or nothing: Kafka writes the producer id alone."""
    producer_id = ProducerId(read.previous_producer_id)
    producer_epoch = ProducerEpoch(read.previous_producer_epoch)
    if producer_id == NO_PRODUCER_ID or producer_epoch == NO_PRODUCER_EPOCH:
        return None
    return ProducerIdAndEpoch(producer_id, producer_epoch)


def _client_version(number: int) -> ClientVersion:
    return ClientVersion.V2 if number >= ClientVersion.V2 else ClientVersion.V1
