"""Every field of an answer, not only the ones that most clients look at."""

import logging

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.partitions import log_manager
from fencelog.broker.partitions.opening import Replica
from fencelog.errors import CorruptionError, ErrorCode, ExhaustedError, StorageError
from fencelog.log.config import LogConfig
from fencelog.types import TopicId, TopicPartition
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from fencelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from fencelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from fencelog.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.support.groups import FAST, Member
from tests.support.node import Peer, World

TOPICS = ("a", "b")
WAS_WRITTEN = {("a", 0): 10, ("a", 1): 11, ("b", 1): 12}


@pytest.mark.parametrize(
    ("version", "named", "described"),
    [(0, [], TOPICS), (0, ["b"], ("b",)), (1, [], ()), (1, None, TOPICS), (12, ["b"], ("b",))],
)
async def test_an_empty_list_of_topics_means_all_in_version_0_and_none_from_1_on(
    world: World, version: int, named: list[str] | None, described: tuple[str, ...]
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        for topic in TOPICS:
            await peer.create_topic(topic)
        topics = None if named is None else [MetadataRequestTopic(name=name) for name in named]
        answer = await peer.ask(MetadataRequest(topics=topics), version, MetadataResponse)
        assert tuple(topic.name for topic in answer.topics) == described


async def test_the_coordinator_of_an_unknown_kind_of_key_is_nobody(world: World) -> None:
    text = "key type 7 is not supported"
    async with world.node() as node, Peer.of(node) as peer:
        request = FindCoordinatorRequest(key="k", key_type=7, coordinator_keys=["k"])
        nobody = FindCoordinatorResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=text, node_id=-1, port=-1
        )
        assert await peer.ask(request, 3, FindCoordinatorResponse) == nobody
        answer = await peer.ask(request, 4, FindCoordinatorResponse)
        assert answer.coordinators == [
            Coordinator(
                key="k",
                node_id=-1,
                host="",
                port=-1,
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=text,
            )
        ]


async def test_a_topic_that_is_refused_has_its_name_and_a_reason(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        asked = CreatableTopic(name="t", num_partitions=1, replication_factor=3)
        answer = await peer.ask(CreateTopicsRequest(topics=[asked]), 7, CreateTopicsResponse)
        assert answer.topics == [
            CreatableTopicResult(
                name="t",
                error_code=ErrorCode.INVALID_REPLICATION_FACTOR,
                error_message="topic t: the replication factor must be 1, not 3: there is one "
                "broker",
            )
        ]


async def test_a_sync_names_the_protocol_and_must_name_the_same(world: World) -> None:
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        member = Member(peer)
        await member.join()

        def sync(kind: str, name: str) -> SyncGroupRequest:
            share = SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"all")
            return SyncGroupRequest(
                group_id="g",
                generation_id=member.generation,
                member_id=member.member_id,
                protocol_type=kind,
                protocol_name=name,
                assignments=[share],
            )

        for other in (sync("connect", "range"), sync("consumer", "roundrobin")):
            refused = await peer.ask(other, 5, SyncGroupResponse)
            assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await peer.ask(sync("consumer", "range"), 5, SyncGroupResponse) == SyncGroupResponse(
            protocol_type="consumer", protocol_name="range", assignment=b"all"
        )


async def commit(peer: Peer) -> None:
    """Commit offsets of several partitions of two topics."""
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=offset + 100,
                    committed_metadata=f"{topic}{index}",
                )
                for (topic, index), offset in WAS_WRITTEN.items()
                if topic == name
            ],
        )
        for name in TOPICS
    ]
    request = OffsetCommitRequest(group_id="g", topics=topics)
    answer = await peer.ask(request, 8, OffsetCommitResponse)
    assert [(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions]
    assert not any(each.error_code for topic in answer.topics for each in topic.partitions)


async def test_offsets_come_with_their_topic_partition_epoch_and_metadata(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        for topic in TOPICS:
            await peer.create_topic(topic, 2)
        await commit(peer)
        one = await peer.ask(OffsetFetchRequest(group_id="g", topics=None), 7, OffsetFetchResponse)
        assert one.topics == [
            OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=offset + 100,
                        metadata=f"{topic}{index}",
                    )
                    for (topic, index), offset in WAS_WRITTEN.items()
                    if topic == name
                ],
            )
            for name in TOPICS
        ]
        groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
        many = await peer.ask(OffsetFetchRequest(groups=groups), 8, OffsetFetchResponse)
        (group,) = many.groups
        assert (group.group_id, group.error_code) == ("g", ErrorCode.NONE)
        assert group.topics == [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        **{name: getattr(each, name) for name in each.__slots__}
                    )
                    for each in topic.partitions
                ],
            )
            for topic in one.topics
        ]


async def test_each_deleted_offset_is_answered_under_its_topic(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        for topic in TOPICS:
            await peer.create_topic(topic, 2)
        await commit(peer)
        topics = [
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in (1, 0)],
            )
            for name in reversed(TOPICS)
        ]
        request = OffsetDeleteRequest(group_id="g", topics=topics)
        answer = await peer.ask(request, 0, OffsetDeleteResponse)
        assert answer == OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    name=name,
                    partitions=[OffsetDeleteResponsePartition(partition_index=n) for n in (1, 0)],
                )
                for name in reversed(TOPICS)
            ]
        )
        left = await peer.ask(OffsetFetchRequest(group_id="g", topics=None), 7, OffsetFetchResponse)
        assert left.topics == []


# --- what is stored, and what is told


@pytest.mark.parametrize(
    ("created", "stored"),
    [
        (range(10_000), "[[0, 9999]]"),
        ([4, 2, 1], "[[1, 2], [4, 4]]"),
        ([0, 2], "[[0, 0], [2, 2]]"),
        ([], "[]"),
    ],
)
def test_created_partitions_are_stored_as_ranges(created: list[int], stored: str) -> None:
    topic = Topic(
        name="t",
        topic_id=TopicId(bytes(16)),
        partitions=10_000,
        settings={},
        created=frozenset(created),
    )
    value = topic.encode()
    assert f'"created": {stored},' in value.decode()
    assert Topic.decode("t", value) == topic


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("kind", [CorruptionError, StorageError, ExhaustedError])
async def test_a_partition_that_goes_offline_is_logged_but_not_one_that_is_refused(
    world: World,
    kind: type[Exception],
    exists: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def open_files(*_: object) -> None:
        raise kind("a test")

    async def created(_: object) -> None:
        pass

    async with world.node() as node:
        monkeypatch.setattr(log_manager, "open_files", open_files)
        name = TopicPartition("t", 0)
        replica = Replica(name, TopicId(bytes(16)), LogConfig(), exists=exists)
        with caplog.at_level(logging.ERROR):
            await node.broker.logs.open([replica], created)
        assert str(node.broker.logs.offline()[name]) == "a test"
        is_refusal = kind is ExhaustedError and not exists
        assert ("t-0 is offline: a test" in caplog.text) != is_refusal
        node.broker.logs._offline.clear()
