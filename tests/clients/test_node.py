"""kafkajs, @platformatic/kafka and @confluentinc/kafka-javascript as npm has them."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from fencelog.client.blocking import Client
from tests.clients.node_client import NodeClient, NodeMember
from tests.support.broker import BrokerProcess
from tests.support.stock import CODECS, Confluent, Fenced, ToSend
from tests.support.stock.members import polled_until

DEADLINE_S = 20.0
KILLED_AT = (1, 4)
PARTITIONS = 4
ALL = set(range(PARTITIONS))
RECORDS = [
    ToSend(b"plain " * 50, None, (), 1_600_000_000_000),
    ToSend(b"with a key", b"key", (), 1_600_000_000_000),
    ToSend(b"with headers", b"key", (("one", b"1"), ("two", b"\x00\xff")), 1_600_000_000_123),
    ToSend(b"", b"", (), 1_600_000_086_400),
]


def plain(records: Iterable[Any]) -> list[Any]:
    return [(each.key, each.value, each.headers) for each in records]


def sent_by(node: NodeClient) -> list[ToSend]:
    """The records as this client sends them: Confluent's takes what is empty for null."""
    if node.name != "confluent":
        return RECORDS
    return [replace(each, key=each.key or None, value=each.value or None) for each in RECORDS]


@pytest.mark.parametrize("codec", CODECS)
def test_records_keep_key_value_headers_and_time_in_both_directions(
    clients_broker: BrokerProcess, node: NodeClient, topic: str, codec: str
) -> None:
    if codec not in node.codecs():
        pytest.skip(f"{node.name} has no {codec} on this machine")
    address = clients_broker.address
    with Client(address) as admin:
        admin.create_topic(topic, 1)
    node.write(address, topic, RECORDS, codec=codec)
    stored = Confluent().read(address, topic)
    assert plain(stored) == plain(sent_by(node))
    assert [each.timestamp_ms for each in stored] == [each.timestamp_ms for each in RECORDS]
    assert node.read(address, topic) == stored


def test_what_another_client_compressed_is_read(
    clients_broker: BrokerProcess, node: NodeClient, topic: str
) -> None:
    address = clients_broker.address
    with Client(address) as admin:
        admin.create_topic(topic, 1)
    codecs = node.codecs()
    for codec in codecs:
        Confluent().write(address, topic, RECORDS, codec=codec, idempotent=True)
    stored = Confluent().read(address, topic)
    assert node.read(address, topic) == stored
    assert plain(stored) == plain(RECORDS) * len(codecs)


def test_only_committed_transactions_are_shown_to_who_asks_for_committed(  # E10
    clients_broker: BrokerProcess, node: NodeClient, topic: str, fresh_name: Callable[[str], str]
) -> None:
    address = clients_broker.address
    with Client(address) as admin:
        admin.create_topic(topic, 1)
    writer = node.transactional(address, fresh_name("id"))
    for value, commit in ((b"kept 1", True), (b"aborted", False), (b"kept 2", True)):
        writer.begin()
        writer.send(topic, value)
        if commit:
            writer.commit()
        else:
            writer.abort()
    writer.close()
    for reader in (node, Confluent()):
        assert [each.value for each in reader.read(address, topic)][:2] == [b"kept 1", b"kept 2"]
    everything = node.read(address, topic, isolation="read_uncommitted")
    assert [each.value for each in everything][:3] == [b"kept 1", b"aborted", b"kept 2"]


def test_a_second_producer_of_the_same_id_fences_the_first(  # E2, E7
    clients_broker: BrokerProcess, node: NodeClient, topic: str, fresh_name: Callable[[str], str]
) -> None:
    address = clients_broker.address
    with Client(address) as admin:
        admin.create_topic(topic, 1)
    transactional_id = fresh_name("id")
    zombie = node.transactional(address, transactional_id)
    zombie.begin()
    zombie.send(topic, b"of the zombie")
    successor = node.transactional(address, transactional_id)
    with pytest.raises(Fenced):
        zombie.commit()
    successor.begin()
    successor.send(topic, b"of the successor")
    successor.commit()
    successor.close()
    assert [each.value for each in node.read(address, topic)] == [b"of the successor"]


@pytest.fixture
def join(
    clients_broker: BrokerProcess, node: NodeClient, topic: str, fresh_name: Callable[[str], str]
) -> Iterator[Callable[[], NodeMember]]:
    """Makes members of one group on one topic of four partitions."""
    group = fresh_name("group")
    made: list[NodeMember] = []
    with Client(clients_broker.address) as admin:
        admin.create_topic(topic, PARTITIONS)

    def member() -> NodeMember:
        made.append(NodeMember(node, clients_broker.address, group, topic))
        return made[-1]

    yield member
    for each in made:
        each.close()


def test_a_group_shares_out_its_partitions_and_resumes_where_it_committed(
    join: Callable[[], NodeMember], topic: str, clients_broker: BrokerProcess
) -> None:
    values = [b"%d" % number for number in range(40)]
    sent = [ToSend(value, partition=at % PARTITIONS) for at, value in enumerate(values)]
    Confluent().write(clients_broker.address, topic, sent)
    first = join()
    came: list[Any] = []
    ends_at = time.monotonic() + DEADLINE_S
    while len(came) < 40:
        assert time.monotonic() < ends_at, came
        came += first.poll()
    assert sorted(each.value for each in came) == sorted(values)
    assert first.assignment() == ALL
    first.commit({0: 10, 1: 10, 2: 8, 3: 10})
    second = join()

    def shared() -> bool:
        ours, theirs = first.assignment(), second.assignment()
        return len(ours) == len(theirs) == PARTITIONS // 2 and ours | theirs == ALL

    again = polled_until(shared, first, second)
    second.close()
    again += polled_until(lambda: first.assignment() == ALL, first)
    ends_at = time.monotonic() + DEADLINE_S
    while not {(2, 8), (2, 9)} <= {(each.partition, each.offset) for each in again}:
        assert time.monotonic() < ends_at, again
        again += first.poll()
    assert {(each.partition, each.offset) for each in again} == {(2, 8), (2, 9)}
    assert [first.committed(partition) for partition in sorted(ALL)] == [10, 10, 8, 10]


def test_each_administrative_call_does_what_it_says(
    clients_broker: BrokerProcess, node: NodeClient, topic: str, fresh_name: Callable[[str], str]
) -> None:
    told = node.ask("administer", clients_broker.address, topic, fresh_name("group"))
    expected = {
        "created": True,
        "listed": True,
        "partitions": 2 if node.name == "confluent" else 3,
        "offsets": ["2", "3"],
        "grouped": True,
        "living": "Stable",
        "left": "Empty",
        "committed": "3",
        "group_gone": True,
        "topic_gone": True,
    }
    if node.name != "confluent":  # it has no calls for these
        expected |= {"config": "123456", "altered": "654321", "brokers": 1}
    assert told == expected


def test_an_idempotent_producer_loses_and_duplicates_nothing_over_a_kill_of_the_broker(  # E13, E15
    mortal: BrokerProcess, node: NodeClient, topic: str
) -> None:
    with Client(mortal.address) as admin:
        admin.create_topic(topic, 1)
    batches = [[f"{at}-{each}" for each in range(50)] for at in range(8)]
    sender = node.make("sender", mortal.address)
    # One at a time: kafkajs takes back the sequence of a batch that failed, although it may be
    # stored, and gives it to whichever batch it sends next. That one is then taken for a repeat.
    for at, batch in enumerate(batches):
        sending = node.begin("send", topic, batch, handle=sender.handle)
        if at in KILLED_AT:
            mortal.kill()
            mortal.start()
        sending.result(2 * DEADLINE_S)
    sender.call("close")
    wanted = sorted(each.encode() for batch in batches for each in batch)
    for reader in (Confluent(), node):
        read = reader.read(mortal.address, topic)
        assert sorted(each.value or b"" for each in read) == wanted
