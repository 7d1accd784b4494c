"""What a client asks of a real broker, and what it returns of the answers."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

import fencelog.aio
from fencelog.client.blocking import Client
from fencelog.client.cluster import Cluster, ClusterView
from fencelog.client.model import (
    BrokerDescription,
    GroupDescription,
    GroupListing,
    GroupOffset,
    PartitionDescription,
)
from fencelog.errors import ErrorCode, FencelogError, RequestError
from fencelog.testing import LocalBroker
from fencelog.types import Instant, TopicPartition

TRANSACTIONAL_ID = "x"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with closing(LocalBroker(tmp_path_factory.mktemp("requests"))) as broker:
        yield broker.start()


@pytest.fixture
def client(local: LocalBroker) -> Iterator[Client]:
    """One that has asked nothing yet."""
    with Client(local.bootstrap, request_timeout_s=10) as made:
        yield made


def refused(code: ErrorCode, text: str) -> "pytest.RaisesExc[RequestError]":
    return pytest.raises(RequestError, match=text, check=lambda error: error.code is code)


def test_a_topic_is_created_with_its_partitions_and_configs(client: Client, topic: str) -> None:
    client.create_topic(topic, 3, {"retention.ms": "77"})
    found = client.describe_topic(topic)
    assert (found.name, found.internal, found.configs["retention.ms"]) == (topic, False, "77")
    assert found.partitions == tuple(
        PartitionDescription(
            partition=number, leader=1, leader_epoch=each.leader_epoch, replicas=(1,), in_sync=(1,)
        )
        for number, each in zip(range(3), found.partitions, strict=True)
    )
    assert client.topics() == sorted(client.topics(), key=lambda each: each.name)
    assert found.topic_id in {each.topic_id for each in client.topics()}
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"creation of topic {topic}"):
        client.create_topic(topic)
    with refused(ErrorCode.INVALID_CONFIG, "other"):
        client.create_topic("other", 1, {"retention.ms": "never"})


def test_a_topic_that_is_created_or_deleted_is_looked_up_again(client: Client, topic: str) -> None:
    with pytest.raises(RequestError):
        client.partitions([topic])
    client.create_topic(topic, 2)
    assert client.partitions([topic]) == {topic: [0, 1]}
    client.delete_topic(topic)
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist"):
        client.describe_topic(topic)
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"deletion of topic {topic}"):
        client.delete_topic(topic)


def test_partitions_are_asked_for_again_only_where_one_is_missing(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, 2)
    asked: list[list[str]] = []
    metadata = Cluster.metadata

    async def counted(cluster: Cluster, topics: list[str], deadline: Instant) -> ClusterView:
        asked.append(topics)
        return await metadata(cluster, topics, deadline)

    monkeypatch.setattr(Cluster, "metadata", counted)

    def count(highest: int) -> int:
        return client.run(lambda cluster: cluster.partition_counts([topic], highest))[topic]

    assert count(-1) == 2
    del asked[:]
    assert [count(0), count(1)] == [2, 2]
    assert asked == []
    assert count(2) == 2
    assert asked == [[topic]]


def test_configs_are_changed_alone_and_reset_by_none(client: Client, topic: str) -> None:
    client.create_topic(topic, 1, {"retention.ms": "77", "segment.bytes": "2000000"})
    before = client.describe_topic(topic).configs
    client.configure_topic(topic, {"retention.ms": None, "cleanup.policy": "compact"})
    after = client.describe_topic(topic).configs
    assert after["retention.ms"] not in {None, "77"}
    assert after["cleanup.policy"] == "compact"
    changed = {"retention.ms", "cleanup.policy"}
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    with refused(ErrorCode.INVALID_CONFIG, f"configs of {topic}"):
        client.configure_topic(topic, {"retention.ms": "never"})


def test_partitions_that_were_added_are_written_to_at_once(client: Client, topic: str) -> None:
    client.create_topic(topic)
    with client.producer() as producer:
        producer.send(topic, b"v")
        client.add_partitions(topic, 3)
        producer.send(topic, b"v", partition=2)
    assert client.offsets([TopicPartition(topic, 2)], "latest") == {TopicPartition(topic, 2): 1}
    with refused(ErrorCode.INVALID_PARTITIONS, f"partitions of {topic}"):
        client.add_partitions(topic, 2)


def test_the_cluster_has_its_id_its_broker_and_the_brokers_configs(
    client: Client, local: LocalBroker
) -> None:
    found = client.cluster()
    host, _, port = local.bootstrap.partition(":")
    assert found.brokers == (BrokerDescription(node_id=1, host=host, port=int(port)),)
    assert found.controller_id == 1
    assert found.cluster_id
    assert client.broker_configs(1)["broker.id"] == "1"


def test_offsets_are_the_first_the_last_and_the_one_of_a_time(client: Client, topic: str) -> None:
    client.create_topic(topic, 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with client.producer() as producer:
        for number in range(5):
            producer.send(topic, b"v", partition=0, timestamp_ms=1_000 + number)
        producer.send(topic, b"v", partition=1, timestamp_ms=1_000)
    assert client.delete_records({first: 2, second: -1}) == {first: 2, second: 1}
    assert client.offsets([first, second], "earliest") == {first: 2, second: 1}
    assert client.offsets([first, second], "latest") == {first: 5, second: 1}
    assert client.offsets([first, second], 1_003) == {first: 3, second: -1}
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{topic}-0 before 9"):
        client.delete_records({first: 9})
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "has no partition 2.* has 2 partitions"):
        client.offsets([TopicPartition(topic, 2)], "latest")


def test_the_end_of_a_topic_depends_on_the_isolation(client: Client, topic: str) -> None:  # F6
    client.create_topic(topic)
    place = TopicPartition(topic, 0)
    with client.producer(transactional_id=TRANSACTIONAL_ID) as producer:
        producer.begin()
        producer.send(topic, b"v")
        producer.flush()
        assert client.offsets([place], "latest") == {place: 0}
        assert client.offsets([place], "latest", "replicated") == {place: 1}
        listed = {each.transactional_id: each.state for each in client.list_transactions()}
        assert listed[TRANSACTIONAL_ID] == "Ongoing"
        found = client.describe_transaction(TRANSACTIONAL_ID)
        assert (found.state, found.partitions) == ("Ongoing", (place,))
        (known,) = client.describe_producers([place])[place]
        assert (known.producer_id, known.start_offset) == (found.producer_id, 0)
    assert [each.value for each in client.fetch(place, 0, 2, isolation="replicated")] == [b"v"]
    assert list(client.fetch(place, 0, 2)) == []


def test_a_groups_offsets_are_committed_listed_and_deleted(client: Client, topic: str) -> None:
    group = f"of-{topic}"
    client.create_topic(topic, 2)
    client.commit_offsets(group, {})
    client.commit_offsets(group, {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 8})
    assert client.committed_offsets(group) == {
        TopicPartition(topic, 0): 7,
        TopicPartition(topic, 1): 8,
    }
    listed = GroupListing(group=group, state="Empty", protocol_type="")
    assert listed in client.list_groups()
    assert client.describe_group(group) == GroupDescription(
        group=group,
        state="Empty",
        protocol_type="",
        protocol="",
        members=(),
        offsets={
            TopicPartition(topic, 0): GroupOffset(committed=7),
            TopicPartition(topic, 1): GroupOffset(committed=8),
        },
    )
    client.delete_group(group)
    assert listed not in client.list_groups()
    with refused(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}"):
        client.describe_group(group)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND, f"deletion of group {group}"):
        client.delete_group(group)


def test_a_number_that_does_not_fit_into_its_field_is_refused_here(
    client: Client, topic: str
) -> None:
    client.create_topic(topic)
    first = TopicPartition(topic, 0)
    with pytest.raises(ValueError, match=r"CreateTopicsRequest: a number is out of range: .*2147"):
        client.create_topic("other", 1 << 40)
    with pytest.raises(ValueError, match=r"OffsetCommitRequest: a number is out of range"):
        client.commit_offsets("g", {first: 1 << 70})
    for offset in (-1, 1 << 63):
        with pytest.raises(ValueError, match=rf"{topic}-0: {offset} is no offset"):
            next(client.fetch(first, offset))
    assert list(client.fetch(first, 0, 0)) == []


def test_a_client_that_is_closed_opens_no_connection_any_more(local: LocalBroker) -> None:
    async def main() -> None:
        log = await fencelog.aio.connect(local.bootstrap)
        log.cluster.disconnect("cut")
        # Each of them waits for the one connection that is being opened.
        asking = [asyncio.create_task(log.topics()) for _ in range(3)]
        await asyncio.sleep(0)
        await log.close()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for answer in (*answers, *await asyncio.gather(log.topics(), return_exceptions=True)):
            assert isinstance(answer, FencelogError)
            assert str(answer) == "this client is closed; create a new one"
        assert log.cluster._connections == {}

    asyncio.run(main())


def test_a_producer_of_a_closed_client_says_so(local: LocalBroker, topic: str) -> None:
    async def main() -> None:
        log = await fencelog.aio.connect(local.bootstrap)
        await log.create_topic(topic)
        producer = await log.producer()
        await producer.send(topic, b"in time")
        await producer.flush()
        await log.close()
        await producer.send(topic, b"late")
        with pytest.raises(RequestError, match=f"{topic}-0 failed: this client is closed; create"):
            await producer.flush()
        await producer.close()

    asyncio.run(main())
