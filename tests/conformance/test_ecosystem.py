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
