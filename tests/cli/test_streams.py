"""``fencelog stream`` as a script calls it."""

import json

import pytest

from tests.support.broker import BrokerProcess
from tests.support.cli import Cli

INPUT = b"".join(b"key-%d:%d\n" % (number % 8, number) for number in range(40))


@pytest.fixture
def cli(shared_broker: BrokerProcess) -> Cli:
    """The command line, pointed at the shared broker."""
    return Cli(shared_broker.address)


def test_a_stream_is_created_listed_described_and_deleted(cli: Cli, topic: str) -> None:  # R1
    limits = ("--min", "2", "--max", "8", "--rate", "100/s", "--rate", "500KB/s")
    created = cli.json(
        "stream", "create", topic, "--segments", "4", *limits, "--set", "retention.ms=60000"
    )
    assert created == [{"name": topic, "segments": 4, "created": True}]
    (listed,) = [row for row in cli.json("stream", "list") if row["name"] == topic]
    described = cli.json("stream", "describe", topic)
    assert set(described) == {"name", "topic_id", "segments"}
    assert described["topic_id"] == listed.pop("topic_id")
    assert listed == {"name": topic, "open": 4, "sealed": 0, "resizing": False}
    assert described["segments"][1] == {
        "id": 1,
        "low": 0.25,
        "high": 0.5,
        "state": "open",
        "predecessors": [],
        "successors": [],
        "end_offset": None,
    }
    (shown,) = cli.json("topic", "describe", topic)
    assert shown["stream"] is True
    configs = shown["configs"]
    assert configs["retention.ms"] == "60000"
    assert configs["stream.segments.min"] == "2"
    assert configs["stream.segments.max"] == "8"
    assert configs["stream.rate.events.per.segment"] == "100"
    assert configs["stream.rate.kbytes.per.segment"] == "500"
    assert cli.json("stream", "delete", topic) == [{"name": topic, "deleted": True}]
    assert topic not in {row["name"] for row in cli.json("stream", "list")}
    assert topic not in {row["topic"] for row in cli.json("topic", "list")}


def test_segments_split_and_merge_and_the_successors_are_shown(cli: Cli, topic: str) -> None:  # R2
    cli.out("stream", "create", topic, "--segments", "2")
    parts = cli.json("stream", "split", topic, "0", "--at", "0.125")
    assert [(each["id"], each["low"], each["high"]) for each in parts] == [
        (2, 0.0, 0.125),
        (3, 0.125, 0.5),
    ]
    assert [each["state"] for each in parts] == ["open", "open"]
    (merged,) = cli.json("stream", "merge", topic, "1", "3")
    assert (merged["id"], merged["low"], merged["high"]) == (4, 0.125, 1.0)
    assert sorted(merged["predecessors"]) == [1, 3]
    segments = cli.json("stream", "describe", topic)["segments"]
    assert [each["state"] for each in segments] == ["sealed", "sealed", "open", "sealed", "open"]
    assert segments[0]["successors"] == [2, 3]
    assert segments[0]["end_offset"] == 0
    table = cli.out("stream", "describe", topic, "--format", "table").decode()
    assert "│ 0 sealed at 0" in table
    assert "│ 4 open" in table
    assert "end offset" in table


def test_what_is_produced_keeps_each_key_in_order_over_a_split(cli: Cli, topic: str) -> None:  # R2
    cli.out("stream", "create", topic)
    durable = ("-K", ":", "--isolation", "read_committed")
    sent = json.loads(cli.out("topic", "produce", topic, *durable, stdin=INPUT))
    assert sent["records"] == 40
    cli.out("stream", "split", topic, "0")
    sent = json.loads(cli.out("topic", "produce", topic, *durable, stdin=INPUT))
    assert sorted(each["partition"] for each in sent["partitions"]) == [1, 2]
    read = cli.out("topic", "consume", topic, "-e", "-f", "%k:%v\n").splitlines()
    for key in range(8):
        own = [line for line in INPUT.splitlines() if line.startswith(b"key-%d:" % key)]
        assert [line for line in read if line.startswith(b"key-%d:" % key)] == own * 2
    # One transaction for all segments.
    transactional = ("-X", f"transactional.id={topic}")
    cli.out("topic", "produce", topic, "-K", ":", *transactional, stdin=b"key-1:t\nkey-7:t\n")
    committed = ("-e", "--isolation", "transactional", "-f", "%k:%v\n")
    read = cli.out("topic", "consume", topic, *committed).splitlines()
    assert read.count(b"key-1:t") == read.count(b"key-7:t") == 1


def test_a_segment_cannot_be_chosen_by_its_number(cli: Cli, topic: str) -> None:  # R1
    cli.out("stream", "create", topic)
    said = cli.refused(2, "topic", "produce", topic, "-p", "0", stdin=b"a")
    assert f"-p 0: {topic} is a stream, and a record's key chooses its segment" in said
    assert cli.out("topic", "consume", topic, "-e") == b""


def test_a_topic_is_copied_into_a_stream_and_the_keys_stay_in_order(  # R1
    cli: Cli, topic: str
) -> None:
    cli.out("topic", "create", topic, "-p", "5")
    cli.out("topic", "produce", topic, "-K", ":", "-X", "acks=all", stdin=INPUT)
    cli.out("stream", "create", f"{topic}-stream", "--segments", "2")
    lines = cli.out("topic", "consume", topic, "-e")
    cli.out("topic", "produce", f"{topic}-stream", "--json", "-X", "acks=all", stdin=lines)
    copied = cli.out("topic", "consume", f"{topic}-stream", "-e", "-f", "%k:%v\n").splitlines()
    for key in range(8):
        own = [line for line in INPUT.splitlines() if line.startswith(b"key-%d:" % key)]
        assert [line for line in copied if line.startswith(b"key-%d:" % key)] == own


def test_a_stream_is_marked_among_topics(cli: Cli, topic: str) -> None:
    cli.out("stream", "create", topic, "--segments", "2")
    cli.out("topic", "create", f"{topic}-plain")
    listed = {row["topic"]: row for row in cli.json("topic", "list")}
    assert (listed[topic]["stream"], listed[f"{topic}-plain"]["stream"]) == (True, False)
    (plain,) = cli.json("topic", "describe", f"{topic}-plain")
    assert plain["stream"] is False


def test_what_cannot_be_done_is_refused_with_what_to_do(cli: Cli, topic: str) -> None:  # R1
    cli.out("stream", "create", topic, "--segments", "2", "--max", "3")
    cli.out("topic", "create", f"{topic}-plain")
    for verb in (("describe",), ("split", "0"), ("merge", "0", "1"), ("delete",), ("cut",)):
        said = cli.refused(4, "stream", verb[0], f"{topic}-none", *verb[1:])
        assert f"there is no topic {topic}-none" in said
        said = cli.refused(1, "stream", verb[0], f"{topic}-plain", *verb[1:])
        assert f"{topic}-plain is no stream" in said
    assert f"{topic}-plain" in {row["topic"] for row in cli.json("topic", "list")}
    assert "there is no segment 9, only 0 to 1" in cli.refused(1, "stream", "split", topic, "9")
    said = cli.refused(1, "stream", "split", topic, "0", "--at", "0.7")
    assert "segment 0 cannot be split at" in said
    assert "different ones merge" in cli.refused(1, "stream", "merge", topic, "0", "0")
    assert "two or more" in cli.refused(2, "stream", "merge", topic, "0")
    cli.out("stream", "split", topic, "0")
    assert "its successors are 2, 3" in cli.refused(1, "stream", "split", topic, "0")
    assert "are not adjacent" in cli.refused(1, "stream", "merge", topic, "1", "2")
    assert "stream.segments.max is 3" in cli.refused(1, "stream", "split", topic, "1")
    assert "TOPIC_ALREADY_EXISTS" in cli.refused(1, "stream", "create", topic)
    for rate in ("fast", "0/s"):
        assert "--rate" in cli.refused(2, "stream", "create", f"{topic}-2", "--rate", rate)


def test_a_cut_names_the_segments_that_records_are_written_to_and_their_ends(
    cli: Cli, topic: str
) -> None:  # R10
    cli.out("stream", "create", topic)
    cli.out("topic", "produce", topic, "-K", ":", "-X", "acks=all", stdin=INPUT)
    cut = cli.json("stream", "cut", topic)
    assert cut["segments"] == {"0": 40}
    cli.out("stream", "split", topic, "0")
    assert cli.json("stream", "cut", topic)["segments"] == {"1": 0, "2": 0}
