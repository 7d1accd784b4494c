"""Transactions of the three stock clients, and what librdkafka's own mock makes of the same claims.

A claim is a function of an address, so that the same lines run against fencelog and the mock.
"""

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.support.broker import BrokerProcess
from tests.support.stock import Confluent, Fenced, StockClient, ToSend

Claim = Callable[[StockClient, str], None]


def fresh(kind: str) -> str:
    return f"{kind}-{uuid.uuid4()}"


def values(client: StockClient, address: str, topic: str, isolation: str) -> list[bytes | None]:
    return [seen.value for seen in client.read(address, topic, isolation=isolation)]


def aborted_records_are_never_seen(client: StockClient, address: str) -> None:
    topic = fresh("abort")
    writer = client.transactional(address, fresh("id"))
    try:
        for value, commit in ((b"kept 1", True), (b"aborted", False), (b"kept 2", True)):
            writer.begin()
            writer.send(topic, value)
            if commit:
                writer.commit()
            else:
                writer.abort()
    finally:
        writer.close()
    assert values(client, address, topic, "read_committed") == [b"kept 1", b"kept 2"]


def a_zombie_cannot_commit(client: StockClient, address: str) -> None:
    topic, transactional_id = fresh("zombie"), fresh("id")
    zombie = client.transactional(address, transactional_id)
    try:
        zombie.begin()
        zombie.send(topic, b"of the zombie")
        successor = client.transactional(address, transactional_id)
        try:
            successor.begin()
            successor.send(topic, b"of the successor")
            with pytest.raises(Fenced):
                zombie.commit()
            successor.commit()
        finally:
            successor.close()
    finally:
        zombie.close()
    assert values(client, address, topic, "read_committed") == [b"of the successor"]


def a_zombie_cannot_write(client: StockClient, address: str) -> None:
    topic, transactional_id = fresh("zombie"), fresh("id")
    zombie = client.transactional(address, transactional_id)
    try:
        zombie.begin()
        zombie.send(topic, b"before it was one")
        successor = client.transactional(address, transactional_id)
        try:
            with pytest.raises(Fenced):
                zombie.send(topic, b"after")
        finally:
            successor.close()
    finally:
        zombie.close()
    assert values(client, address, topic, "read_uncommitted") == [b"before it was one"]
    assert values(client, address, topic, "read_committed") == []


CLAIMS: list[Claim] = [
    aborted_records_are_never_seen,  # E10
    a_zombie_cannot_commit,  # E2, E7
    a_zombie_cannot_write,  # E2, E7
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_fencelog_keeps_the_claim_for_every_client(
    claim: Claim, client: StockClient, shared_broker: BrokerProcess
) -> None:
    claim(client, shared_broker.address)


@pytest.fixture(scope="module")
def mock_address() -> Iterator[str]:
    """Address of librdkafka's mock cluster, which lives inside a producer."""
    from confluent_kafka import Producer

    owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    owner.flush(0)


def test_the_mock_returns_aborted_records(mock_address: str) -> None:
    with pytest.raises(AssertionError, match="aborted"):
        aborted_records_are_never_seen(Confluent(), mock_address)


def test_the_mock_lets_a_zombie_commit(mock_address: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        a_zombie_cannot_commit(Confluent(), mock_address)


def test_a_committed_transaction_is_seen_whole_on_every_partition(  # E10
    client: StockClient, shared_broker: BrokerProcess, topic: str
) -> None:
    address = shared_broker.address
    writer = client.transactional(address, fresh("id"))
    try:
        writer.begin()
        sent = [b"%d" % number for number in range(20)]
        for value in sent:
            writer.send(topic, value)
        assert values(client, address, topic, "read_committed") == []
        assert values(client, address, topic, "read_uncommitted") == sent
        writer.commit()
    finally:
        writer.close()
    assert values(client, address, topic, "read_committed") == sent


def test_an_open_transaction_holds_back_what_is_written_after_it(  # E10
    client: StockClient, shared_broker: BrokerProcess, topic: str
) -> None:
    address = shared_broker.address
    client.write(address, topic, [ToSend(b"before")])
    writer = client.transactional(address, fresh("id"))
    try:
        writer.begin()
        writer.send(topic, b"open")
        client.write(address, topic, [ToSend(b"after")])
        assert values(client, address, topic, "read_committed") == [b"before"]
        assert values(client, address, topic, "read_uncommitted") == [b"before", b"open", b"after"]
        writer.commit()
    finally:
        writer.close()
    assert values(client, address, topic, "read_committed") == [b"before", b"open", b"after"]


def test_an_open_transaction_survives_a_kill_of_the_broker_and_commits(  # E15, E16
    broker: BrokerProcess, topic: str
) -> None:
    client = Confluent()
    writer = client.transactional(broker.address, "id")
    try:
        writer.begin()
        writer.send(topic, b"before the kill")
        broker.restart()
        assert values(client, broker.address, topic, "read_committed") == []
        writer.send(topic, b"after the kill")
        writer.commit()
    finally:
        writer.close()
    assert values(client, broker.address, topic, "read_committed") == [
        b"before the kill",
        b"after the kill",
    ]


def test_a_decision_survives_a_kill_right_after_it(  # E16
    broker: BrokerProcess, topic: str
) -> None:
    client = Confluent()
    writer = client.transactional(broker.address, "id")
    try:
        for number in range(5):
            writer.begin()
            writer.send(topic, b"%d" % number)
            writer.commit()
            broker.restart()
    finally:
        writer.close()
    found = values(client, broker.address, topic, "read_committed")
    assert found == [b"0", b"1", b"2", b"3", b"4"]


def test_a_restarted_broker_still_fences_the_zombie(
    broker: BrokerProcess, topic: str
) -> None:  # E7
    client = Confluent()
    zombie = client.transactional(broker.address, "id")
    zombie.begin()
    zombie.send(topic, b"zombie")
    successor = client.transactional(broker.address, "id")
    broker.restart()
    with pytest.raises(Fenced):
        zombie.commit()
    zombie.close()
    successor.close()
    assert values(client, broker.address, topic, "read_committed") == []
