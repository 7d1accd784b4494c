"""Which requests this broker speaks, in which versions, and from which version each is flexible.

The ranges are what six client families were seen to need. Where one looks odd:
Produce is advertised from 0 because librdkafka silently drops codecs otherwise (KAFKA-18659), and
0 to 2 are refused when they come; AddPartitionsToTxn above 3 is for brokers among themselves;
WriteTxnMarkers is an operator's only, as Kafka's Admin sends it. Produce 12, TxnOffsetCommit 5 and
EndTxn 5 *are* transaction version 2 (KIP-890): they go with the finalized feature, all or none.
"""

from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple


class ApiKey(IntEnum):
    """Numbers of the requests; fencelog's own begin at 10000."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    JOIN_TRANSACTION = 10000
    COMMIT_TRANSACTION = 10001
    ABORT_TRANSACTION = 10002
    DESCRIBE_APP = 10003
    RENEW_TRANSACTION = 10004


class VersionRange(NamedTuple):
    """First and last version spoken, both included."""

    minimum: int
    maximum: int

    def __contains__(self, version: object) -> bool:
        """Tell whether a version is spoken."""
        return isinstance(version, int) and self.minimum <= version <= self.maximum


SUPPORTED = MappingProxyType(
    {
        ApiKey.PRODUCE: VersionRange(0, 12),
        ApiKey.FETCH: VersionRange(4, 16),
        ApiKey.LIST_OFFSETS: VersionRange(1, 7),
        ApiKey.METADATA: VersionRange(0, 12),
        ApiKey.OFFSET_COMMIT: VersionRange(2, 9),
        ApiKey.OFFSET_FETCH: VersionRange(1, 9),
        ApiKey.FIND_COORDINATOR: VersionRange(0, 4),
        ApiKey.JOIN_GROUP: VersionRange(0, 9),
        ApiKey.HEARTBEAT: VersionRange(0, 4),
        ApiKey.LEAVE_GROUP: VersionRange(0, 5),
        ApiKey.SYNC_GROUP: VersionRange(0, 5),
        ApiKey.DESCRIBE_GROUPS: VersionRange(0, 5),
        ApiKey.LIST_GROUPS: VersionRange(0, 5),
        ApiKey.API_VERSIONS: VersionRange(0, 4),
        ApiKey.CREATE_TOPICS: VersionRange(2, 7),
        ApiKey.DELETE_TOPICS: VersionRange(1, 6),
        ApiKey.DELETE_RECORDS: VersionRange(0, 2),
        ApiKey.INIT_PRODUCER_ID: VersionRange(0, 5),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(0, 3),
        ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
        ApiKey.END_TXN: VersionRange(0, 5),
        ApiKey.WRITE_TXN_MARKERS: VersionRange(1, 1),
        ApiKey.TXN_OFFSET_COMMIT: VersionRange(0, 5),
        ApiKey.DESCRIBE_CONFIGS: VersionRange(1, 4),
        ApiKey.DELETE_GROUPS: VersionRange(0, 2),
        ApiKey.OFFSET_DELETE: VersionRange(0, 0),
        ApiKey.ALTER_CONFIGS: VersionRange(0, 2),
        ApiKey.CREATE_PARTITIONS: VersionRange(0, 3),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
        ApiKey.DESCRIBE_CLUSTER: VersionRange(0, 1),
        ApiKey.DESCRIBE_PRODUCERS: VersionRange(0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
        ApiKey.LIST_TRANSACTIONS: VersionRange(0, 1),
        ApiKey.JOIN_TRANSACTION: VersionRange(0, 0),
        ApiKey.COMMIT_TRANSACTION: VersionRange(0, 0),
        ApiKey.ABORT_TRANSACTION: VersionRange(0, 0),
        ApiKey.DESCRIBE_APP: VersionRange(0, 0),
        ApiKey.RENEW_TRANSACTION: VersionRange(0, 0),
    }
)
"""Versions advertised in ApiVersions."""

PRODUCE_VERSION_MIN_ACCEPTED = 3
"""Below this a produce request carries message sets of magic 0 or 1, which are refused."""

TRANSACTION_VERSION_FEATURE = "transaction.version"
TRANSACTION_VERSION = VersionRange(0, 2)
"""Kafka's feature of that name: supported from 0, finalized at 2."""
FEATURES_EPOCH = 1
"""Grows with every change of what is finalized; there was none yet."""
FEATURES_FROM_ZERO = 4
"""Below this version of ApiVersions clients fail over a feature that begins at 0 (KAFKA-17011)."""
PRODUCE_ADDS_PARTITIONS_FROM = 12
END_BUMPS_FROM = 5
OFFSETS_ENLIST_FROM = 5
"""From these versions of Produce, EndTxn and TxnOffsetCommit on a client speaks version 2."""

NEVER = 0x7FFF
"""Above every version: a request that was never made flexible."""

FLEXIBLE_FROM = MappingProxyType(
    {
        ApiKey.PRODUCE: 9,
        ApiKey.FETCH: 12,
        ApiKey.LIST_OFFSETS: 6,
        ApiKey.METADATA: 9,
        ApiKey.OFFSET_COMMIT: 8,
        ApiKey.OFFSET_FETCH: 6,
        ApiKey.FIND_COORDINATOR: 3,
        ApiKey.JOIN_GROUP: 6,
        ApiKey.HEARTBEAT: 4,
        ApiKey.LEAVE_GROUP: 4,
        ApiKey.SYNC_GROUP: 4,
        ApiKey.DESCRIBE_GROUPS: 5,
        ApiKey.LIST_GROUPS: 3,
        ApiKey.API_VERSIONS: 3,
        ApiKey.CREATE_TOPICS: 5,
        ApiKey.DELETE_TOPICS: 4,
        ApiKey.DELETE_RECORDS: 2,
        ApiKey.INIT_PRODUCER_ID: 2,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
        ApiKey.ADD_PARTITIONS_TO_TXN: 3,
        ApiKey.ADD_OFFSETS_TO_TXN: 3,
        ApiKey.END_TXN: 3,
        ApiKey.WRITE_TXN_MARKERS: 1,
        ApiKey.TXN_OFFSET_COMMIT: 3,
        ApiKey.DESCRIBE_CONFIGS: 4,
        ApiKey.DELETE_GROUPS: 2,
        ApiKey.OFFSET_DELETE: NEVER,
        ApiKey.ALTER_CONFIGS: 2,
        ApiKey.CREATE_PARTITIONS: 2,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
        ApiKey.DESCRIBE_CLUSTER: 0,
        ApiKey.DESCRIBE_PRODUCERS: 0,
        ApiKey.DESCRIBE_TRANSACTIONS: 0,
        ApiKey.LIST_TRANSACTIONS: 0,
        ApiKey.JOIN_TRANSACTION: 0,
        ApiKey.COMMIT_TRANSACTION: 0,
        ApiKey.ABORT_TRANSACTION: 0,
        ApiKey.DESCRIBE_APP: 0,
        ApiKey.RENEW_TRANSACTION: 0,
    }
)
"""First flexible version of each request; the headers need it before the body is read."""

_FLEXIBLE_FROM_BY_NUMBER: dict[int, int] = {int(key): first for key, first in FLEXIBLE_FROM.items()}


def is_flexible(api_key: int, api_version: int) -> bool:
    """Tell whether a request is of a flexible version; an unknown key never is."""
    first = _FLEXIBLE_FROM_BY_NUMBER.get(api_key)
    return first is not None and api_version >= first
