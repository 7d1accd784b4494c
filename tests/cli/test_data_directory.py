"""The data directory of a real broker: one broker at a time, nothing lost silently."""

import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from fencelog.client.blocking import Client
from fencelog.errors import FencelogError
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.waiting import wait_until

DEADLINE_S = 30.0
IN_USE = re.compile(r"is in use by (process \d+|another process);")


def refusal(data_dir: Path) -> str:
    """Stderr of a start that must end with status 1."""
    done = subprocess.run(
        BrokerProcess(data_dir).command(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.replace(f"{data_dir}", "DIR")


# -- one broker at a time ----------------------------------------------------------------------


def test_a_deleted_lock_file_lets_no_second_broker_in(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        (tmp_path / "data" / ".lock").unlink()
        assert "data directory DIR is in use by another process;" in refusal(tmp_path / "data")
        with Client(broker.address) as client:
            client.create_topic("t", 1, {})


def test_of_two_brokers_that_race_for_a_directory_one_serves(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for _ in range(3):
        first, second = (
            subprocess.Popen(
                BrokerProcess(data).command(),
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        )
        (data / ".lock").unlink(missing_ok=True)
        said = []
        for each in (first, second):
            assert each.stderr is not None
            said.append(each.stderr.readline())
        for each in (first, second):
            each.kill()
            each.communicate()
        assert sorted("listening on" in line for line in said) == [False, True], said
        assert any(IN_USE.search(line) for line in said), said


def test_a_broker_whose_directory_is_replaced_stops_and_says_so(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        data.rename(tmp_path / "elsewhere")
        data.mkdir()
        broker.wait_for_line(
            re.compile("the broker stops at once: .* was moved, replaced"), deadline_s=DEADLINE_S
        )
        assert broker.terminate() == 1
        assert not any(data.iterdir())
    (tmp_path / "elsewhere").rename(data)
    with BrokerProcess(data):
        pass


# -- the format of the directory ---------------------------------------------------------------


def test_a_directory_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        broker.terminate()
    meta = data / "meta.properties"
    assert "fencelog.format=1\n" in meta.read_text()
    newer = meta.read_text().replace("fencelog.format=1", "fencelog.format=2")
    meta.write_text(newer)
    assert (
        "meta.properties: the directory has format 2, this fencelog knows formats up to 1: use the "
        "newer fencelog that wrote it, or restore a backup\n"
    ) in refusal(data)
    assert meta.read_text() == newer


def test_a_directory_without_a_format_is_taken_over_and_gets_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        with Client(broker.address) as client:
            client.create_topic("t", 1, {})
        broker.kill()
        meta = data / "meta.properties"
        meta.write_text(meta.read_text().replace("fencelog.format=1\n", ""))
        broker.start()
        with Client(broker.address) as client:
            assert [each.name for each in client.topics()] == ["t"]
    assert "fencelog.format=1\n" in meta.read_text()


def test_a_lost_meta_properties_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker, Client(broker.address) as client:
        client.create_topic("t", 1, {})
    (data / "meta.properties").unlink()
    assert "meta.properties is missing, but there are partition directories" in refusal(data)
    assert not (data / "meta.properties").exists()


# -- metadata that is lost ---------------------------------------------------------------------


def killed(data: Path) -> None:
    """Leave the directory of a killed broker with a topic."""
    with BrokerProcess(data) as broker, Client(broker.address) as client:
        client.create_topic("t", 1, {})


def keep(path: Path) -> None:
    path.rename(path.with_name(f"kept-{path.name}"))


def put_back(path: Path) -> None:
    path.with_name(f"kept-{path.name}").replace(path)


def serves(data: Path) -> list[str]:
    """The topics that a start on this directory has."""
    with BrokerProcess(data) as broker, Client(broker.address) as client:
        return [each.name for each in client.topics()]


@pytest.mark.parametrize("how", ["missing", "empty"])
@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_partitions_without_metadata_are_no_empty_cluster(
    tmp_path: Path, how: str, stop: str
) -> None:
    data = tmp_path / "data"
    killed(data)
    metadata, wal = data / "metadata.sqlite", data / "metadata.sqlite-wal"
    if stop == "clean":
        with BrokerProcess(data) as broker:
            assert broker.terminate() == 0
        assert not wal.exists()
    else:
        keep(wal)
    keep(metadata)
    if how == "empty":
        metadata.touch()
    for _ in range(2):
        assert (
            "metadata.sqlite is missing or empty, but there are partition directories, such as t-0"
        ) in refusal(data)
    put_back(metadata)
    if stop == "killed":
        put_back(wal)
    assert serves(data) == ["t"]


def test_metadata_without_its_main_file_is_refused_and_the_wal_is_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    killed(data)
    keep(data / "metadata.sqlite")
    assert "metadata.sqlite is missing or empty, but metadata.sqlite-wal is there" in refusal(data)
    put_back(data / "metadata.sqlite")
    assert serves(data) == ["t"]


def test_metadata_without_its_wal_is_refused_until_the_operator_says_so(tmp_path: Path) -> None:
    data = tmp_path / "data"
    killed(data)
    wal = data / "metadata.sqlite-wal"
    keep(wal)
    for _ in range(2):
        assert "metadata.sqlite-wal is missing: the last run was killed" in refusal(data)
    put_back(wal)
    assert serves(data) == ["t"]
    wal.unlink()
    wal.touch()
    assert serves(data) == ["t"]  # the second start had moved it to the main file


def test_a_start_that_is_killed_at_once_is_no_loss_of_metadata(tmp_path: Path) -> None:
    data = tmp_path / "data"
    killed(data)
    for _ in range(2):
        with BrokerProcess(data) as broker:
            broker.kill()
    assert serves(data) == ["t"]


# -- partitions that are lost ------------------------------------------------------------------


def produce(broker: BrokerProcess, topic: str, values: list[bytes]) -> list[int]:
    """Offsets of acknowledged records on partition 0."""
    offsets: list[int] = []

    def acknowledged(error: object, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=acknowledged)
        assert producer.flush(10) == 0
    return offsets


def produce_fails(broker: BrokerProcess, topic: str) -> str:
    """The error of a record that cannot be written."""
    told: list[str] = []
    settings = {"message.timeout.ms": 2000, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.address, **settings})
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: told.append(str(error)))
    assert producer.flush(10) == 0
    return told[0]


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("lost", ["directory", "only segment", "newest segment"])
def test_a_partition_whose_files_are_lost_is_offline_and_the_others_serve(
    tmp_path: Path, lost: str, durability: str
) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, durability=durability) as broker:
        with Client(broker.address) as client:
            client.create_topic("lost", 1, {"segment.bytes": "2000"})
            client.create_topic("kept", 1, {})
        produce(broker, "kept", [b"x"])
        produce(broker, "lost", [b"x" * 1500] * (3 if lost == "newest segment" else 1))
        if lost == "newest segment":  # its snapshot tells of it
            wait_until((data / "lost-0" / f"{2:020d}.snapshot").exists)
        broker.kill()
        if lost == "directory":
            (data / "lost-0").rename(tmp_path / "lost")
        else:
            newest = max((data / "lost-0").glob("*.log"))
            newest.rename(tmp_path / "lost")
        broker.start()
        broker.wait_for_line(re.compile(r"ERROR .*lost-0 is offline: lost-0.* missing"))
        with Client(broker.address) as client:
            assert client.describe_topic("lost").partitions[0].leader < 0
        assert produce(broker, "kept", [b"y"]) == [1]
        assert "timed out" in produce_fails(broker, "lost")
        broker.kill()
        if lost == "directory":
            (tmp_path / "lost").rename(data / "lost-0")
        else:
            (tmp_path / "lost").rename(newest)
        broker.start()
        assert produce(broker, "lost", [b"y"]) == [3 if lost == "newest segment" else 1]


def test_a_lost_partition_of_the_offsets_topic_is_no_group_without_offsets(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, settings="offsets.topic.num.partitions=1") as broker:
        with Client(broker.address) as client:
            client.create_topic("t", 1, {})
            client.commit_offsets("group", {TopicPartition("t", 0): 0})
        broker.kill()
        (lost,) = data.glob("__consumer_offsets-*")
        lost.rename(tmp_path / "lost")
        broker.start()
        broker.wait_for_line(re.compile(r"ERROR .*__consumer_offsets-\d+ is offline"))
        with Client(broker.address, request_timeout_s=2) as client, pytest.raises(FencelogError):
            client.committed_offsets("group")
        assert not lost.exists()
        broker.kill()
        (tmp_path / "lost").rename(lost)
        broker.start()
        with Client(broker.address) as client:
            assert client.committed_offsets("group") == {TopicPartition("t", 0): 0}
