"""The table of handlers: the one place that maps requests to them."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fencelog.broker.context import Broker
from fencelog.broker.dispatch import RawHandler, message_handler
from fencelog.broker.handlers import (
    cluster,
    configs,
    elect_leaders,
    group_admin,
    group_membership,
    group_offsets,
    inventory,
    list_offsets,
    ownership,
    response_sizes,
    security,
    streams,
    topic_partitions,
    topics,
    transaction_admin,
    transactions,
    unread,
    versioned,
    write_txn_markers,
)
from fencelog.broker.handlers.fetch import fetch
from fencelog.broker.handlers.produce import produce
from fencelog.broker.network.connection import Request
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.message import Message
from fencelog.wire.messages.abort_transaction import AbortTransactionRequest
from fencelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from fencelog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from fencelog.wire.messages.alter_configs import AlterConfigsRequest
from fencelog.wire.messages.attach_owner import AttachOwnerRequest
from fencelog.wire.messages.commit_transaction import CommitTransactionRequest
from fencelog.wire.messages.create_acls import CreateAclsRequest
from fencelog.wire.messages.create_partitions import CreatePartitionsRequest
from fencelog.wire.messages.create_stream import CreateStreamRequest
from fencelog.wire.messages.create_topics import CreateTopicsRequest
from fencelog.wire.messages.delete_acls import DeleteAclsRequest
from fencelog.wire.messages.delete_groups import DeleteGroupsRequest
from fencelog.wire.messages.delete_records import DeleteRecordsRequest
from fencelog.wire.messages.delete_topics import DeleteTopicsRequest
from fencelog.wire.messages.describe_acls import DescribeAclsRequest
from fencelog.wire.messages.describe_app import DescribeAppRequest
from fencelog.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from fencelog.wire.messages.describe_cluster import DescribeClusterRequest
from fencelog.wire.messages.describe_configs import DescribeConfigsRequest
from fencelog.wire.messages.describe_groups import DescribeGroupsRequest
from fencelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from fencelog.wire.messages.describe_ownership import DescribeOwnershipRequest
from fencelog.wire.messages.describe_producers import DescribeProducersRequest
from fencelog.wire.messages.describe_streams import DescribeStreamsRequest
from fencelog.wire.messages.describe_transactions import DescribeTransactionsRequest
from fencelog.wire.messages.describe_unread import DescribeUnreadRequest
from fencelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from fencelog.wire.messages.elect_leaders import ElectLeadersRequest
from fencelog.wire.messages.end_txn import EndTxnRequest
from fencelog.wire.messages.find_coordinator import FindCoordinatorRequest
from fencelog.wire.messages.heartbeat import HeartbeatRequest
from fencelog.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest
from fencelog.wire.messages.join_group import JoinGroupRequest
from fencelog.wire.messages.join_transaction import JoinTransactionRequest
from fencelog.wire.messages.leave_group import LeaveGroupRequest
from fencelog.wire.messages.list_config_resources import ListConfigResourcesRequest
from fencelog.wire.messages.list_groups import ListGroupsRequest
from fencelog.wire.messages.list_offsets import ListOffsetsRequest
from fencelog.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from fencelog.wire.messages.list_transactions import ListTransactionsRequest
from fencelog.wire.messages.metadata import MetadataRequest
from fencelog.wire.messages.offset_commit import OffsetCommitRequest
from fencelog.wire.messages.offset_delete import OffsetDeleteRequest
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest
from fencelog.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from fencelog.wire.messages.own import OwnRequest
from fencelog.wire.messages.release_ownership import ReleaseOwnershipRequest
from fencelog.wire.messages.renew_ownership import RenewOwnershipRequest
from fencelog.wire.messages.renew_transaction import RenewTransactionRequest
from fencelog.wire.messages.resize_stream import ResizeStreamRequest
from fencelog.wire.messages.sync_group import SyncGroupRequest
from fencelog.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from fencelog.wire.messages.watch_ownership import WatchOwnershipRequest
from fencelog.wire.messages.write_txn_markers import WriteTxnMarkersRequest

Q = TypeVar("Q", bound=Message)


def handlers() -> dict[ApiKey, RawHandler]:
    """Return the handler of each request; the dispatcher checks them against ``ApiKey``."""
    rows = [
        *_raw(),
        *_of_groups(),
        *_of_topics(),
        *_of_streams(),
        *_of_transactions(),
        *_of_ownership(),
        *_of_tools(),
    ]
    table = dict(rows)
    assert len(table) == len(rows), "a request has two handlers"
    return table


def _on(
    kind: type[Q],
    handle: Callable[[Broker, Q, Request], Awaitable[Message]],
    response_bytes: Callable[[Broker, Q], int] | None = None,
) -> tuple[ApiKey, RawHandler]:
    """Return a row: the message's API key and its handler."""
    return ApiKey(kind.API_KEY), message_handler(kind, handle, response_bytes)


def _raw() -> list[tuple[ApiKey, RawHandler]]:
    """Return the handlers that decode their frames themselves."""
    return [
        (ApiKey.PRODUCE, produce),
        (ApiKey.FETCH, fetch),
        (ApiKey.API_VERSIONS, cluster.api_versions),
    ]


def _of_groups() -> list[tuple[ApiKey, RawHandler]]:
    return [
        _on(OffsetDeleteRequest, group_admin.offset_delete),
        _on(JoinGroupRequest, group_membership.join_group),
        _on(SyncGroupRequest, group_membership.sync_group),
        _on(HeartbeatRequest, group_membership.heartbeat),
        _on(LeaveGroupRequest, group_membership.leave_group),
        _on(ListGroupsRequest, group_admin.list_groups),
        _on(DescribeGroupsRequest, group_admin.describe_groups, response_sizes.of_groups),
        _on(DeleteGroupsRequest, group_admin.delete_groups),
        _on(OffsetCommitRequest, group_offsets.offset_commit),
        _on(OffsetFetchRequest, group_offsets.offset_fetch, response_sizes.of_offset_fetch),
        _on(TxnOffsetCommitRequest, group_offsets.txn_offset_commit),
    ]


def _of_topics() -> list[tuple[ApiKey, RawHandler]]:
    return [
        _on(MetadataRequest, cluster.metadata, response_sizes.of_metadata),
        _on(FindCoordinatorRequest, cluster.find_coordinator),
        _on(DescribeClusterRequest, cluster.describe_cluster),
        _on(CreateTopicsRequest, topics.create_topics),
        _on(DeleteTopicsRequest, topics.delete_topics),
        _on(DeleteRecordsRequest, topic_partitions.delete_records),
        _on(DescribeConfigsRequest, configs.describe_configs, response_sizes.of_configs),
        _on(AlterConfigsRequest, configs.alter_configs),
        _on(IncrementalAlterConfigsRequest, configs.incremental_alter_configs),
        _on(ElectLeadersRequest, elect_leaders.elect_leaders),
        _on(CreatePartitionsRequest, topic_partitions.create_partitions),
        _on(ListOffsetsRequest, list_offsets.list_offsets, response_sizes.of_list_offsets),
        _on(OffsetForLeaderEpochRequest, list_offsets.offset_for_leader_epoch),
    ]


def _of_streams() -> list[tuple[ApiKey, RawHandler]]:
    return [
        _on(CreateStreamRequest, streams.create_stream),
        _on(DescribeStreamsRequest, streams.describe_streams, response_sizes.of_streams),
        _on(ResizeStreamRequest, streams.resize_stream),
        _on(DescribeUnreadRequest, unread.describe_unread, response_sizes.of_unread),
    ]


def _of_transactions() -> list[tuple[ApiKey, RawHandler]]:
    return [
        _on(InitProducerIdRequest, transactions.init_producer_id),
        _on(AddPartitionsToTxnRequest, transactions.add_partitions),
        _on(AddOffsetsToTxnRequest, transactions.add_offsets),
        _on(EndTxnRequest, transactions.end_transaction),
        _on(ListTransactionsRequest, transaction_admin.list_transactions),
        _on(DescribeTransactionsRequest, transaction_admin.describe_transactions),
        _on(DescribeProducersRequest, transaction_admin.describe_producers),
        _on(WriteTxnMarkersRequest, write_txn_markers.write_markers),
        _on(JoinTransactionRequest, versioned.join),
        _on(CommitTransactionRequest, versioned.commit),
        _on(AbortTransactionRequest, versioned.abort),
        _on(RenewTransactionRequest, versioned.renew),
        _on(DescribeAppRequest, versioned.describe),
    ]


def _of_ownership() -> list[tuple[ApiKey, RawHandler]]:
    return [
        (ApiKey.OWN, ownership.bounded(message_handler(OwnRequest, ownership.own))),
        _on(AttachOwnerRequest, ownership.attach),
        _on(RenewOwnershipRequest, ownership.renew),
        _on(ReleaseOwnershipRequest, ownership.release, response_sizes.of_released),
        _on(DescribeOwnershipRequest, ownership.describe, response_sizes.of_ownership),
        _on(WatchOwnershipRequest, ownership.watch),
    ]


def _of_tools() -> list[tuple[ApiKey, RawHandler]]:
    """Return the handlers of what only administrators' tools ask for."""
    return [
        _on(DescribeAclsRequest, security.describe_acls),
        _on(CreateAclsRequest, security.create_acls),
        _on(DeleteAclsRequest, security.delete_acls),
        _on(DescribeUserScramCredentialsRequest, security.describe_user_scram_credentials),
        _on(DescribeLogDirsRequest, inventory.describe_log_dirs),
        _on(ListConfigResourcesRequest, inventory.list_config_resources),
        _on(ListPartitionReassignmentsRequest, inventory.list_partition_reassignments),
        _on(DescribeClientQuotasRequest, inventory.describe_client_quotas),
    ]
