"""The supported requests and their versions: the only tables of them.

The ranges are what six client families need. The unusual ones: Produce is advertised from 0 because
librdkafka silently drops codecs otherwise (KAFKA-18659), but 0 to 2 are refused; AddPartitionsToTxn
above 3 is for requests between brokers; WriteTxnMarkers is for operators only, as Kafka's Admin
sends it. Produce 12, TxnOffsetCommit 5 and EndTxn 5 *are* transaction version 2 (KIP-890): they are
supported together with the finalized feature, all or none.
"""

from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, Self

from fencelog.wire.flexible_versions import FLEXIBLE_FROM


class VersionRange(NamedTuple):
    """First and last supported version, both included."""

    minimum: int
    maximum: int

    def __contains__(self, version: object) -> bool:
        """Tell whether a version is supported."""
        return isinstance(version, int) and self.minimum <= version <= self.maximum


class _Requests(IntEnum):
    """Requests: number, first and last version.

    The first flexible version of each is in the message definitions, from which
    ``flexible_versions`` is generated.
    """

    versions: VersionRange

    def __new__(cls, number: int, *versions: int) -> Self:
        """Make a row of the table; TypeError unless it has both versions."""
        key = int.__new__(cls, number)
        key._value_ = number
        key.versions = VersionRange(*versions)
        return key


class ApiKey(_Requests):
    """The requests of clients. Kafka's numbers are Kafka's; our own begin at ``OWN_FROM``."""

    PRODUCE = 0, 0, 12
    FETCH = 1, 4, 16
    LIST_OFFSETS = 2, 1, 11
    METADATA = 3, 0, 12
    OFFSET_COMMIT = 8, 2, 9
    OFFSET_FETCH = 9, 1, 9
    FIND_COORDINATOR = 10, 0, 4
    JOIN_GROUP = 11, 0, 9
    HEARTBEAT = 12, 0, 4
    LEAVE_GROUP = 13, 0, 5
    SYNC_GROUP = 14, 0, 5
    DESCRIBE_GROUPS = 15, 0, 6
    LIST_GROUPS = 16, 0, 5
    API_VERSIONS = 18, 0, 4
    CREATE_TOPICS = 19, 2, 7
    DELETE_TOPICS = 20, 1, 6
    DELETE_RECORDS = 21, 0, 2
    INIT_PRODUCER_ID = 22, 0, 5
    OFFSET_FOR_LEADER_EPOCH = 23, 2, 4
    ADD_PARTITIONS_TO_TXN = 24, 0, 3
    ADD_OFFSETS_TO_TXN = 25, 0, 4
    END_TXN = 26, 0, 5
    WRITE_TXN_MARKERS = 27, 1, 1
    TXN_OFFSET_COMMIT = 28, 0, 5
    DESCRIBE_ACLS = 29, 1, 3
    CREATE_ACLS = 30, 1, 3
    DELETE_ACLS = 31, 1, 3
    DESCRIBE_CONFIGS = 32, 1, 4
    ALTER_CONFIGS = 33, 0, 2
    DESCRIBE_LOG_DIRS = 35, 1, 5
    CREATE_PARTITIONS = 37, 0, 3
    DELETE_GROUPS = 42, 0, 2
    ELECT_LEADERS = 43, 0, 2
    INCREMENTAL_ALTER_CONFIGS = 44, 0, 1
    LIST_PARTITION_REASSIGNMENTS = 46, 0, 0
    OFFSET_DELETE = 47, 0, 0
    DESCRIBE_CLIENT_QUOTAS = 48, 0, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0, 0
    DESCRIBE_CLUSTER = 60, 0, 2
    DESCRIBE_PRODUCERS = 61, 0, 0
    DESCRIBE_TRANSACTIONS = 65, 0, 0
    LIST_TRANSACTIONS = 66, 0, 2
    LIST_CONFIG_RESOURCES = 74, 0, 1
    JOIN_TRANSACTION = 10000, 0, 2
    COMMIT_TRANSACTION = 10001, 0, 1
    ABORT_TRANSACTION = 10002, 0, 1
    DESCRIBE_APP = 10003, 0, 1
    RENEW_TRANSACTION = 10004, 0, 0
    OWN = 10010, 0, 0
    ATTACH_OWNER = 10011, 0, 0
    RENEW_OWNERSHIP = 10012, 0, 0
    RELEASE_OWNERSHIP = 10013, 0, 0
    DESCRIBE_OWNERSHIP = 10014, 0, 0
    WATCH_OWNERSHIP = 10015, 0, 0
    CREATE_STREAM = 10020, 0, 0
    DESCRIBE_STREAMS = 10021, 0, 0
    RESIZE_STREAM = 10022, 0, 0
    DESCRIBE_UNREAD = 10023, 0, 0


class BrokerApiKey(_Requests):
    """The requests between the brokers of a cluster, after a proof that both belong to it.

    Clients are not told of them.
    """

    BROKER_HELLO = 10100, 0, 0
    BROKER_PROOF = 10101, 0, 0
    REPLICA_FETCH = 10102, 0, 0
    REPLICA_SNAPSHOT = 10103, 0, 0
    BROKER_WRITE_MARKERS = 10104, 0, 0
    BROKER_VERIFY = 10105, 0, 0
    BROKER_OUTCOMES = 10106, 0, 0
    BROKER_OWN_PARTITION = 10107, 0, 0
    BROKER_OWN_COMMITS = 10108, 0, 0
    BROKER_OWN_PRODUCERS = 10109, 0, 0
    BROKER_SEVER = 10110, 0, 0
    BROKER_ATTACH = 10111, 0, 0
    BROKER_SEGMENT_RATE = 10112, 0, 0


OWN_FROM = 10_000

SUPPORTED = MappingProxyType({key: key.versions for key in ApiKey})
"""Versions advertised in ApiVersions."""

PRODUCE_VERSION_MIN_ACCEPTED = 3
"""Below this a produce request carries message sets of magic 0 or 1, which are refused."""

TRANSACTION_VERSION_FEATURE = "transaction.version"
TRANSACTION_VERSION = VersionRange(0, 2)
"""Kafka's feature of that name: supported from 0, finalized at 2."""
FEATURES_EPOCH = 1
"""Grows with every change of the finalized features; there was none yet."""
FEATURES_FROM_ZERO = 4
"""Below this version of ApiVersions clients fail over a feature that begins at 0 (KAFKA-17011)."""
PRODUCE_ADDS_PARTITIONS_FROM = 12
END_BUMPS_FROM = 5
OFFSETS_ENLIST_FROM = 5
"""From these versions of Produce, EndTxn and TxnOffsetCommit on, a client uses version 2."""


def is_flexible(api_key: int, api_version: int) -> bool:
    """Tell whether a request is of a flexible version; an unknown key never is."""
    first = FLEXIBLE_FROM.get(api_key)
    return first is not None and api_version >= first
