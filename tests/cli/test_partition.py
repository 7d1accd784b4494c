"""``fencelog partition check`` and ``salvage`` on the directory of a real broker."""

import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from fencelog.client.blocking import Client
from tests.cli.test_backup import values, written
from tests.support.broker import BrokerProcess
from tests.support.cli import Cli

CLI = Cli("127.0.0.1:1")
VALUES = [b"%d" % number * 700 for number in range(5)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A cleanly stopped broker's directory: segments of two, two and one record."""
    directory = tmp_path / "data"
    with BrokerProcess(directory) as broker:
        with Client(broker.address) as client:
            client.create_topic("t", 1, {"segment.bytes": "2000"})
            client.create_topic("kept", 1, {})
        for value in VALUES:
            written(broker, "t", [value])
        written(broker, "kept", [b"x"])
        assert broker.terminate() == 0
    return directory


def damage(log: Path, old: bytes, new: bytes) -> None:
    content = log.read_bytes()
    assert old in content
    log.write_bytes(content.replace(old, new))


def next_offset(broker: BrokerProcess) -> int:
    told: list[int] = []

    def done(error: object, message: Message) -> None:
        assert error is None, error
        told.append(message.offset() or 0)

    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    producer.produce("t", b"next", partition=0, on_delivery=done)
    assert producer.flush(20) == 0
    return told[0]


def test_sound_partitions_are_reported_as_sound(data: Path) -> None:
    rows = CLI.json("partition", "check", str(data))
    assert [(row["partition"], row["sound_end"], row["problem"]) for row in rows] == [
        ("kept-0", 1, None),
        ("t-0", 5, None),
    ]
    assert b"nothing to salvage" in CLI.run("partition", "salvage", str(data), "t-0").stderr


def test_a_damaged_partition_keeps_its_sound_beginning(data: Path) -> None:
    log = data / f"t-0/{2:020d}.log"
    damage(log, VALUES[3][:20], b"?" * 20)
    before = log.read_bytes()
    checked = CLI.run("partition", "check", str(data), "t-0")
    assert checked.returncode == 1
    assert b"1 of 1 partitions are damaged" in checked.stderr
    shown = CLI.run("partition", "salvage", str(data), "t-0")
    assert b"t-0 ends at offset 3; at least 2 offsets are lost" in shown.stderr
    assert log.read_bytes() == before, "nothing is changed without --yes"
    (row,) = CLI.json("partition", "salvage", str(data), "t-0", "--yes")
    assert (row["sound_end"], row["offsets_lost"]) == (3, 2)
    (kept,) = data.glob("t-0.damaged*")
    assert (kept / log.name).read_bytes() == before
    with BrokerProcess(data) as broker:
        assert values(broker, "t") == VALUES[:3]
        assert values(broker, "kept") == [b"x"]
        assert next_offset(broker) == 3
        assert "offline" not in broker.stderr


def test_a_lost_directory_begins_anew_where_it_ended(data: Path) -> None:
    shutil.rmtree(data / "t-0")
    shown = CLI.run("partition", "salvage", str(data), "t-0", "--yes")
    assert b"t-0 begins anew, at offset 5, without records" in shown.stderr
    with BrokerProcess(data) as broker:
        assert next_offset(broker) == 5
        assert values(broker, "kept") == [b"x"]


def test_a_lost_directory_that_no_checkpoint_knows_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker, Client(broker.address) as client:
        client.create_topic("t", 1, {})
    shutil.rmtree(data / "t-0")
    checked = CLI.run("partition", "check", str(data))
    assert (checked.returncode, b"t-0: the directory is missing" in checked.stdout) == (1, True)


def test_files_of_a_running_broker_are_refused(data: Path) -> None:
    with BrokerProcess(data):
        assert re.search(
            "is in use by process", CLI.refused(1, "partition", "salvage", str(data), "t-0")
        )


def test_names_that_are_no_partition_are_refused(data: Path, tmp_path: Path) -> None:
    assert "expected a topic and a partition" in CLI.refused(
        2, "partition", "check", str(data), "t"
    )
    assert "has no partition u-0" in CLI.refused(4, "partition", "check", str(data), "u-0")
    assert "it is no data directory" in CLI.refused(1, "partition", "check", str(tmp_path))
