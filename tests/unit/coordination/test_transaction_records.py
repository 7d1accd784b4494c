"""Kafka's transaction log records: the bytes that Kafka writes and reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.shard import LogRecord
from fencelog.coordination.transaction.records import read_key, read_value, write_transaction
from fencelog.coordination.transaction.state import (
    ClientVersion,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
from fencelog.errors import CorruptionError
from fencelog.types import ProducerEpoch, ProducerId, TimestampMs, TopicPartition

ONGOING = Transaction(
    transactional_id="pay",
    producer=ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(3)),
    previous=None,
    timeout_ms=60_000,
    state=TxnState.ONGOING,
    partitions=frozenset({TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0)}),
    updated_ms=TimestampMs(2),
    started_ms=TimestampMs(1),
)

# Laid out by hand from TransactionLogKey.json and TransactionLogValue.json, version 0.
KEY = bytes.fromhex("0000 0003") + b"pay"
VALUE = (
    bytes.fromhex("0000 0000000000000007 0003 0000ea60 01 00000002")
    + bytes.fromhex("0001") + b"a" + bytes.fromhex("00000002 00000000 00000002")
    + bytes.fromhex("0001") + b"b" + bytes.fromhex("00000001 00000001")
    + bytes.fromhex("0000000000000002 0000000000000001")
)  # fmt: skip

# Version 1, as Kafka 4 writes it: compact forms, a tagged field that we do not use.
VALUE_OF_KAFKA_4 = (
    bytes.fromhex("0001 0000000000000007 0003 0000ea60 01 02")
    + bytes.fromhex("02") + b"a" + bytes.fromhex("02 00000000 00")
    + bytes.fromhex("0000000000000002 0000000000000001 01 01 08 0000000000000009")
)  # fmt: skip

# The same of a version 2 client at its last epoch: Kafka's tags 0 to 2, and ours for the epoch.
VALUE_OF_VERSION_2 = (
    bytes.fromhex("0001 0000000000000007 7fff 0000ea60 02 02")
    + bytes.fromhex("02") + b"a" + bytes.fromhex("02 00000000 00")
    + bytes.fromhex("0000000000000002 0000000000000001 04")
    + bytes.fromhex("00 08 0000000000000007 01 08 0000000000000009 02 02 0002 904e 02 7ffe")
)  # fmt: skip

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
partitions = st.builds(TopicPartition, names, st.integers(0, 2**31 - 1))
int64s = st.integers(-(2**63), 2**63 - 1)
identities = st.builds(ProducerIdAndEpoch, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
states = st.sampled_from([state for state in TxnState if state is not TxnState.EMPTY])
transactions = st.builds(
    Transaction,
    transactional_id=names,
    producer=identities,
    previous=st.none() | identities,
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_version=st.sampled_from(ClientVersion),
    timeout_ms=st.integers(0, 2**31 - 1),
    state=states,
    partitions=st.frozensets(partitions, max_size=5),
    updated_ms=int64s,
    started_ms=int64s,
)


def test_the_bytes_are_kafkas_version_0() -> None:  # E9
    assert write_transaction(ONGOING) == LogRecord(KEY, VALUE)


def test_a_previous_producer_id_without_its_epoch_is_none() -> None:
    alone = VALUE_OF_VERSION_2.replace(b"\x04\x00\x08", b"\x01\x00\x08")
    value = alone[: alone.index(b"\x01\x00\x08") + 3 + 8]
    assert read_value("pay", VALUE_OF_VERSION_2).previous == (7, 0x7FFE)
    assert read_value("pay", value).previous is None


def test_a_value_of_kafka_4_is_read() -> None:
    read = read_value("pay", VALUE_OF_KAFKA_4)
    assert read.partitions == {TopicPartition("a", 0)}
    assert read.producer == (7, 3)
    assert read.previous is None


def test_the_bytes_of_version_2_are_kafkas_version_1() -> None:  # E7, E9
    prepared = Transaction(
        transactional_id="pay",
        producer=ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(32767)),
        previous=ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(32766)),
        next_producer_id=ProducerId(9),
        client_version=ClientVersion.V2,
        timeout_ms=60_000,
        state=TxnState.PREPARE_COMMIT,
        partitions=frozenset({TopicPartition("a", 0)}),
        updated_ms=TimestampMs(2),
        started_ms=TimestampMs(1),
    )
    assert write_transaction(prepared) == LogRecord(KEY, VALUE_OF_VERSION_2)
    assert read_value("pay", VALUE_OF_VERSION_2) == prepared


def test_an_empty_transaction_has_no_array_of_partitions() -> None:
    record = write_transaction(
        Transaction(
            transactional_id="pay",
            producer=ONGOING.producer,
            previous=None,
            timeout_ms=60_000,
            state=TxnState.EMPTY,
            partitions=frozenset(),
            updated_ms=TimestampMs(2),
            started_ms=TimestampMs(-1),
        )
    )
    assert record.value is not None
    assert record.value[17:21] == b"\xff\xff\xff\xff"


@given(transactions)
def test_what_is_written_is_read_back(transaction: Transaction) -> None:
    record = write_transaction(transaction)
    assert record.value is not None
    assert read_value(read_key(record.key), record.value) == transaction


@given(transactions, st.data())
def test_a_value_cut_anywhere_is_damage(transaction: Transaction, data: st.DataObject) -> None:
    value = write_transaction(transaction).value
    assert value is not None
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(CorruptionError):
        read_value("pay", value[:cut])


@pytest.mark.parametrize(
    "value",
    [
        bytes.fromhex("0002") + VALUE[2:],  # a version of the future
        VALUE[:16] + b"\x09" + VALUE[17:],  # no such state
        VALUE[:17] + b"\x7f\xff\xff\xff" + VALUE[21:],  # an array longer than the value
        VALUE + b"\x00",  # a byte too many
        VALUE.replace(b"a", b"\xff"),  # no UTF-8
    ],
)
def test_a_value_that_makes_no_sense_is_damage(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        read_value("pay", value)


@pytest.mark.parametrize("key", [b"", b"\x00\x01\x00\x00", KEY + b"x", b"\x00\x00\xff\xff"])
def test_a_key_that_makes_no_sense_is_damage(key: bytes) -> None:
    with pytest.raises(CorruptionError):
        read_key(key)


def test_a_varint_that_never_ends_is_damage() -> None:
    with pytest.raises(CorruptionError):
        read_value("pay", VALUE_OF_KAFKA_4[:17] + b"\xff" * 6)
