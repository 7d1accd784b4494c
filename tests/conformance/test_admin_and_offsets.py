"""Topics, configs, group offsets and end offsets, asked for by stock clients."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import BrokerProcess
from tests.support.stock import DEADLINE_S, Confluent, ToSend

Fresh = Callable[[str], str]


def confluent_admin(address: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address})


def test_confluent_creates_describes_and_deletes_topics(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

    admin = confluent_admin(shared_broker.address)
    new = NewTopic(topic, 3, 1, config={"retention.ms": "3600000"})
    admin.create_topics([new])[topic].result(DEADLINE_S)
    assert len(admin.list_topics(timeout=10).topics[topic].partitions) == 3
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([new])[topic].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS

    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert configs["retention.ms"].value == "3600000"

    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    assert topic not in admin.list_topics(timeout=10).topics


def test_a_topic_created_again_after_deletion_is_empty(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from confluent_kafka.admin import NewTopic

    admin = confluent_admin(shared_broker.address)
    client = Confluent()
    for value in (b"old", b"new"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
        client.write(shared_broker.address, topic, [ToSend(value)], idempotent=True)
        assert [seen.value for seen in client.read(shared_broker.address, topic)] == [value]
        admin.delete_topics([topic])[topic].result(DEADLINE_S)


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "config", "code"),
    [
        ("bad name", 1, 1, {}, "TOPIC_EXCEPTION"),
        ("replicated-twice", 1, 2, {}, "INVALID_REPLICATION_FACTOR"),
        ("bad-config", 1, 1, {"retention.ms": "long"}, "INVALID_CONFIG"),
        ("unknown-config", 1, 1, {"no.such.config": "1"}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_its_reason(
    shared_broker: BrokerProcess,
    name: str,
    partitions: int,
    replicas: int,
    config: dict[str, str],
    code: str,
) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    admin = confluent_admin(shared_broker.address)
    new = NewTopic(name, partitions, replicas, config=config)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([new])[name].result(DEADLINE_S)
    assert refused.value.args[0].name() == code


def test_kafka_python_creates_lists_and_deletes_topics(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=shared_broker.address)
    try:
        admin.create_topics([NewTopic(topic, 2, 1)])
        assert topic in admin.list_topics()
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()


def test_aiokafka_creates_lists_and_deletes_topics(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async def steps() -> tuple[bool, bool]:
        admin = AIOKafkaAdminClient(bootstrap_servers=shared_broker.address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, 2, 1)])
            created = topic in await admin.list_topics()
            await admin.delete_topics([topic])
            return created, topic in await admin.list_topics()
        finally:
            await admin.close()

    assert asyncio.run(steps()) == (True, False)


def test_confluent_commits_and_reads_back_offsets_by_assignment(
    shared_broker: BrokerProcess, topic: str, fresh_name: Fresh
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    Confluent().write(shared_broker.address, topic, [ToSend(b"%d" % n) for n in range(10)])
    settings = {"bootstrap.servers": shared_broker.address, "group.id": fresh_name("group")}
    first = Consumer({**settings, "enable.auto.commit": False})
    first.assign([TopicPartition(topic, 0, 0)])
    first.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    first.close()

    second = Consumer({**settings, "enable.auto.commit": False})
    (found,) = second.committed([TopicPartition(topic, 0)], DEADLINE_S)
    second.assign([TopicPartition(topic, 0)])
    message = second.poll(DEADLINE_S)
    second.close()
    assert found.offset == 7
    assert message.value() == b"7"


def test_kafka_python_commits_and_reads_back_offsets_by_assignment(
    shared_broker: BrokerProcess, topic: str, fresh_name: Fresh
) -> None:
    from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

    Confluent().write(shared_broker.address, topic, [ToSend(b"%d" % n) for n in range(10)])
    place = TopicPartition(topic, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=shared_broker.address,
        group_id=fresh_name("group"),
        enable_auto_commit=False,
    )
    try:
        consumer.assign([place])
        consumer.commit({place: OffsetAndMetadata(4, "note", -1)})
        found = consumer.committed(place, metadata=True)
    finally:
        consumer.close()
    assert (found.offset, found.metadata) == (4, "note")


def test_aiokafka_commits_and_reads_back_offsets_by_assignment(
    shared_broker: BrokerProcess, topic: str, fresh_name: Fresh
) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    Confluent().write(shared_broker.address, topic, [ToSend(b"%d" % n) for n in range(10)])

    async def steps() -> int | None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=shared_broker.address,
            group_id=fresh_name("group"),
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.commit({place: 5})
            return await consumer.committed(place)
        finally:
            await consumer.stop()

    assert asyncio.run(steps()) == 5


def test_committed_offsets_survive_a_kill(broker: BrokerProcess, topic: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    Confluent().write(broker.address, topic, [ToSend(b"1")])
    settings = {"bootstrap.servers": broker.address, "group.id": "progress"}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    broker.restart()
    consumer = Consumer(settings)
    (found,) = consumer.committed([TopicPartition(topic, 0)], DEADLINE_S)
    consumer.close()
    assert found.offset == 1


def test_the_end_at_read_committed_is_the_last_stable_offset(  # E10
    shared_broker: BrokerProcess, topic: str, fresh_name: Fresh
) -> None:
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    address = shared_broker.address
    client = Confluent()
    client.write(address, topic, [ToSend(b"1"), ToSend(b"2")])
    writer = client.transactional(address, fresh_name("id"))
    writer.begin()
    writer.send(topic, b"open")
    admin = confluent_admin(address)
    place = TopicPartition(topic, 0)

    def end(level: IsolationLevel) -> int:
        asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)
        return int(asked[place].result(DEADLINE_S).offset)

    assert end(IsolationLevel.READ_COMMITTED) == 2
    assert end(IsolationLevel.READ_UNCOMMITTED) == 3
    writer.commit()
    writer.close()
    # The marker takes an offset too. EndTxn answers before its markers are in.
    assert client.read(address, topic)[-1].value == b"open"
    assert end(IsolationLevel.READ_COMMITTED) == 4


def test_offsets_are_found_by_time(shared_broker: BrokerProcess, topic: str) -> None:
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    for number in range(5):
        record = ToSend(b"%d" % number, timestamp_ms=1_000_000 + number * 1000)
        Confluent().write(shared_broker.address, topic, [record])
    consumer = Consumer({"bootstrap.servers": shared_broker.address, "group.id": "by-time"})
    asked = [1_000_000, 1_001_500, 1_004_000, 2_000_000]
    found = [
        consumer.offsets_for_times([TopicPartition(topic, 0, when)], DEADLINE_S)[0].offset
        for when in asked
    ]
    consumer.close()
    assert found == [0, 2, 4, OFFSET_END]


def test_an_unknown_topic_is_made_when_it_is_written_to_and_not_when_it_is_asked_about(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": shared_broker.address, "group.id": "asks"})
    asked = consumer.list_topics(topic, DEADLINE_S).topics[topic]
    consumer.close()
    assert asked.error is not None
    Confluent().write(shared_broker.address, topic, [ToSend(b"1")])
    assert [seen.value for seen in Confluent().read(shared_broker.address, topic)] == [b"1"]
