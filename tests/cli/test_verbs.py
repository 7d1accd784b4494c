"""Each verb as a script calls it: data on stdout, words on stderr, an exit status to rely on."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.cli import DEADLINE_S, Cli
from tests.support.stock import Confluent, ToSend


@pytest.fixture
def cli(shared_broker: BrokerProcess) -> Cli:
    """The command line, pointed at the shared broker."""
    return Cli(shared_broker.address)


def test_a_topic_is_created_listed_described_and_deleted(cli: Cli, topic: str) -> None:
    created = cli.json("topic", "create", topic, "-p", "3", "-c", "retention.ms=60000")
    assert created == [{"topic": topic, "partitions": 3, "created": True}]
    listed = {row["topic"]: row for row in cli.json("topic", "list")}
    assert listed[topic] == {
        "topic": topic,
        "partitions": 3,
        "replicas": 1,
        "internal": False,
        "stream": False,
    }

    (described,) = cli.json("topic", "describe", topic)
    assert described["configs"]["retention.ms"] == "60000"
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert {p["high_watermark"] for p in described["partitions"]} == {0}

    assert cli.json("topic", "delete", topic) == [{"topic": topic, "deleted": True}]
    assert topic not in {row["topic"] for row in cli.json("topic", "list")}


def test_a_topic_is_changed_and_its_oldest_records_are_deleted(cli: Cli, topic: str) -> None:
    cli.out("topic", "create", topic, "-c", "retention.ms=60000")
    changed = cli.json(
        "topic",
        "alter",
        topic,
        "-p",
        "2",
        "-c",
        "cleanup.policy=compact,delete",
        "--unset",
        "retention.ms",
    )
    configs = {"cleanup.policy": "compact,delete", "retention.ms": None}
    assert changed == [{"topic": topic, "partitions": 2, "configs": configs}]
    (described,) = cli.json("topic", "describe", topic)
    assert len(described["partitions"]) == 2
    assert described["configs"]["retention.ms"] == "604800000"
    assert "nothing to change" in cli.refused(2, "topic", "alter", topic)
    assert "INVALID_CONFIG" in cli.refused(1, "topic", "alter", topic, "-c", "retention.ms=soon")
    assert "--unset a" in cli.refused(2, "topic", "alter", topic, "-c", "a=1", "--unset", "a")

    cli.out("topic", "produce", topic, "-p", "0", "-k", "k", stdin=b"a\nb\nc\nd")
    deleted = cli.json("topic", "delete-records", topic, "-o", "-1", "-p", "0")
    assert deleted == [{"topic": topic, "partition": 0, "log_start_offset": 3}]
    every = cli.json("topic", "delete-records", topic, "--before", "end")
    assert [row["log_start_offset"] for row in every] == [4, 0]
    assert "OFFSET_OUT_OF_RANGE" in cli.refused(1, "topic", "delete-records", topic, "-o", "9")
    assert "-p 7" in cli.refused(2, "topic", "delete-records", topic, "-o", "end", "-p", "7")


def test_lines_of_stdin_are_produced_and_consumed_again(cli: Cli, topic: str) -> None:
    cli.out("topic", "create", topic)
    told = cli.json("topic", "produce", topic, "-X", "acks=all", stdin=b"one\ntwo\nthree")
    assert told == {
        "topic": topic,
        "records": 3,
        "partitions": [{"partition": 0, "records": 3, "first_offset": 0, "last_offset": 2}],
    }
    assert cli.out("topic", "consume", topic, "-e", "-f", r"%p/%o %v\n") == (
        b"0/0 one\n0/1 two\n0/2 three\n"
    )


def test_a_partition_that_does_not_exist_is_a_usage_error(cli: Cli, topic: str) -> None:
    cli.out("topic", "create", topic)
    refused = cli.refused(2, "topic", "produce", topic, "-p", "7", stdin=b"one")
    assert f"error: topic {topic} has no partition 7, only 0 to 0\n" in refused


def test_an_error_names_its_code_once(cli: Cli, topic: str) -> None:
    cli.out("topic", "create", topic)
    assert cli.refused(1, "topic", "create", topic).count("TOPIC_ALREADY_EXISTS") == 1


def test_what_consume_writes_produce_reads_back(cli: Cli, topic: str) -> None:
    copy = f"{topic}-copy"
    cli.out("topic", "create", topic, copy)
    keyed = ["-K", ":", "-H", "source=test", "-z", "zstd"]
    cli.out("topic", "produce", topic, *keyed, stdin=b"a:1\nb:2\n\xff:3\n")
    written = cli.out("topic", "consume", topic, "-e")
    cli.out("topic", "produce", copy, "--json", stdin=written)
    again = cli.out("topic", "consume", copy, "-e")
    assert again == written.replace(topic.encode(), copy.encode())
    first = json.loads(written.splitlines()[0])
    assert (first["key"], first["value"]) == ("a", "1")
    assert first["headers"] == [{"key": "source", "value": "test"}]


def test_files_are_produced_one_after_the_other(cli: Cli, topic: str, tmp_path: Path) -> None:
    cli.out("topic", "create", topic)
    first, second = tmp_path / "first", tmp_path / "with a space"
    first.write_bytes(b"1\n2\n")
    second.write_bytes(b"3")
    cli.out("topic", "produce", topic, str(first), str(second))
    assert cli.out("topic", "consume", topic, "-c", "3", "-f", "%v ") == b"1 2 3 "


def test_reading_starts_at_the_requested_offset(
    cli: Cli, topic: str, shared_broker: BrokerProcess
) -> None:
    records = [ToSend(b"%d" % n, timestamp_ms=1_357_000_000_000 + n * 1000) for n in range(6)]
    for record in records:
        Confluent().write(shared_broker.address, topic, [record])

    def values(*where: str) -> bytes:
        return cli.out("topic", "consume", topic, "-e", "-f", "%v", *where)

    assert values() == b"012345"
    assert values("-o", "4") == b"45"
    assert values("-o", "-2") == b"45"
    assert values("-o", "end") == b""
    assert values("-o", "@1357000002500") == b"345"
    assert values("-o", "1", "-c", "2") == b"12"


def test_isolation_decides_what_of_an_open_transaction_is_seen(  # E10
    cli: Cli, topic: str, shared_broker: BrokerProcess
) -> None:
    transactional_id = f"id of {topic}"
    writer = Confluent().transactional(shared_broker.address, transactional_id)
    writer.begin()
    writer.send(topic, b"open")

    def values(isolation: str) -> bytes:
        return cli.out("topic", "consume", topic, "-e", "-f", "%v", "--isolation", isolation)

    assert values("transactional") == b""
    assert values("replicated") == b"open"
    rows = {row["transactional_id"]: row["state"] for row in cli.json("txn", "list")}
    assert rows[transactional_id] == "Ongoing"
    (described,) = cli.json("txn", "describe", transactional_id)
    assert described["partitions"] == [f"{topic}-0"]
    assert described["start_time_ms"] > 0
    writer.abort()
    writer.close()
    assert values("transactional") == b""


def test_input_in_a_transaction_is_all_or_nothing(cli: Cli, topic: str) -> None:
    cli.out("topic", "create", topic)
    flags = ["--json", "-X", f"transactional.id={topic}"]
    good, bad = b'{"value": "1"}\n{"value": "2"}\n', b'{"value": "3"}\nnonsense\n'
    cli.out("topic", "produce", topic, *flags, stdin=good)
    said = cli.refused(2, "topic", "produce", topic, *flags, stdin=bad)
    assert "--json: record 2 is not valid" in said
    seen = cli.out("topic", "consume", topic, "-e", "-f", "%v", "--isolation", "transactional")
    assert seen == b"12"


def test_cluster_info_shows_the_durability_in_force(cli: Cli, shared_broker: BrokerProcess) -> None:
    info = cli.json("cluster", "info")
    (broker,) = info["brokers"]
    assert broker["address"] == shared_broker.address
    assert broker["controller"] is True
    assert broker["durability"] == shared_broker.durability
    assert info["cluster_id"]


def test_a_table_is_for_people(cli: Cli, topic: str) -> None:
    cli.out("topic", "create", topic)
    shown = cli.out("topic", "list", "--format", "table").decode()
    assert "partitions" in shown.splitlines()[1]
    assert any(line.split()[:2] == [topic, "1"] for line in shown.splitlines())
    assert "\x1b" not in shown


def test_each_refusal_names_what_was_wrong_and_has_its_status(cli: Cli, topic: str) -> None:
    cli.out("topic", "create", topic)
    said = cli.refused(4, "topic", "describe", f"{topic}-nowhere")
    assert f"{topic}-nowhere" in said
    assert "hint: " in said
    assert topic in cli.refused(1, "topic", "create", topic)
    assert "retention.ms" in cli.refused(1, "topic", "create", "x", "-c", "retention.ms=long")
    assert "-p 9" in cli.refused(2, "topic", "consume", topic, "-p", "9")
    assert "-o middle" in cli.refused(2, "topic", "consume", topic, "-o", "middle")
    assert "%q" in cli.refused(2, "topic", "consume", topic, "-f", "%q")
    assert "rar" in cli.refused(2, "topic", "produce", topic, "-z", "rar")
    assert "no-such-file" in cli.refused(2, "topic", "produce", topic, "no-such-file")
    assert "nobody" in cli.refused(4, "txn", "describe", "nobody")


def test_producing_to_a_topic_that_does_not_exist_names_it(cli: Cli, topic: str) -> None:
    assert topic in cli.refused(4, "topic", "produce", topic, stdin=b"1\n")


def test_an_unreachable_broker_has_a_status_of_its_own(cli: Cli) -> None:
    where = ["-b", "127.0.0.1:1", "-X", "request.timeout.ms=500"]
    said = cli.refused(3, "topic", "list", *where)
    assert "error: cannot connect to broker 127.0.0.1:1: connection refused; " in said
    assert said.count("NETWORK_EXCEPTION") == 1
    assert "hint: check that the broker is running" in said


def test_a_reader_that_has_seen_enough_ends_consume_quietly(
    cli: Cli, topic: str, shared_broker: BrokerProcess
) -> None:
    Confluent().write(shared_broker.address, topic, [ToSend(b"x" * 1000)] * 2000)
    consume = f'"{sys.executable}" -m fencelog topic consume {topic} -e | head -c 10'
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {consume}"],
        capture_output=True,
        timeout=DEADLINE_S,
        env=cli.environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_consume_follows_what_comes_on_every_partition(
    cli: Cli, topic: str, shared_broker: BrokerProcess
) -> None:
    cli.out("topic", "create", topic, "-p", "2")
    with (
        subprocess.Popen(
            [sys.executable, "-m", "fencelog", "topic", "consume", topic, "-f", r"%p:%v\n"],
            stdout=subprocess.PIPE,
            env=cli.environment,
        ) as following,
        contextlib.ExitStack() as ending,
    ):
        ending.callback(following.kill)  # it follows for ever: a failure here must end it, too
        assert following.stdout is not None
        for sent in (ToSend(b"a", partition=0), ToSend(b"b", partition=1), ToSend(b"c")):
            Confluent().write(shared_broker.address, topic, [sent])
            assert following.stdout.readline() == b"%d:%s\n" % (sent.partition, sent.value)
        following.send_signal(signal.SIGINT)
        assert following.wait(DEADLINE_S) == 130
