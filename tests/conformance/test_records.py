"""What one stock client writes every stock client reads, byte for byte, in every codec."""

import pytest

from tests.support.broker import BrokerProcess
from tests.support.stock import CLIENTS, CODECS, Confluent, Seen, StockClient, ToSend

RECORDS = [
    ToSend(b"plain", b"key", (("h", b"1"), ("h", b"2"), ("empty", b"")), 1_357_034_400_000),
    ToSend(b"no key and no header", None, (), 1_357_034_400_001),
    ToSend(b"", b"", (), 1_357_034_400_002),
    ToSend(bytes(range(256)) * 40, b"\xff\x00", (), 1_357_034_400_003),
]


def as_seen(records: list[ToSend]) -> list[Seen]:
    return [
        Seen(record.partition, offset, record.key, record.value, record.headers, timestamp)
        for offset, record in enumerate(records)
        if (timestamp := record.timestamp_ms) is not None
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", list(CLIENTS))
def test_records_of_any_codec_come_back_as_they_were_sent(
    writer: str, codec: str, client: StockClient, shared_broker: BrokerProcess, topic: str
) -> None:
    address = shared_broker.address
    CLIENTS[writer].write(address, topic, RECORDS, codec=codec)
    assert client.read(address, topic) == as_seen(RECORDS)


def test_idempotent_records_are_stored_once_and_in_order(  # E3
    client: StockClient, shared_broker: BrokerProcess, topic: str
) -> None:
    sent = [ToSend(b"%d" % number) for number in range(2000)]
    client.write(shared_broker.address, topic, sent, idempotent=True)
    assert [seen.value for seen in client.read(shared_broker.address, topic)] == [
        record.value for record in sent
    ]


def test_offsets_count_on_over_batches_and_writers(
    client: StockClient, shared_broker: BrokerProcess, topic: str
) -> None:
    for value in (b"a", b"b", b"c"):
        client.write(shared_broker.address, topic, [ToSend(value)])
    seen = Confluent().read(shared_broker.address, topic)
    assert [(each.offset, each.value) for each in seen] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_acknowledged_records_survive_a_kill(  # D1
    client: StockClient, broker: BrokerProcess, topic: str
) -> None:
    sent = [ToSend(b"%d" % number) for number in range(500)]
    client.write(broker.address, topic, sent, idempotent=True)
    broker.restart()
    assert [seen.value for seen in client.read(broker.address, topic)] == [
        record.value for record in sent
    ]
