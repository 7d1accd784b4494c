"""What librdkafka's test of its admin client asks of groups and topics, through that client."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance.test_admin_and_offsets import confluent_admin
from tests.support.broker import BrokerProcess
from tests.support.stock import DEADLINE_S, Confluent, ToSend


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> Any:
    return confluent_admin(shared_broker.address)


@pytest.fixture
def member(
    shared_broker: BrokerProcess, topic: str, fresh_name: Callable[[str], str]
) -> Iterator[tuple[str, Any]]:
    """A group, and its one member, which has read the topic's one record."""
    from confluent_kafka import Consumer

    Confluent().write(shared_broker.address, topic, [ToSend(b"x")])
    group = fresh_name("group")
    consumer = Consumer(
        {
            "bootstrap.servers": shared_broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(DEADLINE_S)
    assert message is not None
    assert message.error() is None
    consumer.commit(asynchronous=False)
    yield group, consumer
    consumer.close()


def code(future: Any) -> str:
    """The name of the error that a call ends with."""
    from confluent_kafka import KafkaException

    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_S)
    return str(refused.value.args[0].name())


def test_a_group_is_listed_and_described_while_it_has_a_member_and_after(
    admin: Any, member: tuple[str, Any], topic: str
) -> None:
    from confluent_kafka import ConsumerGroupState

    group, consumer = member
    stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(DEADLINE_S)
    assert group in [each.group_id for each in stable.valid]
    described = admin.describe_consumer_groups([group], include_authorized_operations=True)
    found = described[group].result(DEADLINE_S)
    (only,) = found.members
    assert found.state is ConsumerGroupState.STABLE
    assert [place.topic for place in only.assignment.topic_partitions] == [topic]
    assert {each.name for each in found.authorized_operations} == {
        *("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
    }
    consumer.close()
    described = admin.describe_consumer_groups([group])
    assert described[group].result(DEADLINE_S).state is ConsumerGroupState.EMPTY


def test_a_group_is_deleted_once_its_member_is_gone(admin: Any, member: tuple[str, Any]) -> None:
    group, consumer = member
    assert code(admin.delete_consumer_groups([group])[group]) == "NON_EMPTY_GROUP"
    consumer.close()
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    assert code(admin.delete_consumer_groups([group])[group]) == "GROUP_ID_NOT_FOUND"


def test_offsets_of_a_group_are_listed_and_changed_once_its_member_is_gone(
    admin: Any, member: tuple[str, Any], topic: str
) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    def request(offset: int | None = None) -> Any:
        place = TopicPartition(topic, 0) if offset is None else TopicPartition(topic, 0, offset)
        return ConsumerGroupTopicPartitions(group, [place])

    def listed() -> int:
        found = admin.list_consumer_group_offsets([request()])[group].result(DEADLINE_S)
        return int(found.topic_partitions[0].offset)

    group, consumer = member
    assert listed() == 1
    changed = admin.alter_consumer_group_offsets([request(0)])[group]
    try:
        (place,) = changed.result(DEADLINE_S).topic_partitions
        refused = place.error.name()
    except KafkaException as error:
        refused = error.args[0].name()
    assert refused == "UNKNOWN_MEMBER_ID"
    assert listed() == 1
    consumer.close()
    admin.alter_consumer_group_offsets([request(0)])[group].result(DEADLINE_S)
    assert listed() == 0


def test_what_is_only_validated_is_not_done(admin: Any, topic: str) -> None:
    from confluent_kafka.admin import NewPartitions, NewTopic

    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(DEADLINE_S)
    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    grown = admin.create_partitions([NewPartitions(topic, 3)], validate_only=True)
    grown[topic].result(DEADLINE_S)
    assert len(admin.list_topics(topic, DEADLINE_S).topics[topic].partitions) == 1
    fewer = admin.create_partitions([NewPartitions(topic, 1)])[topic]
    assert code(fewer) == "INVALID_PARTITIONS"


def test_of_several_topics_each_has_its_own_outcome(admin: Any, topic: str) -> None:
    from confluent_kafka.admin import NewTopic

    names = [topic, "bad name", f"{topic}-too"]
    created = admin.create_topics([NewTopic(name, 1, 1) for name in names])
    created[names[0]].result(DEADLINE_S)
    assert code(created[names[1]]) == "TOPIC_EXCEPTION"
    created[names[2]].result(DEADLINE_S)
    deleted = admin.delete_topics([*names[::2], "missing"])
    for name in names[::2]:
        deleted[name].result(DEADLINE_S)
    assert code(deleted["missing"]) == "UNKNOWN_TOPIC_OR_PART"
