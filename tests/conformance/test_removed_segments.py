"""A segment whose files are removed: stock consumers and reader groups find it as it was (R1)."""

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.stock import StockClient
from tests.support.waiting import wait_until

SOON = "log.retention.check.interval.ms=100\nproducer.id.expiration.ms=100\n"
DEADLINE_S = 30.0
KEYS = [b"key-%d" % number for number in range(8)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose producers are soon forgotten, which runs again after the files are removed."""
    folder: Path = tmp_path_factory.mktemp("removed") / "data"
    with BrokerProcess(folder, settings=SOON) as running:
        with Client(running.address) as client:
            client.create_stream("s", 1)
            _write(client, b"before")
            client.split_segment("s", 0)
            _commit(running.address, "at-the-seal", client.describe_stream("s").segments[0].end)
            _write(client, b"after")
            client.delete_records({TopicPartition("s", 0): -1})
        wait_until(
            lambda: not (folder / "s-0").exists(),
            deadline_s=DEADLINE_S,
            what="the files are removed",
        )
        running.restart()
        assert not (folder / "s-0").exists()
        yield running


def _write(client: Client, value: bytes) -> None:
    with client.producer() as producer:
        for key in KEYS:
            producer.send("s", value, key=key)


def _read(client: Client) -> set[bytes]:
    """What a reader of the group reads next of each key."""
    found: list[bytes] = []
    with client.reader_group("readers", stream="s").reader("r1") as reader:
        while len(found) < len(KEYS):
            batch = reader.next_batch()
            assert batch is not None
            found += [event.value or b"" for event in batch.events]
    return set(found)


def _commit(address: str, group: str, offset: int) -> None:
    """Commit, in a stock group's name, that all records of segment 0 are read."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("s", 0, offset)], asynchronous=False)
    consumer.close()


def test_stock_consumers_read_every_other_segment(  # R1
    broker: BrokerProcess, client: StockClient
) -> None:
    seen = client.read(broker.address, "s")
    assert sorted(each.key or b"" for each in seen) == KEYS
    assert {each.value for each in seen} == {b"after"}
    assert {each.partition for each in seen} == {1, 2}


def test_a_stock_group_that_had_read_it_goes_on_without_a_reset(broker: BrokerProcess) -> None:
    # F8
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "at-the-seal",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("s", 0)])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
        low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("s", 0))
        assert (low, high) == (len(KEYS), len(KEYS) + 1) == (low, message.offset()), "the seal"
    finally:
        consumer.close()


def test_a_reader_group_that_begins_at_its_seal_completes_it(broker: BrokerProcess) -> None:  # R8
    with Client(broker.address) as client:
        group = client.reader_group("readers", stream="s")
        group.create()
        group.reset({0: client.describe_stream("s").segments[0].end})
        states = [each.state.value for each in client.describe_stream("s").segments]
        assert states == ["deleted", "open", "open"]
        assert _read(client) == {b"after"}
