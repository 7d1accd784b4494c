"""What clients are told by a broker of a cluster: leaders, coordinators, and who leads instead."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fencelog.broker.handlers.cluster import coordinator_key
from fencelog.broker.metadata.catalog import (
    GROUP_TOPIC,
    OWNERSHIP_TOPIC,
    TRANSACTION_TOPIC,
    VERSIONED_TOPIC,
)
from fencelog.broker.metadata.controller import NewTopic
from fencelog.coordination.controller.model import NO_LEADER, PartitionState, Registration
from fencelog.coordination.shard import partition_for
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.ownership import Owner
from fencelog.node import Node
from fencelog.types import LeaderEpoch, NodeId, Offset, TopicPartition
from fencelog.wire import hot
from fencelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from fencelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from fencelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from fencelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from fencelog.wire.messages.own import OwnRequest, OwnResource, OwnResponse
from fencelog.wire.own import owned_id, producers_key, transactional_id
from tests.support.brokers import HERE, THERE, FakePlacement
from tests.support.node import Peer, World, batch

GONE = NodeId(3)
FETCH, PRODUCE = 1, 0


def broker(node_id: NodeId, rack: str | None) -> Registration:
    return Registration(
        node_id=node_id,
        host=f"broker-{node_id}",
        port=9000 + node_id,
        incarnation="life",
        directory="d",
        rack=rack,
    )


BROKERS = [broker(HERE, "a"), broker(THERE, None)]
ELSEWHERE = hot.CurrentLeader(THERE, 7)
ENDPOINT = hot.NodeEndpoint(THERE, "broker-2", 9002, None)


@asynccontextmanager
async def one_of_two(
    folder: Path, topic: str = "t", partitions: int = 2
) -> AsyncIterator[tuple[Node, FakePlacement, Peer]]:
    """A node that believes to be broker 1 of two; ``t-0`` is its own, ``t-1`` is led elsewhere."""
    async with World(folder).node() as node, Peer.of(node) as peer:
        await peer.create_topic(topic, partitions=partitions)
        placement = FakePlacement(HERE, HERE, BROKERS)
        node.broker.placement = placement
        found = node.broker.catalog.get(topic)
        assert found is not None
        placement.states[found.topic_id, 1] = PartitionState(
            (THERE, HERE, GONE), THERE, LeaderEpoch(7), (THERE, HERE)
        )
        yield node, placement, peer


def follow(node: Node, index: int = 1) -> None:
    partition = node.broker.logs.get("t", index)
    assert partition is not None
    partition.read_error = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_metadata_has_brokers_racks_leaders_and_the_isr(tmp_path: Path) -> None:
    async with one_of_two(tmp_path) as (_, placement, peer):
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        answer = await peer.ask(request, 12, MetadataResponse)
        assert [(b.node_id, b.host, b.port, b.rack) for b in answer.brokers] == [
            (1, "broker-1", 9001, "a"),
            (2, "broker-2", 9002, None),
        ]
        assert answer.controller_id == HERE
        own, other = answer.topics[0].partitions
        assert (own.leader_id, own.error_code) == (HERE, 0)
        assert (other.leader_id, other.leader_epoch, other.error_code) == (THERE, 7, 0)
        assert (other.replica_nodes, other.isr_nodes) == ([2, 1, 3], [2, 1])
        assert other.offline_replicas == [GONE]
        placement._brokers = BROKERS[:1]  # the leader is gone, and nobody elected yet
        answer = await peer.ask(request, 12, MetadataResponse)
        other = answer.topics[0].partitions[1]
        assert (other.leader_id, other.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        assert other.leader_epoch == 7


async def test_the_cluster_is_described_with_all_brokers(tmp_path: Path) -> None:
    async with one_of_two(tmp_path) as (_, placement, peer):
        placement.controller_id = THERE
        answer = await peer.ask(DescribeClusterRequest(endpoint_type=1), 1, DescribeClusterResponse)
        assert answer.controller_id == THERE
        assert [(b.broker_id, b.host, b.rack) for b in answer.brokers] == [
            (1, "broker-1", "a"),
            (2, "broker-2", None),
        ]


def test_the_key_of_a_coordinator() -> None:
    assert coordinator_key(0, "g") == (GROUP_TOPIC, "g")
    assert coordinator_key(1, "orders") == (TRANSACTION_TOPIC, "orders")
    claimed = transactional_id("app")
    assert coordinator_key(1, claimed) == (VERSIONED_TOPIC, claimed)
    assert coordinator_key(100, "g") == (OWNERSHIP_TOPIC, "g")
    # All epochs of a name have one coordinator.
    key = producers_key(None, "orders")
    owned = {coordinator_key(1, owned_id(key, epoch)) for epoch in (1, 2)}
    assert len(owned) == 1


@pytest.mark.parametrize("version", [3, 4])
async def test_a_coordinator_is_the_leader_of_its_partition(tmp_path: Path, version: int) -> None:
    async with one_of_two(tmp_path) as (node, placement, peer):

        async def ask() -> tuple[int, str, int]:
            keys = {"key": "g"} if version < 4 else {"coordinator_keys": ["g"]}
            request = FindCoordinatorRequest(key_type=0, **keys)  # type: ignore[arg-type]
            answer = await peer.ask(request, version, FindCoordinatorResponse)
            one = answer if version < 4 else answer.coordinators[0]
            return one.node_id, one.host, one.error_code

        # The topic is created when it is first used.
        assert await ask() == (HERE, "broker-1", 0)
        topic = node.broker.catalog.get(GROUP_TOPIC)
        assert topic is not None
        index = partition_for("g", topic.partitions)
        states = placement.states
        states[topic.topic_id, index] = PartitionState((THERE,), THERE, LeaderEpoch(1), (THERE,))
        assert await ask() == (THERE, "broker-2", 0)
        states[topic.topic_id, index] = PartitionState((THERE,), NO_LEADER, LeaderEpoch(2), ())
        assert await ask() == (-1, "", ErrorCode.COORDINATOR_NOT_AVAILABLE)


@pytest.mark.parametrize("version", [9, 10, 12])
@pytest.mark.parametrize("is_here", [True, False])
async def test_a_produce_names_the_leader_instead(
    tmp_path: Path, version: int, *, is_here: bool
) -> None:  # KIP-951
    async with one_of_two(tmp_path) as (node, _, peer):
        if is_here:
            follow(node)
            partition = node.broker.logs.get("t", 1)
            assert partition is not None
            partition.log.refuse_appends("it follows")
        else:
            del node.broker.logs._led["t", 1]  # type: ignore[arg-type]
        data = batch("a", producer_id=5, epoch=0, sequence=0, transactional=is_here)
        body = b"".join(
            bytes(each)
            for each in hot.write_produce_request(version, None, -1, 1000, [("t", [(1, data)])])
        )
        peer.send(PRODUCE, version, body)
        answer = hot.read_produce_response(await peer.answer(PRODUCE, version), version)
        ((_, (result,)),) = answer.topics
        assert result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert result.current_leader == (ELSEWHERE if version >= 10 else None)
        assert answer.endpoints == ((ENDPOINT,) if version >= 10 else ())


async def fetched(
    peer: Peer, version: int, *, epoch: int = -1, replica_id: int = -1, wait_ms: int = 0
) -> hot.FetchResponse:
    requested = hot.FetchPartition(1, epoch, 0, -1, 1000)
    topics = [hot.FetchTopic("t", None, [requested])]
    request = hot.FetchRequest(replica_id, wait_ms, 1, 1000, 0, 0, -1, topics)
    peer.send(FETCH, version, hot.write_fetch_request(version, request))
    return hot.read_fetch_response(await peer.answer(FETCH, version), version)


def only(answer: hot.FetchResponse) -> hot.FetchedPartition:
    ((partition,),) = (topic.partitions for topic in answer.topics)
    return partition


@pytest.mark.parametrize("version", [11, 12])
async def test_a_fetch_names_the_leader_instead(tmp_path: Path, version: int) -> None:  # KIP-951
    async with one_of_two(tmp_path) as (node, _, peer):
        follow(node)
        found = only(await fetched(peer, version, wait_ms=60_000))
        assert found.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found.current_leader == (ELSEWHERE if version >= 12 else None)


async def test_a_fetch_by_id_says_where_the_leader_is(tmp_path: Path) -> None:  # KIP-951
    async with one_of_two(tmp_path) as (node, _, peer):
        follow(node)
        topic = node.broker.catalog.get("t")
        assert topic is not None
        requested = [hot.FetchTopic(None, topic.topic_id, [hot.FetchPartition(1, -1, 0, -1, 1000)])]
        request = hot.FetchRequest(-1, 0, 1, 1000, 0, 0, -1, requested)
        peer.send(FETCH, 16, hot.write_fetch_request(16, request))
        answer = hot.read_fetch_response(await peer.answer(FETCH, 16), 16)
        assert only(answer).current_leader == ELSEWHERE
        assert answer.endpoints == (ENDPOINT,)


async def test_a_fetch_waits_for_a_leader_that_does_not_serve_yet(tmp_path: Path) -> None:  # F8
    async with one_of_two(tmp_path) as (node, _, peer):
        partition = node.broker.logs.get("t", 1)
        assert partition is not None
        partition.read_error = ErrorCode.OFFSET_NOT_AVAILABLE
        found = only(await fetched(peer, 12, wait_ms=1))
        assert (found.error, found.high_watermark) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        asked = ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsPartition(partition_index=1, timestamp=-1)]
                )
            ]
        )
        answer = await peer.ask(asked, 5, ListOffsetsResponse)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        partition.read_error = ErrorCode.NONE
        answer = await peer.ask(asked, 5, ListOffsetsResponse)
        assert answer.topics[0].partitions[0].offset == 0


@pytest.mark.parametrize("version", [4, 12])
async def test_a_client_that_says_it_is_a_replica_gets_nothing(
    tmp_path: Path, version: int
) -> None:
    """CVE-2018-1288 cannot happen: brokers have a request of their own."""
    async with World(tmp_path).node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        assert (await peer.produce("t", batch("a"), partition=1)).error is ErrorCode.NONE
        answer = await fetched(peer, version, replica_id=1)
        assert only(answer).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert not only(answer).records


async def test_a_topic_that_cannot_be_created_for_a_client_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_of_two(tmp_path) as (node, _, peer):

        async def create(name: str, *_: object) -> None:
            raise RequestError(
                ErrorCode.INVALID_REPLICATION_FACTOR, f"topic {name}: 3 replicas, 2 brokers"
            )

        node.broker.controller.create_topic = create  # type: ignore[method-assign, assignment]
        for name in ("a", "b"):
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
            (topic,) = (await peer.ask(request, 12, MetadataResponse)).topics
            assert topic.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        told = [each.message for each in caplog.records if "cannot be created" in each.message]
        assert told == [
            "a client asks for topic a, which cannot be created: topic a: 3 replicas, 2 brokers"
        ]


async def test_a_topic_is_created_with_the_replicas_that_are_asked_for(tmp_path: Path) -> None:
    async with one_of_two(tmp_path) as (node, _, peer):
        asked: list[NewTopic] = []

        async def create(requested: Sequence[NewTopic]) -> list[RequestError]:
            asked.extend(requested)
            return [RequestError(ErrorCode.POLICY_VIOLATION, "no")] * len(requested)

        node.broker.controller.create_topics = create  # type: ignore[method-assign, assignment]
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=[2, 1]) for index in (0, 1)
        ]
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name="a", num_partitions=-1, replication_factor=-1, assignments=assignments
                ),
                CreatableTopic(name="b", num_partitions=3, replication_factor=2),
            ],
            timeout_ms=1000,
        )
        await peer.ask(request, 7, CreateTopicsResponse)
        assert [(each.partitions, each.replication_factor, each.assignment) for each in asked] == [
            (2, -1, [[2, 1], [2, 1]]),
            (3, 2, []),
        ]


async def test_a_follower_describes_no_producers(tmp_path: Path) -> None:
    async with one_of_two(tmp_path) as (node, _, peer):
        follow(node)
        request = DescribeProducersRequest(
            topics=[TopicRequest(name="t", partition_indexes=[0, 1])]
        )
        answer = await peer.ask(request, 0, DescribeProducersResponse)
        errors = [each.error_code for each in answer.topics[0].partitions]
        assert errors == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("is_here", [True, False])
async def test_a_partition_that_is_led_elsewhere_may_be_claimed(
    tmp_path: Path, *, is_here: bool
) -> None:  # O8
    async with one_of_two(tmp_path) as (node, _, peer):
        follow(node)
        if not is_here:
            del node.broker.logs._partitions["t", 1]  # type: ignore[arg-type]
        told: list[TopicPartition] = []

        async def own(partition: TopicPartition, owner: Owner) -> Offset:
            del owner
            told.append(partition)
            return Offset(41)

        node.ownership_sender._leaders.own_partition = own  # type: ignore[method-assign]
        request = OwnRequest(
            group=None, resources=[OwnResource(resource="t/1")], session_timeout_ms=10_000
        )
        answer = await peer.ask(request, 0, OwnResponse)
        assert (answer.error_code, told) == (0, [TopicPartition("t", 1)])
        assert answer.resources[0].fence_offset == 41
