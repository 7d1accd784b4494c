"""Shapes of transactions that librdkafka's own tests write, and what its consumers then see."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import BrokerProcess
from tests.support.stock import DEADLINE_S, Confluent, ToSend

Make = Callable[[str], Any]


@pytest.fixture
def producer(shared_broker: BrokerProcess, fresh_name: Callable[[str], str]) -> Make:
    """A maker of transactional producers, ready to begin."""
    from confluent_kafka import Producer

    def make(name: str) -> Any:
        settings = {
            "bootstrap.servers": shared_broker.address,
            "transactional.id": f"{fresh_name('id')}-{name}",
            "linger.ms": 5,
        }
        made = Producer(settings)
        made.init_transactions(DEADLINE_S)
        return made

    return make


def end(producer: Any, *, commit: bool) -> None:
    if commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)


def send(producer: Any, topic: str, *values: str, flush: bool = True) -> None:
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    if flush:
        assert producer.flush(DEADLINE_S) == 0


def seen(broker: BrokerProcess, topic: str, isolation: str = "read_committed") -> list[str]:
    read = Confluent().read(broker.address, topic, isolation=isolation)
    return [(one.value or b"").decode() for one in read]


def consumer(broker: BrokerProcess, group: str, isolation: str = "read_committed") -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )


def read_to_end(consumer: Any) -> list[str]:
    """The values up to the end of the one partition."""
    from confluent_kafka import KafkaError

    values = []
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "the end is reached in time"
        if message.error() is None:
            values.append(message.value().decode())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            return values


@pytest.mark.parametrize("flush", [True, False])
def test_rapid_commits_and_aborts_show_what_was_committed(
    shared_broker: BrokerProcess, producer: Make, topic: str, flush: bool
) -> None:  # E10, E16
    one = producer("one")
    for number in range(20):
        one.begin_transaction()
        send(one, topic, f"{number}", flush=flush)
        end(one, commit=bool(number % 2))
    Confluent().write(shared_broker.address, topic, [ToSend(b"plain")])
    assert seen(shared_broker, topic) == [*(f"{n}" for n in range(1, 20, 2)), "plain"]
    if flush:
        every = [*(f"{n}" for n in range(20)), "plain"]
        assert seen(shared_broker, topic, "read_uncommitted") == every


@pytest.mark.parametrize("first_commits", [True, False])
@pytest.mark.parametrize("second_commits", [True, False])
@pytest.mark.parametrize("first_ends_first", [True, False])
def test_two_open_transactions_end_each_by_itself(
    shared_broker: BrokerProcess,
    producer: Make,
    topic: str,
    first_commits: bool,
    second_commits: bool,
    first_ends_first: bool,
) -> None:  # E10
    one, two = producer("one"), producer("two")
    for each in (one, two):
        each.begin_transaction()
    send(one, topic, "one a", "one b")
    send(two, topic, "two a")
    send(one, topic, "one c")
    ends = [(one, first_commits), (two, second_commits)]
    for each, commit in ends if first_ends_first else reversed(ends):
        end(each, commit=commit)
    written = ["one a", "one b", "two a", "one c"]
    kept = {"one": first_commits, "two": second_commits}
    assert seen(shared_broker, topic) == [value for value in written if kept[value[:3]]]


def test_a_transaction_of_several_batches_ends_as_one(
    shared_broker: BrokerProcess, producer: Make, topic: str
) -> None:  # E10
    one = producer("one")
    for number, commit in enumerate((False, True, False, True)):
        one.begin_transaction()
        for part in ("a", "b"):
            send(one, topic, f"{number}{part}1", f"{number}{part}2")
        end(one, commit=commit)
    assert seen(shared_broker, topic) == [
        f"{number}{part}{count}" for number in (1, 3) for part in "ab" for count in (1, 2)
    ]


def test_a_transaction_left_open_holds_its_records_back(
    shared_broker: BrokerProcess, producer: Make, topic: str
) -> None:  # E10
    from confluent_kafka import TopicPartition

    Confluent().write(shared_broker.address, topic, [ToSend(b"plain")])
    one = producer("one")
    one.begin_transaction()
    send(one, topic, "a", "b", "c")
    ends = {}
    for isolation in ("read_committed", "read_uncommitted"):
        reader = consumer(shared_broker, f"{topic}-{isolation}", isolation)
        _, ends[isolation] = reader.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_S)
        reader.close()
    assert ends == {"read_committed": 1, "read_uncommitted": 4}
    assert seen(shared_broker, topic) == ["plain"]
    end(one, commit=False)
    assert seen(shared_broker, topic) == ["plain"]


@pytest.mark.parametrize("sends_offsets", [True, False])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_without_records_stores_the_offsets_it_has(
    shared_broker: BrokerProcess, producer: Make, topic: str, sends_offsets: bool, commit: bool
) -> None:  # E8
    records = [ToSend(str(number).encode()) for number in range(10)]
    Confluent().write(shared_broker.address, topic, records)
    one, reader = producer("one"), consumer(shared_broker, f"group-{topic}")
    try:
        reader.subscribe([topic])
        assert len(read_to_end(reader)) == 10
        one.begin_transaction()
        if sends_offsets:
            positions = reader.position(reader.assignment())
            one.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), DEADLINE_S)
        end(one, commit=commit)
        (found,) = reader.committed(reader.assignment(), DEADLINE_S)
        assert found.offset == (10 if sends_offsets and commit else -1001)
    finally:
        reader.close()


def test_a_consumer_passes_the_marker_of_an_aborted_transaction(
    shared_broker: BrokerProcess, producer: Make, topic: str
) -> None:  # E10, F6
    one = producer("one")
    one.begin_transaction()
    send(one, topic, "aborted")
    end(one, commit=False)
    reader = consumer(shared_broker, f"group-{topic}")
    try:
        reader.subscribe([topic])
        assert read_to_end(reader) == []
        reader.commit(asynchronous=False)
        (found,) = reader.committed(reader.assignment(), DEADLINE_S)
        assert (found.offset, found.leader_epoch) == (2, 0)  # the record and its marker
    finally:
        reader.close()


def test_a_timeout_above_the_brokers_is_refused_for_good(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from confluent_kafka import KafkaError, KafkaException, Producer

    one = Producer(
        {
            "bootstrap.servers": shared_broker.address,
            "transactional.id": topic,
            "transaction.timeout.ms": 2_147_483_647,
        }
    )
    with pytest.raises(KafkaException) as refused:
        one.init_transactions(DEADLINE_S)
    error = refused.value.args[0]
    assert error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
    assert error.fatal()


def test_an_init_that_timed_out_is_repeated(shared_broker: BrokerProcess, topic: str) -> None:
    from confluent_kafka import KafkaException, Producer

    one = Producer({"bootstrap.servers": shared_broker.address, "transactional.id": topic})
    errors = []
    for _ in range(5_000):
        try:
            one.init_transactions(0.001)
            break
        except KafkaException as error:
            errors.append(error.args[0])
    assert all(error.retriable() for error in errors)
    one.begin_transaction()
    send(one, topic, "a")
    end(one, commit=True)
    assert seen(shared_broker, topic) == ["a"]
