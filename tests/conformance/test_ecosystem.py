"""What tools and frameworks of Kafka's ecosystem set and ask for, through stock clients."""

from typing import Any

import pytest

from tests.conformance.test_admin_and_offsets import confluent_admin
from tests.support.broker import BrokerProcess
from tests.support.stock import DEADLINE_S, Confluent, StockClient, ToSend

MEANINGLESS = {
    "remote.storage.enable": "false",
    "local.retention.ms": "-2",
    "local.retention.bytes": "-2",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "3",
    "leader.replication.throttled.replicas": "",
    "follower.replication.throttled.replicas": "",
    "unclean.leader.election.enable": "false",
    "preallocate": "false",
    "flush.ms": "9223372036854775807",
}
"""Topic settings that tools send along with their default."""


def create(address: str, topic: str, **config: str) -> None:
    from confluent_kafka.admin import NewTopic

    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = confluent_admin(address)  # kept until the answer is there
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(DEADLINE_S)


def described(address: str, kind: Any, name: str) -> dict[str, Any]:
    from confluent_kafka.admin import ConfigResource

    resource = ConfigResource(kind, name)
    admin = confluent_admin(address)
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return found


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_with_a_codec_takes_every_producers_and_reads_back(
    shared_broker: BrokerProcess, client: StockClient, topic: str, codec: str
) -> None:
    create(shared_broker.address, topic, compression_type=codec)
    for sent in ("none", "gzip", "lz4"):
        records = [ToSend(f"{sent}-{number}".encode()) for number in range(30)]
        client.write(shared_broker.address, topic, records, codec=sent, idempotent=True)
    seen = [one.value.decode() for one in client.read(shared_broker.address, topic) if one.value]
    assert seen == [f"{sent}-{n}" for sent in ("none", "gzip", "lz4") for n in range(30)]


def test_a_topic_with_too_few_replicas_refuses_acks_all_only(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from confluent_kafka import KafkaError, Producer

    create(shared_broker.address, topic, min_insync_replicas="2")
    errors = []
    for acks in ("all", "1"):
        producer = Producer(
            {"bootstrap.servers": shared_broker.address, "acks": acks, "retries": 0}
        )
        producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(DEADLINE_S)
    assert errors[0].code() == KafkaError.NOT_ENOUGH_REPLICAS
    assert errors[1] is None
    assert [seen.value for seen in Confluent().read(shared_broker.address, topic)] == [b"x"]


def test_a_topic_is_created_with_settings_that_mean_nothing_here(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from confluent_kafka.admin import ResourceType

    create(shared_broker.address, topic, **MEANINGLESS)
    told = described(shared_broker.address, ResourceType.TOPIC, topic)
    assert {key: told[key].value for key in MEANINGLESS} == MEANINGLESS


def test_confluent_is_told_that_there_are_no_acls_and_everything_is_authorized(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    create(shared_broker.address, topic)
    admin = confluent_admin(shared_broker.address)
    every = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    with pytest.raises(KafkaException) as refused:
        admin.delete_acls([every])[every].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED
    # The client takes the refusal of a description for an empty one.
    assert admin.describe_acls(every).result(DEADLINE_S) == []
    topics = admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
    cluster = admin.describe_cluster(include_authorized_operations=True).result(DEADLINE_S)
    operations = {each.name for each in topics[topic].result(DEADLINE_S).authorized_operations}
    assert operations == {
        *("READ", "WRITE", "CREATE", "DELETE", "ALTER"),
        *("DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    }
    assert "CLUSTER_ACTION" in {each.name for each in cluster.authorized_operations}
    assert admin.describe_user_scram_credentials().result(DEADLINE_S) == {}


def test_kafka_python_lists_what_there_is_and_what_there_is_not(
    shared_broker: BrokerProcess, topic: str
) -> None:
    from kafka.admin import KafkaAdminClient

    create(shared_broker.address, topic)
    Confluent().write(shared_broker.address, topic, [ToSend(b"x" * 1000)])
    admin = KafkaAdminClient(bootstrap_servers=shared_broker.address)
    try:
        (directory,) = admin.describe_log_dirs([topic])[0]["log_dirs"]
        (found,) = directory["topics"]
        assert directory["log_dir"] == str(shared_broker.data_dir)
        assert found["name"] == topic
        assert 1000 < found["partitions"][0]["partition_size"] < 2000
        assert admin.list_partition_reassignments() == {}
        assert admin.describe_user_scram_credentials() == {}
        listed = admin.list_config_resources(["TOPIC", "BROKER"])
        assert topic in listed["topic"]
        assert listed["broker"] == ["1"]
        groups = admin.describe_groups(["no-such-group"], include_authorized_operations=True)
        assert list(groups) == ["no-such-group"]
    finally:
        admin.close()


def test_a_user_interface_finds_the_brokers_settings(shared_broker: BrokerProcess) -> None:
    from confluent_kafka.admin import ResourceType

    told = described(shared_broker.address, ResourceType.BROKER, "1")
    names = ("broker.id", "log.dirs", "message.max.bytes", "auto.create.topics.enable")
    more = ("delete.topic.enable", "process.roles", "offsets.topic.num.partitions", "listeners")
    assert all(told[name].value for name in (*names, *more))
