"""What mock brokers get wrong, tried by stock clients on the plugin's broker."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencelog.testing import LocalBroker
from tests.support.stock import CLIENTS, Confluent, Fenced, Seen, StockClient, ToSend
from tests.support.stock.members import ConfluentMember

pytest_plugins = ["fencelog.testing"]

DEADLINE_S = 20.0


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> StockClient:
    """Each of the three client libraries."""
    return CLIENTS[request.param]


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """A thread for a client that has to wait."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def values(broker: LocalBroker, topic: str, *, committed: bool = True) -> list[bytes | None]:
    isolation = "transactional" if committed else "replicated"
    return [record.value for record in broker.records(topic, isolation=isolation)]


def test_a_produce_that_was_under_way_when_its_producer_was_fenced_is_refused(  # E2
    client: StockClient, fencelog_broker: LocalBroker, beside: ThreadPoolExecutor
) -> None:
    fencelog_broker.create_topic("orders")
    zombie = client.transactional(fencelog_broker.bootstrap, "shop")
    try:
        zombie.begin()
        zombie.send("orders", b"before")
        with fencelog_broker.hold("Produce") as held:
            late = beside.submit(zombie.send, "orders", b"late")
            held.wait()
            fencelog_broker.fence("shop")
            held.release()
            with pytest.raises(Fenced):
                late.result(DEADLINE_S)
    finally:
        zombie.close()
    assert values(fencelog_broker, "orders") == []
    assert values(fencelog_broker, "orders", committed=False) == [b"before"]


def test_a_commit_that_was_under_way_when_its_producer_was_fenced_is_refused(  # E7
    client: StockClient, fencelog_broker: LocalBroker, beside: ThreadPoolExecutor
) -> None:
    fencelog_broker.create_topic("orders")
    zombie = client.transactional(fencelog_broker.bootstrap, "shop")
    try:
        zombie.begin()
        zombie.send("orders", b"of the zombie")
        with fencelog_broker.hold("EndTxn") as held:
            commit = beside.submit(zombie.commit)
            held.wait()
            successor = client.transactional(fencelog_broker.bootstrap, "shop")
            held.release()
            with pytest.raises(Fenced):
                commit.result(DEADLINE_S)
        successor.begin()
        successor.send("orders", b"of the successor")
        successor.commit()
        successor.close()
    finally:
        zombie.close()
    assert values(fencelog_broker, "orders") == [b"of the successor"]


def test_aborted_records_are_not_visible_at_read_committed(  # E10
    client: StockClient, fencelog_broker: LocalBroker
) -> None:
    address = fencelog_broker.bootstrap
    fencelog_broker.create_topic("orders")
    writer = client.transactional(address, "shop")
    try:
        for value, commit in ((b"kept 1", True), (b"aborted", False), (b"kept 2", True)):
            writer.begin()
            writer.send("orders", value)
            if commit:
                writer.commit()
            else:
                writer.abort()
    finally:
        writer.close()
    assert values(fencelog_broker, "orders") == [b"kept 1", b"kept 2"]
    assert values(fencelog_broker, "orders", committed=False) == [b"kept 1", b"aborted", b"kept 2"]
    assert [seen.value for seen in client.read(address, "orders")] == [b"kept 1", b"kept 2"]


def test_a_lost_acknowledgement_and_its_retry_leave_one_copy(  # E4, E13
    client: StockClient, fencelog_broker: LocalBroker, beside: ThreadPoolExecutor
) -> None:
    fencelog_broker.create_topic("orders")
    with fencelog_broker.hold("Produce") as first, fencelog_broker.hold("Produce") as second:
        sending = beside.submit(
            client.write, fencelog_broker.bootstrap, "orders", [ToSend(b"once")], idempotent=True
        )
        first.wait()
        first.drop_answer()
        second.wait()  # the retry; without one this would show nothing
        assert values(fencelog_broker, "orders", committed=False) == [b"once"]
        second.release()
        sending.result(DEADLINE_S)
    assert values(fencelog_broker, "orders", committed=False) == [b"once"]


def test_a_transaction_that_was_open_at_a_kill_commits_whole_after_it(  # E15
    client: StockClient, fencelog_broker: LocalBroker
) -> None:
    address = fencelog_broker.bootstrap
    fencelog_broker.create_topic("orders")
    client.write(address, "orders", [ToSend(b"acknowledged")])
    writer = client.transactional(address, "shop")
    try:
        writer.begin()
        writer.send("orders", b"before the kill")
        fencelog_broker.restart()
        assert values(fencelog_broker, "orders") == [b"acknowledged"]
        writer.send("orders", b"after it")
        writer.commit()
    finally:
        writer.close()
    everything = [b"acknowledged", b"before the kill", b"after it"]
    assert values(fencelog_broker, "orders") == everything
    assert [seen.value for seen in client.read(address, "orders")] == everything


def test_a_transaction_that_is_expired_is_aborted_and_its_producer_fenced(  # E12
    client: StockClient, fencelog_broker: LocalBroker
) -> None:
    fencelog_broker.create_topic("orders")
    writer = client.transactional(fencelog_broker.bootstrap, "shop")
    try:
        writer.begin()
        writer.send("orders", b"forgotten")
        client.write(fencelog_broker.bootstrap, "orders", [ToSend(b"behind it")])
        assert values(fencelog_broker, "orders") == []
        fencelog_broker.expire_transaction("shop")
        assert values(fencelog_broker, "orders") == [b"behind it"]
        with pytest.raises(Fenced):
            writer.commit()
    finally:
        writer.close()


def test_a_consumer_that_subscribes_has_its_partition_without_kafkas_delay(
    fencelog_broker: LocalBroker,
) -> None:
    fencelog_broker.create_topic("orders")
    Confluent().write(fencelog_broker.bootstrap, "orders", [ToSend(b"first")])
    member = ConfluentMember(fencelog_broker.bootstrap, "g", "orders")
    try:
        ends_at = time.monotonic() + 2.5  # Kafka's own delay alone is 3 s
        seen: list[Seen] = []
        while not seen:
            assert time.monotonic() < ends_at
            seen = member.poll()
        assert [each.value for each in seen] == [b"first"]
    finally:
        member.close()
