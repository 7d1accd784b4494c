"""``fencelog group`` as a script calls it."""

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer

from tests.support.broker import BrokerProcess
from tests.support.cli import Cli
from tests.support.stock import Confluent, ToSend


@pytest.fixture
def cli(shared_broker: BrokerProcess) -> Cli:
    """The command line, pointed at the shared broker."""
    return Cli(shared_broker.address)


def test_a_group_is_moved_described_and_deleted(
    cli: Cli, topic: str, fresh_name: Callable[[str], str]
) -> None:
    group = fresh_name("group")
    cli.out("topic", "create", topic, "-p", "2")
    cli.out("topic", "produce", topic, "-p", "1", stdin=b"a\nb\nc\n")
    assert cli.json("group", "seek", group, "-o", "-2", "-t", topic) == [
        {"topic": topic, "partition": 0, "committed": 0},
        {"topic": topic, "partition": 1, "committed": 1},
    ]
    assert cli.json("group", "seek", group, "-o", "2", "-t", f"{topic}:1")[0]["committed"] == 2
    assert {"group": group, "state": "Empty", "protocol_type": ""} in cli.json("group", "list")
    (described,) = cli.json("group", "describe", group)
    assert (described["state"], described["members"], described["lag"]) == ("Empty", 0, 1)
    assert [
        (row["partition"], row["committed"], row["end"], row["lag"], row["member"])
        for row in described["partitions"]
    ] == [(0, 0, 0, 0, None), (1, 2, 3, 1, None)]
    assert cli.json("group", "seek", group, "-o", "end")[1]["committed"] == 3
    assert cli.json("group", "delete", group) == [{"group": group, "deleted": True}]
    assert group in cli.refused(4, "group", "describe", group)
    assert group in cli.refused(4, "group", "delete", group)
    assert f"{topic}:7" in cli.refused(2, "group", "seek", group, "-o", "end", "-t", f"{topic}:7")


def test_the_lag_counts_what_can_be_seen_and_no_open_transaction(  # E10
    cli: Cli, topic: str, shared_broker: BrokerProcess, fresh_name: Callable[[str], str]
) -> None:
    group = fresh_name("group")
    stock = Confluent()
    stock.write(shared_broker.address, topic, [ToSend(b"seen")])
    writer = stock.transactional(shared_broker.address, fresh_name("id"))
    writer.begin()
    writer.send(topic, b"held back")
    try:
        cli.out("group", "seek", group, "-o", "beginning", "-t", topic)
        (described,) = cli.json("group", "describe", group)
        assert described["lag"] == 1
    finally:
        writer.abort()
        writer.close()


def test_members_are_shown_and_only_they_move_their_group(
    cli: Cli, topic: str, shared_broker: BrokerProcess, fresh_name: Callable[[str], str]
) -> None:
    group = fresh_name("group")
    Confluent().write(shared_broker.address, topic, [ToSend(b"1"), ToSend(b"2")])
    consumer = Consumer(
        {
            "bootstrap.servers": shared_broker.address,
            "group.id": group,
            "client.id": "me",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(20)
        assert message is not None
        consumer.commit(message, asynchronous=False)
        (described,) = cli.json("group", "describe", group)
        (row,) = described["partitions"]
        assert (described["state"], described["protocol"]) == ("Stable", "range")
        assert (row["client"], row["host"], row["lag"]) == ("me", "127.0.0.1", 1)
        assert row["member"] == consumer.memberid()
        assert "members" in cli.refused(1, "group", "seek", group, "-o", "end", "-t", topic)
        assert "members" in cli.refused(1, "group", "delete", group)
    finally:
        consumer.close()
