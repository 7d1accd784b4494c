"""What administrators' tools ask of a broker without an authorizer, quotas, or a second replica."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from fencelog.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from fencelog.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from fencelog.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from fencelog.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from fencelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from fencelog.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from fencelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from fencelog.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from fencelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from fencelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.support.node import Peer, World, batch
from tests.unit.broker.test_configs import BROKER, SET, TOPIC, changed, describe

BROKER_LOGGERS, CLIENT_METRICS, GROUP = 8, 16, 32
NOT_ASKED = -(1 << 31)
# Bits of AclOperation: 3 READ to 12 IDEMPOTENT_WRITE, as Kafka's AclEntry.supportedOperations.
OF_TOPIC = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
OF_GROUP = sum(1 << bit for bit in (3, 6, 8, 10, 11))
OF_CLUSTER = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


async def commit(peer: Peer, group: str) -> None:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    answer = await peer.ask(request, 8, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


async def sizes(peer: Peer, *topics: str) -> dict[tuple[str, int], int]:
    asked = [DescribableLogDirTopic(topic=each, partitions=[0, 1]) for each in topics]
    request = DescribeLogDirsRequest(topics=asked if topics else None)
    answer = await peer.ask(request, 5, DescribeLogDirsResponse)
    assert [one.log_dir for one in answer.results] == ["memory"]
    return {
        (topic.name, part.partition_index): part.partition_size
        for topic in answer.results[0].topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 3])
async def test_acls_are_disabled(world: World, version: int) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        described = await peer.ask(DescribeAclsRequest(), version, DescribeAclsResponse)
        creations = CreateAclsRequest(creations=[AclCreation(), AclCreation()])
        created = await peer.ask(creations, version, CreateAclsResponse)
        filters = DeleteAclsRequest(filters=[DeleteAclsFilter()])
        deleted = await peer.ask(filters, version, DeleteAclsResponse)
        answers = [described, *created.results, *deleted.filter_results]
        assert [one.error_code for one in answers] == [ErrorCode.SECURITY_DISABLED] * 4
        assert {one.error_message for one in answers} == {
            "No Authorizer is configured on the broker"
        }


async def test_every_operation_is_authorized_where_it_is_asked_for(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await commit(peer, "g")
        for is_asked in (True, False):
            metadata = await peer.ask(
                MetadataRequest(
                    topics=[MetadataRequestTopic(name="t")],
                    include_cluster_authorized_operations=is_asked,
                    include_topic_authorized_operations=is_asked,
                ),
                9,
                MetadataResponse,
            )
            cluster = await peer.ask(
                DescribeClusterRequest(include_cluster_authorized_operations=is_asked),
                2,
                DescribeClusterResponse,
            )
            groups = await peer.ask(
                DescribeGroupsRequest(groups=["g"], include_authorized_operations=is_asked),
                6,
                DescribeGroupsResponse,
            )
            told = [
                metadata.cluster_authorized_operations,
                metadata.topics[0].topic_authorized_operations,
                cluster.cluster_authorized_operations,
                groups.groups[0].authorized_operations,
            ]
            every = [OF_CLUSTER, OF_TOPIC, OF_CLUSTER, OF_GROUP]
            assert told == (every if is_asked else [NOT_ASKED] * 4)
            assert not cluster.brokers[0].is_fenced


async def test_an_unknown_group_is_an_error_from_version_6_on(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        found = {}
        for version in (5, 6):
            request = DescribeGroupsRequest(groups=["no"], include_authorized_operations=True)
            answer = await peer.ask(request, version, DescribeGroupsResponse)
            group = answer.groups[0]
            found[version] = (group.error_code, group.group_state, group.authorized_operations)
        assert found == {
            5: (ErrorCode.NONE, "Dead", OF_GROUP),
            6: (ErrorCode.GROUP_ID_NOT_FOUND, "Dead", NOT_ASKED),
        }


async def test_log_directories_have_the_size_of_each_partition(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2, segment_bytes="1024")
        await peer.create_topic("u")
        sent = [batch("x" * 600), batch("y" * 600)]
        for one in sent:
            await peer.produce("t", one)
        expected = {("t", 0): sum(map(len, sent)), ("t", 1): 0}
        assert await sizes(peer, "t", "missing") == expected
        assert await sizes(peer) == {**expected, ("u", 0): 0}


async def test_an_offline_partition_is_a_log_directory_with_an_error(world: World) -> None:  # D3
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        await peer.produce("t", batch("x"), partition=1)
    await world.disk.remove("t-0")
    async with world.node() as node, Peer.of(node) as peer:
        for asked in (None, [DescribableLogDirTopic(topic="t", partitions=[0, 1])]):
            request = DescribeLogDirsRequest(topics=asked)
            answer = await peer.ask(request, 5, DescribeLogDirsResponse)
            assert [
                (each.error_code, each.log_dir, topic.name, part.partition_index, part.offset_lag)
                for each in answer.results
                for topic in each.topics
                for part in topic.partitions
            ] == [
                (ErrorCode.NONE, "memory", "t", 1, 0),
                (ErrorCode.KAFKA_STORAGE_ERROR, "memory/t-0", "t", 0, -1),
            ]


async def test_nothing_is_reassigned_and_nobody_has_a_quota(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        moving = await peer.ask(
            ListPartitionReassignmentsRequest(topics=None), 0, ListPartitionReassignmentsResponse
        )
        assert (moving.error_code, moving.topics) == (ErrorCode.NONE, [])
        for version in (0, 1):
            quotas = await peer.ask(
                DescribeClientQuotasRequest(), version, DescribeClientQuotasResponse
            )
            assert (quotas.error_code, quotas.entries) == (ErrorCode.NONE, [])


async def test_no_user_has_a_credential(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        everybody = await peer.ask(
            DescribeUserScramCredentialsRequest(users=None), 0, DescribeUserScramCredentialsResponse
        )
        assert (everybody.error_code, everybody.results) == (ErrorCode.NONE, [])
        named = [UserName(name="ann"), UserName(name="bob"), UserName(name="bob")]
        answer = await peer.ask(
            DescribeUserScramCredentialsRequest(users=named),
            0,
            DescribeUserScramCredentialsResponse,
        )
        assert {one.user: one.error_code for one in answer.results} == {
            "ann": ErrorCode.RESOURCE_NOT_FOUND,
            "bob": ErrorCode.DUPLICATE_RESOURCE,
        }


@pytest.mark.parametrize(
    ("version", "kinds", "listed"),
    [
        (1, [], [("t", TOPIC), ("1", BROKER)]),
        (1, [BROKER], [("1", BROKER)]),
        (1, [BROKER_LOGGERS, CLIENT_METRICS, GROUP], []),
        (0, [], []),
    ],
)
async def test_resources_that_have_settings_are_listed(
    world: World, version: int, kinds: list[int], listed: list[tuple[str, int]]
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        request = ListConfigResourcesRequest(resource_types=kinds)
        answer = await peer.ask(request, version, ListConfigResourcesResponse)
        assert answer.error_code == ErrorCode.NONE
        found = [(one.resource_name, one.resource_type) for one in answer.config_resources]
        assert found == listed


async def test_resources_of_an_unknown_kind_are_not_supported(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        request = ListConfigResourcesRequest(resource_types=[TOPIC, 5])
        answer = await peer.ask(request, 1, ListConfigResourcesResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_the_broker_tells_what_administrators_tools_read(world: World) -> None:
    async with world.node(node_id=4, internal_partitions=3) as node, Peer.of(node) as peer:
        told = await describe(peer, "4", BROKER)
        values = {
            "broker.id": "4",
            "node.id": "4",
            "process.roles": "broker,controller",
            "log.dirs": "memory",
            "offsets.topic.num.partitions": "3",
            "auto.create.topics.enable": "true",
            "delete.topic.enable": "true",
            "message.max.bytes": "1048588",
            "default.replication.factor": "1",
            "num.partitions": "1",
        }
        assert {key: told[key].value for key in values} == values
        assert told["process.roles"].read_only


async def test_a_group_and_client_metrics_have_no_settings(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        for kind in (GROUP, CLIENT_METRICS):
            assert await describe(peer, "g", kind) == {}
            step = (SET, "consumer.session.timeout.ms", "1")
            error, text = await changed(peer, step, name="g", kind=kind)
            assert error is ErrorCode.INVALID_REQUEST
            assert "has no settings here" in text
