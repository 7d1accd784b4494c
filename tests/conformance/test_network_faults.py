"""Lost answers and delayed requests, between a stock client and the broker."""

from collections.abc import Callable

import pytest

from tests.support.broker import BrokerProcess
from tests.support.proxy import Action, FrameProxy, Request
from tests.support.stock import Confluent, Fenced, StockClient, ToSend
from tests.support.waiting import wait_until

PRODUCE, ADD_PARTITIONS, END_TXN = 0, 24, 26
LOST_ONE_IN = 4
StartProxy = Callable[[Callable[[Request], Action]], FrameProxy]


class Nth:
    """Decides over the requests with one API key: the numbered ones get the action."""

    def __init__(self, api_key: int, numbers: set[int], action: Action) -> None:
        """Count from 1."""
        self.api_key = api_key
        self.numbers = numbers
        self.action = action
        self.count = 0

    def __call__(self, request: Request) -> Action:
        if request.api_key != self.api_key:
            return Action.FORWARD
        self.count += 1
        return self.action if self.count in self.numbers else Action.FORWARD


def test_a_lost_acknowledgement_and_its_retry_leave_one_copy(  # E4, E13
    client: StockClient, proxied: StartProxy
) -> None:
    rule = Nth(PRODUCE, {1, 3, 4}, Action.LOSE_ANSWER)
    proxy = proxied(rule)
    sent = [b"%d" % number for number in range(5)]
    for value in sent:
        client.write(proxy.address, "once", [ToSend(value)], idempotent=True)
    assert rule.count > len(sent), "nothing was sent again: the test shows nothing"
    assert [seen.value for seen in client.read(proxy.address, "once")] == sent


def test_batches_in_flight_keep_their_order_over_a_lost_acknowledgement(  # E3, E13
    proxied: StartProxy,
) -> None:
    from confluent_kafka import Producer

    rule = Nth(PRODUCE, {2, 5, 9}, Action.LOSE_ANSWER)
    proxy = proxied(rule)
    producer = Producer(
        {
            "bootstrap.servers": proxy.address,
            "enable.idempotence": True,
            "batch.num.messages": 10,
            "linger.ms": 0,
        }
    )
    sent = [b"%d" % number for number in range(500)]
    for value in sent:
        producer.produce("ordered", value, partition=0)
    assert producer.flush(30) == 0
    assert rule.count > 9, "too few requests: the test shows nothing"
    assert [seen.value for seen in Confluent().read(proxy.address, "ordered")] == sent


def test_a_lost_answer_to_a_commit_is_asked_again_and_commits_once(  # E14
    client: StockClient, proxied: StartProxy
) -> None:
    rule = Nth(END_TXN, {1}, Action.LOSE_ANSWER)
    proxy = proxied(rule)
    writer = client.transactional(proxy.address, "id")
    for value in (b"1", b"2"):
        writer.begin()
        writer.send("commits", value)
        writer.commit()
    writer.close()
    assert rule.count == 3, "the first commit was asked for twice, the second once"
    assert [seen.value for seen in client.read(proxy.address, "commits")] == [b"1", b"2"]


def test_no_client_that_reconnects_is_taken_for_one_that_was_left_behind(  # E14
    client: StockClient, proxied: StartProxy, brokers: list[BrokerProcess]
) -> None:
    rules = [
        Nth(key, set(range(LOST_ONE_IN, 100, LOST_ONE_IN)), Action.LOSE_ANSWER)
        for key in (PRODUCE, ADD_PARTITIONS, END_TXN)
    ]

    def lose_some(request: Request) -> Action:
        return max(
            (rule(request) for rule in rules), key=lambda action: action is Action.LOSE_ANSWER
        )

    proxy = proxied(lose_some)
    writer = client.transactional(proxy.address, "id")
    sent = [b"%d" % number for number in range(12)]
    for value in sent:
        writer.begin()
        writer.send("reconnects", value)
        writer.commit()
    writer.close()
    assert all(rule.count > len(sent) for rule in rules), "nothing was sent again"
    assert [seen.value for seen in client.read(proxy.address, "reconnects")] == sent
    assert "that the producer has replaced by a newer one" not in brokers[0].stderr


def test_a_produce_that_arrives_after_its_transaction_was_fenced_is_refused(  # E2, E14
    proxied: StartProxy,
) -> None:
    rule = Nth(PRODUCE, {2}, Action.HOLD)
    proxy = proxied(rule)
    client = Confluent()
    zombie = client.transactional(proxy.address, "id")
    zombie.begin()
    zombie.send("delayed", b"in time")
    zombie._producer.produce("delayed", b"delayed", partition=0)
    wait_until(lambda: proxy.held, what="the produce request is held")
    successor = client.transactional(proxy.address, "id")
    successor.begin()
    successor.send("delayed", b"of the successor")
    proxy.release()
    with pytest.raises(Fenced):
        zombie.commit()
    successor.commit()
    zombie.close()
    successor.close()
    seen = client.read(proxy.address, "delayed", isolation="read_uncommitted")
    assert [each.value for each in seen] == [b"in time", b"of the successor"]
    committed = client.read(proxy.address, "delayed")
    assert [each.value for each in committed] == [b"of the successor"]
