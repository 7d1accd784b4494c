"""The client goes where the newest leader is, and is told what a new leader took back."""

import pytest

from fencelog.client.blocking import Client
from fencelog.client.leaders import KnownLeaders
from fencelog.client.model import DataLossError, PartitionDescription, TopicDescription
from fencelog.errors import ErrorCode
from fencelog.types import TopicId, TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import CurrentLeader, NodeEndpoint, PartitionResult, write_produce_response
from fencelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from fencelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.test_reading import fetched, numbered

PLACE = TopicPartition("t", 0)
FIRST_ID, SECOND_ID = TopicId(bytes([1] * 16)), TopicId(bytes([2] * 16))


def told(leader: int, epoch: int, topic_id: TopicId = FIRST_ID) -> TopicDescription:
    partition = PartitionDescription(
        partition=0, leader=leader, leader_epoch=epoch, replicas=(1, 2), in_sync=(1,)
    )
    return TopicDescription(name="t", topic_id=topic_id, internal=False, partitions=(partition,))


def led(topic: TopicDescription) -> tuple[int, int]:
    (partition,) = topic.partitions
    return partition.leader, partition.leader_epoch


def test_older_metadata_is_not_believed() -> None:
    leaders = KnownLeaders()
    assert led(leaders.newest(told(1, 5))) == (1, 5)
    assert led(leaders.newest(told(2, 4))) == (1, 5)
    assert led(leaders.newest(told(2, 6))) == (2, 6)


def test_another_topic_of_the_name_begins_anew() -> None:
    leaders = KnownLeaders()
    leaders.newest(told(1, 5))
    assert led(leaders.newest(told(2, 0, SECOND_ID))) == (2, 0)


def test_metadata_without_epochs_is_all_there_is() -> None:
    leaders = KnownLeaders()
    leaders.newest(told(1, 5))
    assert led(leaders.newest(told(2, -1))) == (2, -1)


def test_a_leader_that_is_named_is_news_once() -> None:
    leaders = KnownLeaders()
    topic = leaders.newest(told(1, 5))
    assert leaders.learn(topic, 0, 2, 5) is None
    changed = leaders.learn(topic, 0, 2, 6)
    assert changed is not None
    assert led(changed) == (2, 6)
    assert leaders.learn(changed, 0, 2, 6) is None
    assert led(leaders.newest(told(1, 5))) == (2, 6)


def metadata(broker: FakeBroker, epoch: int) -> MetadataResponse:
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=1, leader_epoch=epoch, replica_nodes=[1], isr_nodes=[1]
    )
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.port)],
        cluster_id="fake",
        controller_id=1,
        topics=[MetadataResponseTopic(name="t", partitions=[partition])],
    )


def test_a_write_goes_to_the_leader_that_the_answer_names() -> None:  # KIP-951
    with FakeBroker() as old, FakeBroker() as new, Client(old.address) as client:
        old.next(ApiKey.METADATA, metadata(old, 3))
        moved = PartitionResult(
            0, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=CurrentLeader(2, 4)
        )
        endpoint = NodeEndpoint(2, "127.0.0.1", new.port)
        old.script[ApiKey.PRODUCE].append(
            lambda version, _: write_produce_response(
                version, [("t", [moved])], endpoints=[endpoint]
            )
        )
        with client.producer(idempotent=False) as producer:
            producer.send("t", b"a", partition=0)
        assert (len(old.produced), len(new.produced)) == (0, 1)
        assert old.asked.count(ApiKey.METADATA) == 1
        assert ApiKey.METADATA not in new.asked


def appended_in(epoch: int, batch: bytes) -> bytes:
    """A batch as the leader of this epoch has stored it."""
    return batch[:12] + epoch.to_bytes(4, "big") + batch[16:]


@pytest.mark.parametrize(("end", "is_lost"), [(2, False), (1, True)])
def test_what_a_new_leader_took_back_is_told(end: int, *, is_lost: bool) -> None:  # F6
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.METADATA, metadata(broker, 3))
        broker.next(
            ApiKey.FETCH,
            fetched(appended_in(3, numbered(0, 2))),
            fetched(error=ErrorCode.FENCED_LEADER_EPOCH),
            fetched(appended_in(4, numbered(2, 1))),
        )
        broker.next(ApiKey.METADATA, metadata(broker, 4))
        epoch_end = EpochEndOffset(partition=0, leader_epoch=3, end_offset=end)
        broker.next(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            OffsetForLeaderEpochResponse(
                topics=[OffsetForLeaderTopicResult(topic="t", partitions=[epoch_end])]
            ),
        )
        records = client.fetch(PLACE, 0, 3, isolation="tail")
        assert [next(records).value, next(records).value] == [b"0", b"1"]
        if is_lost:
            with pytest.raises(DataLossError, match="taken back what followed offset 1"):
                next(records)
        else:
            assert next(records).value == b"2"
