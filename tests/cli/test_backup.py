"""``fencelog backup`` and ``restore`` on real brokers, running and stopped."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from fencelog import types as log_types
from fencelog.adapters import backup
from fencelog.client.blocking import Client
from tests.support.broker import BrokerProcess
from tests.support.cli import Cli
from tests.support.waiting import wait_until

CLI = Cli("127.0.0.1:1")
PAIRS = ("left", "right")


def written(broker: BrokerProcess, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0


def values(broker: BrokerProcess, topic: str) -> list[bytes]:
    """What a transactional reader sees on partition 0."""
    settings = {"bootstrap.servers": broker.address, "group.id": "reader"}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while consumer.position([TopicPartition(topic, 0)])[0].offset < end:
        for message in consumer.consume(500, timeout=0.2):
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
        if end == 0:
            break
    consumer.close()
    return found


def transact(broker: BrokerProcess, stop: threading.Event, count: list[int]) -> None:
    """Write each number to both topics, and as the offset of a group, in one transaction."""
    settings = {"bootstrap.servers": broker.address, "transactional.id": "pairs", "log_level": 0}
    producer = Producer(settings)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "pairs"})
    group = consumer.consumer_group_metadata()
    producer.init_transactions(10)
    while not stop.is_set():
        producer.begin_transaction()
        for topic in PAIRS:
            producer.produce(topic, b"%d" % count[0], partition=0)
        offsets = [TopicPartition("left", 0, count[0] + 1)]
        producer.send_offsets_to_transaction(offsets, group, 10)
        producer.commit_transaction(10)
        count[0] += 1
    consumer.close()


def test_a_backup_of_a_running_broker_has_every_transaction_whole_or_not(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Client(broker.address) as client:
            for topic in PAIRS:
                client.create_topic(topic, 1, {"segment.bytes": "20000"})
        stop, count = threading.Event(), [0]
        writer = threading.Thread(target=transact, args=(broker, stop, count))
        writer.start()
        try:
            wait_until(lambda: count[0] > 30)
            checkpoint = tmp_path / "data/replication-offset-checkpoint"
            wait_until(checkpoint.exists, deadline_s=30)
            wait_until(lambda: "left" in checkpoint.read_text(), deadline_s=30)
            for _ in range(2):
                CLI.json("backup", str(tmp_path / "data"), str(tmp_path / "backup"))
        finally:
            stop.set()
            writer.join()
    restored = tmp_path / "restored"
    CLI.json("restore", str(tmp_path / "backup"), str(restored))
    with BrokerProcess(restored) as broker:
        # The transaction that was open at that instant is open again: its producer aborts it.
        settings = {"bootstrap.servers": broker.address, "transactional.id": "pairs"}
        Producer({**settings, "log_level": 0}).init_transactions(20)
        left, right = (values(broker, topic) for topic in PAIRS)
        assert left == right == [b"%d" % number for number in range(len(left))]
        assert 0 < len(left) <= count[0]
        with Client(broker.address) as client:
            (committed,) = client.committed_offsets("pairs").values()
        assert committed == len(left)
        assert "offline" not in broker.stderr


def test_a_second_backup_copies_only_what_is_new(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    with BrokerProcess(data) as broker:
        with Client(broker.address) as client:
            client.create_topic("t", 1, {"segment.bytes": "2000"})
        for _ in range(5):
            written(broker, "t", [b"x" * 1500])
        assert broker.terminate() == 0
        first = CLI.json("backup", str(data), str(target))
        assert (first["segments_copied"], first["segments_kept"]) == (5, 0)
        broker.start()
        for _ in range(2):
            written(broker, "t", [b"y" * 1500])
        broker.kill()
        second = CLI.json("backup", str(data), str(target))
        assert second["segments_kept"] >= 4
        assert second["segments_copied"] == 7 - second["segments_kept"]
        shutil.rmtree(data)
        CLI.json("restore", str(target), str(data))
        broker.start()
        assert values(broker, "t") == [b"x" * 1500] * 5 + [b"y" * 1500] * 2


def read_group(broker: BrokerProcess, group: str) -> list[str]:
    """All that a new reader group reads of a stream, to its end."""
    cli = Cli(broker.address)
    return cli.out("stream", "read", "s", "-g", group, "-e", "-f", "%v ").decode().split()


def test_a_stream_that_was_split_after_the_instant_of_a_backup_is_read_to_its_end(
    tmp_path: Path,
) -> None:  # R2
    checkpoint = tmp_path / "data/replication-offset-checkpoint"
    with BrokerProcess(tmp_path / "data") as broker, Client(broker.address) as client:
        client.create_stream("s", 1)
        with client.producer() as producer:
            for number in range(10):
                producer.send("s", b"%d" % number, key=b"%d" % number)
        wait_until(checkpoint.exists, deadline_s=30)
        wait_until(lambda: "s 0 10" in checkpoint.read_text(), deadline_s=30)
        with client.producer() as producer:
            producer.send("s", b"later", key=b"1")
        client.split_segment("s", 0)
        assert "s 0 10" in checkpoint.read_text(), "the machine is too slow for this test"
        CLI.json("backup", str(tmp_path / "data"), str(tmp_path / "backup"))
    restored = tmp_path / "restored"
    CLI.json("restore", str(tmp_path / "backup"), str(restored))
    with BrokerProcess(restored) as broker:
        assert sorted(read_group(broker, "a")) == sorted(map(str, range(10)))
        with Client(broker.address) as client, client.producer() as producer:
            producer.send("s", b"new", key=b"1")
        assert sorted(read_group(broker, "b")) == sorted([*map(str, range(10)), "new"])


def test_a_topic_that_is_created_again_meanwhile_is_not_cut_where_its_forerunner_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, attempts = tmp_path / "data", []
    checkpoint = data / "replication-offset-checkpoint"
    copy_metadata = backup._Copy._copy_metadata
    with BrokerProcess(data) as broker, Client(broker.address) as client:
        client.create_topic("t", 1)
        written(broker, "t", [b"old"] * 5)
        wait_until(checkpoint.exists, deadline_s=30)
        wait_until(lambda: "t 0 5" in checkpoint.read_text(), deadline_s=30)

        def delayed(copy: backup._Copy) -> set[log_types.TopicPartition]:
            attempts.append(copy)
            if len(attempts) == 1:
                client.delete_topic("t")
                client.create_topic("t", 1)
                for _ in range(8):
                    written(broker, "t", [b"new"])  # each a batch
            return copy_metadata(copy)

        monkeypatch.setattr(backup._Copy, "_copy_metadata", delayed)
        asyncio.run(backup.back_up(data, tmp_path / "backup"))
    assert len(attempts) == 2


def test_a_damaged_batch_is_neither_backed_up_nor_restored(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    with BrokerProcess(data) as broker:
        with Client(broker.address) as client:
            client.create_topic("t", 1, {})
        written(broker, "t", [b"value"])
        assert broker.terminate() == 0
    CLI.json("backup", str(data), str(target))
    log = target / "t-0/00000000000000000000.log"
    log.write_bytes(log.read_bytes().replace(b"value", b"valve"))
    assert "t-0/00000000000000000000.log: damaged at position 0" in CLI.refused(
        1, "restore", str(target), str(tmp_path / "restored")
    )
    shutil.copyfile(log, data / "t-0/00000000000000000000.log")
    assert "damaged at position 0" in CLI.refused(1, "backup", str(data), str(target))
    # What is left there is no complete backup.
    assert "run `fencelog backup` again" in CLI.refused(
        1, "restore", str(target), str(tmp_path / "other")
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("backup", "nothing", "backup"),
            "nothing has no meta.properties: it is no data directory",
        ),
        (("backup", "data", "data/backup"), "is inside of"),
        (("backup", "data", "full"), "is not empty, and has no backup"),
        (("restore", "full", "new"), "has no complete backup"),
    ],
)
def test_places_that_make_no_sense_are_refused(
    tmp_path: Path, arguments: tuple[str, str, str], told: str
) -> None:
    for name in ("nothing", "data", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/file").touch()
    for name in ("meta.properties", "metadata.sqlite"):
        (tmp_path / "data" / name).write_text("cluster.id=a\n")
    verb, *places = arguments
    assert told in CLI.refused(1, verb, *(str(tmp_path / each) for each in places))
