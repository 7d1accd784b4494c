"""Records deleted, partitions added and settings changed by the stock clients' admin interfaces."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.broker import BrokerProcess
from tests.support.stock import DEADLINE_S, Confluent, StockClient, ToSend
from tests.support.waiting import wait_until

RECORDS = [ToSend(f"{number}".encode() * 50, key=b"k") for number in range(10)]


def confluent_admin(address: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address})


def create(broker: BrokerProcess, topic: str, **config: str) -> None:
    from confluent_kafka.admin import NewTopic

    settings = {key.replace("_", "."): value for key, value in config.items()}
    new = NewTopic(topic, 1, 1, config=settings)
    admin = confluent_admin(broker.address)
    admin.create_topics([new])[topic].result(DEADLINE_S)


def with_kafka_python(broker: BrokerProcess, use: Callable[[Any], Any]) -> Any:
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        return use(admin)
    finally:
        admin.close()


def with_aiokafka(broker: BrokerProcess, use: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    from aiokafka.admin import AIOKafkaAdminClient

    async def steps() -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        try:
            return await use(admin)
        finally:
            await admin.close()

    return asyncio.run(steps())


def offsets_left(broker: BrokerProcess, topic: str) -> list[int]:
    return [seen.offset for seen in Confluent().read(broker.address, topic)]


def test_confluent_deletes_records(shared_broker: BrokerProcess, topic: str) -> None:  # D4
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    create(shared_broker, topic)
    Confluent().write(shared_broker.address, topic, RECORDS)
    admin = confluent_admin(shared_broker.address)
    until = TopicPartition(topic, 0, 4)
    assert admin.delete_records([until])[until].result(DEADLINE_S).low_watermark == 4
    assert offsets_left(shared_broker, topic) == [4, 5, 6, 7, 8, 9]
    beyond = TopicPartition(topic, 0, 99)
    with pytest.raises(KafkaException) as refused:
        admin.delete_records([beyond])[beyond].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_kafka_python_deletes_records(shared_broker: BrokerProcess, topic: str) -> None:  # D4
    from kafka.structs import TopicPartition

    create(shared_broker, topic)
    Confluent().write(shared_broker.address, topic, RECORDS)
    place = TopicPartition(topic, 0)
    answered = with_kafka_python(shared_broker, lambda admin: admin.delete_records({place: 7}))
    assert answered[place]["low_watermark"] == 7
    assert offsets_left(shared_broker, topic) == [7, 8, 9]


def test_aiokafka_deletes_records(shared_broker: BrokerProcess, topic: str) -> None:  # D4
    from aiokafka.admin import RecordsToDelete
    from aiokafka.structs import TopicPartition

    create(shared_broker, topic)
    Confluent().write(shared_broker.address, topic, RECORDS)
    place = TopicPartition(topic, 0)
    wanted = {place: RecordsToDelete(before_offset=8)}
    low = with_aiokafka(shared_broker, lambda admin: admin.delete_records(wanted))
    assert low == {place: 8}
    assert offsets_left(shared_broker, topic) == [8, 9]


def partitions_of(broker: BrokerProcess, topic: str) -> int:
    return len(confluent_admin(broker.address).list_topics(timeout=10).topics[topic].partitions)


def test_confluent_adds_partitions(shared_broker: BrokerProcess, topic: str) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewPartitions

    create(shared_broker, topic)
    admin = confluent_admin(shared_broker.address)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(DEADLINE_S)
    assert partitions_of(shared_broker, topic) == 3
    record = ToSend(b"in a new one", partition=2)
    Confluent().write(shared_broker.address, topic, [record])
    assert [seen.partition for seen in Confluent().read(shared_broker.address, topic)] == [2]
    with pytest.raises(KafkaException) as refused:
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS


def test_kafka_python_and_aiokafka_add_partitions(shared_broker: BrokerProcess, topic: str) -> None:
    from aiokafka.admin import NewPartitions as AioNewPartitions
    from kafka.admin import NewPartitions

    create(shared_broker, topic)
    wanted = {topic: NewPartitions(2)}
    with_kafka_python(shared_broker, lambda admin: admin.create_partitions(wanted))
    assert partitions_of(shared_broker, topic) == 2
    more = {topic: AioNewPartitions(5)}
    with_aiokafka(shared_broker, lambda admin: admin.create_partitions(more))
    assert partitions_of(shared_broker, topic) == 5


def test_confluent_changes_settings_one_by_one_and_all_at_once(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        ResourceType,
    )

    create(shared_broker, topic, retention_ms="3600000")
    admin = confluent_admin(shared_broker.address)

    def describe() -> dict[str, Any]:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        return dict(admin.describe_configs([asked])[asked].result(DEADLINE_S))

    def entry(name: str, value: str, operation: AlterConfigOpType) -> ConfigEntry:
        return ConfigEntry(name, value, incremental_operation=operation)

    changed = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            entry("max.message.bytes", "2000", AlterConfigOpType.SET),
            entry("cleanup.policy", "compact", AlterConfigOpType.APPEND),
        ],
    )
    admin.incremental_alter_configs([changed])[changed].result(DEADLINE_S)
    now = describe()
    assert now["max.message.bytes"].value == "2000"
    assert now["cleanup.policy"].value == "delete,compact"
    assert ConfigSource(now["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert "log.cleanup.policy" in now["cleanup.policy"].synonyms

    whole = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "7"})
    with pytest.deprecated_call():
        admin.alter_configs([whole])[whole].result(DEADLINE_S)
    now = describe()
    assert now["retention.ms"].value == "7"
    assert ConfigSource(now["max.message.bytes"].source) is ConfigSource.DEFAULT_CONFIG


def test_kafka_python_and_aiokafka_change_settings(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
    from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
    from kafka.admin import ConfigResource, ConfigResourceType

    create(shared_broker, topic)

    def seen(admin: Any) -> Any:
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        return str(admin.describe_configs(asked))

    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "86400000"})
    with_kafka_python(shared_broker, lambda admin: admin.alter_configs([resource]))
    assert "86400000" in with_kafka_python(shared_broker, seen)
    again = AioConfigResource(AioConfigResourceType.TOPIC, topic, {"retention.ms": "72000000"})
    with_aiokafka(shared_broker, lambda admin: admin.alter_configs([again]))
    assert "72000000" in with_kafka_python(shared_broker, seen)


def test_a_consumer_sees_a_compacted_topic_also_after_a_kill(
    tmp_path: Any, topic: str, client: StockClient
) -> None:  # D4
    with BrokerProcess(
        tmp_path / "data", settings="log.cleaner.backoff.ms=50\nlog.cleaner.delete.retention.ms=1\n"
    ) as broker:
        create(
            broker,
            topic,
            cleanup_policy="compact",
            segment_bytes="8192",
            min_cleanable_dirty_ratio="0.01",
        )
        records = [ToSend(f"{n:03}".encode() * 40, key=b"k%d" % (n % 3)) for n in range(30)]
        client.write(broker.address, topic, records, idempotent=True)
        client.write(broker.address, topic, records, codec="gzip")
        before = client.read(broker.address, topic)
        newest = {seen.key: seen for seen in before}

        def is_small() -> bool:
            # What is written last stays in the newest segment, which is not compacted.
            Confluent().write(broker.address, topic, [ToSend(b"end" * 1000, key=b"end")])
            return len(client.read(broker.address, topic)) < len(before) / 3

        wait_until(is_small, deadline_s=20, what="the topic to be compacted", every_s=0.1)
        broker.kill()
        broker.start()
        after = client.read(broker.address, topic)
        assert {s.key: s for s in after if s.key != b"end"} == newest
        assert {s for s in after if s.key != b"end"} <= set(before)
