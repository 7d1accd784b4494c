"""Which handler answers which request."""

from fencelog.broker.dispatch import RawHandler, message_handler
from fencelog.broker.handlers import (
    cluster,
    configs,
    group_admin,
    group_membership,
    group_offsets,
    list_offsets,
    topic_partitions,
    topics,
    transaction_admin,
    transactions,
    versioned,
    write_txn_markers,
)
from fencelog.broker.handlers.fetch import fetch
from fencelog.broker.handlers.produce import produce
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.messages.abort_transaction import AbortTransactionRequest
from fencelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from fencelog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from fencelog.wire.messages.alter_configs import AlterConfigsRequest
from fencelog.wire.messages.commit_transaction import CommitTransactionRequest
from fencelog.wire.messages.create_partitions import CreatePartitionsRequest
from fencelog.wire.messages.create_topics import CreateTopicsRequest
from fencelog.wire.messages.delete_groups import DeleteGroupsRequest
from fencelog.wire.messages.delete_records import DeleteRecordsRequest
from fencelog.wire.messages.delete_topics import DeleteTopicsRequest
from fencelog.wire.messages.describe_app import DescribeAppRequest
from fencelog.wire.messages.describe_cluster import DescribeClusterRequest
from fencelog.wire.messages.describe_configs import DescribeConfigsRequest
from fencelog.wire.messages.describe_groups import DescribeGroupsRequest
from fencelog.wire.messages.describe_producers import DescribeProducersRequest
from fencelog.wire.messages.describe_transactions import DescribeTransactionsRequest
from fencelog.wire.messages.end_txn import EndTxnRequest
from fencelog.wire.messages.find_coordinator import FindCoordinatorRequest
from fencelog.wire.messages.heartbeat import HeartbeatRequest
from fencelog.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest
from fencelog.wire.messages.join_group import JoinGroupRequest
from fencelog.wire.messages.join_transaction import JoinTransactionRequest
from fencelog.wire.messages.leave_group import LeaveGroupRequest
from fencelog.wire.messages.list_groups import ListGroupsRequest
from fencelog.wire.messages.list_offsets import ListOffsetsRequest
from fencelog.wire.messages.list_transactions import ListTransactionsRequest
from fencelog.wire.messages.metadata import MetadataRequest
from fencelog.wire.messages.offset_commit import OffsetCommitRequest
from fencelog.wire.messages.offset_delete import OffsetDeleteRequest
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest
from fencelog.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from fencelog.wire.messages.renew_transaction import RenewTransactionRequest
from fencelog.wire.messages.sync_group import SyncGroupRequest
from fencelog.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from fencelog.wire.messages.write_txn_markers import WriteTxnMarkersRequest


def handlers() -> dict[ApiKey, RawHandler]:
    """Every request that is advertised, with what answers it."""
    return {**_of_groups(), **_of_logs_and_producers()}


def _of_groups() -> dict[ApiKey, RawHandler]:
    return {
        ApiKey.OFFSET_DELETE: message_handler(OffsetDeleteRequest, group_admin.offset_delete),
        ApiKey.JOIN_GROUP: message_handler(JoinGroupRequest, group_membership.join_group),
        ApiKey.SYNC_GROUP: message_handler(SyncGroupRequest, group_membership.sync_group),
        ApiKey.HEARTBEAT: message_handler(HeartbeatRequest, group_membership.heartbeat),
        ApiKey.LEAVE_GROUP: message_handler(LeaveGroupRequest, group_membership.leave_group),
        ApiKey.LIST_GROUPS: message_handler(ListGroupsRequest, group_admin.list_groups),
        ApiKey.DESCRIBE_GROUPS: message_handler(DescribeGroupsRequest, group_admin.describe_groups),
        ApiKey.DELETE_GROUPS: message_handler(DeleteGroupsRequest, group_admin.delete_groups),
        ApiKey.OFFSET_COMMIT: message_handler(OffsetCommitRequest, group_offsets.offset_commit),
        ApiKey.OFFSET_FETCH: message_handler(OffsetFetchRequest, group_offsets.offset_fetch),
        ApiKey.TXN_OFFSET_COMMIT: message_handler(
            TxnOffsetCommitRequest, group_offsets.txn_offset_commit
        ),
    }


def _of_logs_and_producers() -> dict[ApiKey, RawHandler]:
    return {
        ApiKey.PRODUCE: produce,
        ApiKey.FETCH: fetch,
        ApiKey.API_VERSIONS: cluster.api_versions,
        ApiKey.METADATA: message_handler(MetadataRequest, cluster.metadata),
        ApiKey.FIND_COORDINATOR: message_handler(FindCoordinatorRequest, cluster.find_coordinator),
        ApiKey.DESCRIBE_CLUSTER: message_handler(DescribeClusterRequest, cluster.describe_cluster),
        ApiKey.CREATE_TOPICS: message_handler(CreateTopicsRequest, topics.create_topics),
        ApiKey.DELETE_TOPICS: message_handler(DeleteTopicsRequest, topics.delete_topics),
        ApiKey.DELETE_RECORDS: message_handler(
            DeleteRecordsRequest, topic_partitions.delete_records
        ),
        ApiKey.DESCRIBE_CONFIGS: message_handler(DescribeConfigsRequest, configs.describe_configs),
        ApiKey.ALTER_CONFIGS: message_handler(AlterConfigsRequest, configs.alter_configs),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: message_handler(
            IncrementalAlterConfigsRequest, configs.incremental_alter_configs
        ),
        ApiKey.CREATE_PARTITIONS: message_handler(
            CreatePartitionsRequest, topic_partitions.create_partitions
        ),
        ApiKey.LIST_OFFSETS: message_handler(ListOffsetsRequest, list_offsets.list_offsets),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: message_handler(
            OffsetForLeaderEpochRequest, list_offsets.offset_for_leader_epoch
        ),
        ApiKey.INIT_PRODUCER_ID: message_handler(
            InitProducerIdRequest, transactions.init_producer_id
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: message_handler(
            AddPartitionsToTxnRequest, transactions.add_partitions
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: message_handler(
            AddOffsetsToTxnRequest, transactions.add_offsets
        ),
        ApiKey.END_TXN: message_handler(EndTxnRequest, transactions.end_transaction),
        ApiKey.LIST_TRANSACTIONS: message_handler(
            ListTransactionsRequest, transaction_admin.list_transactions
        ),
        ApiKey.DESCRIBE_TRANSACTIONS: message_handler(
            DescribeTransactionsRequest, transaction_admin.describe_transactions
        ),
        ApiKey.DESCRIBE_PRODUCERS: message_handler(
            DescribeProducersRequest, transaction_admin.describe_producers
        ),
        ApiKey.WRITE_TXN_MARKERS: message_handler(
            WriteTxnMarkersRequest, write_txn_markers.write_markers
        ),
        ApiKey.JOIN_TRANSACTION: message_handler(JoinTransactionRequest, versioned.join),
        ApiKey.COMMIT_TRANSACTION: message_handler(CommitTransactionRequest, versioned.commit),
        ApiKey.ABORT_TRANSACTION: message_handler(AbortTransactionRequest, versioned.abort),
        ApiKey.RENEW_TRANSACTION: message_handler(RenewTransactionRequest, versioned.renew),
        ApiKey.DESCRIBE_APP: message_handler(DescribeAppRequest, versioned.describe),
    }
