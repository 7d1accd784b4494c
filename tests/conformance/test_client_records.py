"""Our codec and stock clients read each other's records, byte for byte, in every codec."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from fencelog.client.arrow import HEADERS_TYPE
from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.stock import CODECS, Confluent, Seen, StockClient, ToSend

MOMENT_MS = 1_357_034_400_000
COLUMNS = frozenset(("key", "value", "headers", "timestamp", "offset"))
RECORDS = [
    ToSend(b"plain", b"key", (("h", b"1"), ("h", b"2"), ("empty", b"")), MOMENT_MS),
    ToSend(b"no key and no header", None, (), MOMENT_MS + 1),
    ToSend(b"", b"", (), MOMENT_MS + 2),
    ToSend(bytes(range(256)) * 40, b"\xff\x00", (), MOMENT_MS + 3),
]


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def read_arrow(client: Client, topic: str) -> list[Seen]:
    place = TopicPartition(topic, 0)
    (end,) = client.offsets([place], "latest").values()
    return [
        Seen(
            0,
            row["offset"],
            row["key"],
            row["value"],
            tuple((h["key"], h["value"]) for h in row["headers"] or ()),
            int((row["timestamp"] - at(0)) / timedelta(milliseconds=1)),
        )
        for batch in client.fetch_arrow(place, 0, end, columns=COLUMNS)
        for row in batch.to_pylist()
    ]


def as_seen(records: list[ToSend]) -> list[Seen]:
    return [
        Seen(0, offset, record.key, record.value, record.headers, timestamp)
        for offset, record in enumerate(records)
        if (timestamp := record.timestamp_ms) is not None
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_arrow_reads_what_stock_clients_write(
    client: StockClient, codec: str, shared_broker: BrokerProcess, topic: str
) -> None:
    client.write(shared_broker.address, topic, RECORDS, codec=codec)
    with Client(shared_broker.address) as ours:
        assert read_arrow(ours, topic) == as_seen(RECORDS)


@pytest.mark.parametrize("codec", CODECS)
def test_stock_clients_read_what_arrow_writes(
    client: StockClient, codec: str, shared_broker: BrokerProcess, topic: str
) -> None:
    schema = pa.schema(
        {
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": HEADERS_TYPE,
            "timestamp": pa.timestamp("us", tz="UTC"),
        }
    )
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
            "timestamp": at(record.timestamp_ms or 0),
        }
        for record in RECORDS
    ]
    with Client(shared_broker.address) as ours:
        ours.create_topic(topic, 1)
        with ours.arrow_writer(topic=topic, compression=codec) as writer:  # type: ignore[arg-type]
            writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        assert client.read(shared_broker.address, topic) == as_seen(RECORDS)
        assert read_arrow(ours, topic) == as_seen(RECORDS)


def test_arrow_sees_of_stock_transactions_what_is_committed(  # E10
    client: StockClient, shared_broker: BrokerProcess, topic: str
) -> None:
    writer = client.transactional(shared_broker.address, f"id-{topic}")
    with Client(shared_broker.address) as ours:
        ours.create_topic(topic, 1)
        for number in range(6):
            writer.begin()
            for part in range(3):
                writer.send(topic, b"%d.%d" % (number, part))
            (writer.abort if number % 2 else writer.commit)()
        writer.close()
        expected = [b"%d.%d" % (number, part) for number in (0, 2, 4) for part in range(3)]
        stock = Confluent().read(shared_broker.address, topic)
        assert [seen.value for seen in stock] == expected
        assert [seen.value for seen in read_arrow(ours, topic)] == expected


def test_arrow_and_stock_clients_choose_the_same_partition_for_a_key(
    shared_broker: BrokerProcess, topic: str
) -> None:
    keys = [b"key-%d" % number for number in range(200)]
    with Client(shared_broker.address) as ours:
        ours.create_topic(topic, 7)
        with ours.arrow_writer(topic=topic) as writer:
            columns = [pa.array(keys, pa.binary()), pa.array(keys, pa.binary())]
            writer.write(pa.RecordBatch.from_arrays(columns, names=["key", "value"]))
        with ours.producer() as producer:
            for key in keys:
                producer.send(topic, key, key=key)
    from kafka.partitioner.default import murmur2

    seen = Confluent().read(shared_broker.address, topic)
    assert len(seen) == 2 * len(keys)
    assert {(each.key, each.partition) for each in seen} == {
        (key, (murmur2(key) & 0x7FFFFFFF) % 7) for key in keys
    }
