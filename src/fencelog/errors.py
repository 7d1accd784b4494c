"""Error codes of the wire, and fencelog's exceptions.

A peer's mistake is an ``ErrorCode`` value in a response; malformed bytes, a failed disk and a lost
leadership are one of the exceptions below.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Kafka's error codes (by Kafka's names), and fencelog's own from 10000."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICATION_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    # fencelog's own codes: only fencelog's own requests return them.
    RUN_FENCED = 10000  # V2: a newer run owns this app
    VERSION_CONFLICT = 10001  # V3: this version was committed with another fingerprint
    STALE_VERSION = 10002  # V3: a version below the last committed one
    VERSION_GAP = 10003  # V3: a version beyond last + 1
    APP_IN_USE = 10004  # V4: another query owns this app
    TRANSACTION_ABORTED = 10005  # V1: a named producer is not in the open incarnation
    ALREADY_COMMITTED = 10006  # V3: this version is committed; nothing is left to write
    RESOURCE_OWNED = 10010  # O1: a live owner has a higher generation
    STALE_GENERATION = 10011  # O4: the generation is below the remembered one
    OWNER_FENCED = 10012  # O5, O7, O8: this claim has ended, another one has been granted since
    CLAIM_IN_PROGRESS = 10013  # O9: a grant of the resource is not complete yet; retry
    CLAIM_WAITING = 10014  # O10: the claim waits in its place; repeat it
    SEGMENT_SEALED = 10020  # R2: what is not stored belongs to the segment's successors
    RESIZE_IN_PROGRESS = 10021  # R2: the segment is not open yet, or is being sealed; retry
    STALE_REVISION = 10022  # R4: something was appended since the revision that was named


class FencelogError(Exception):
    """Base of every exception that fencelog raises on purpose."""


class WireError(FencelogError):
    """A peer sent bytes that are not a valid frame, message or record batch."""


class LimitError(WireError):
    """A message or batch holds, or decompresses to, more than its reader's limit."""


class CorruptionError(FencelogError):
    """Stored bytes are not what was written; the message names file and position."""


class StorageError(FencelogError):
    """A write or a sync failed, or the disk is full; the partition accepts no more writes (D2)."""


class ExhaustedError(StorageError):
    """Disk space, open files or memory ran out: nothing was done, and it may succeed later."""


class UnknownOutcomeError(StorageError):
    """No answer to a write to the metadata store: it may be stored, or be stored later."""


class HistoryLostError(FencelogError):
    """The metadata store no longer has the changes that a watch asks for: read a snapshot anew."""


class NotLeaderError(FencelogError):
    """This broker does not, or not now, serve the shard or partition."""

    coordinator_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    """What a client is answered that asked for a coordinator."""


class NotCoordinatorError(NotLeaderError):
    """The shard belongs to another broker: look its coordinator up again."""

    coordinator_error = ErrorCode.NOT_COORDINATOR


class FencedError(FencelogError):
    """A newer owner, epoch or run exists; this one must stop."""


class RequestError(FencelogError):
    """A broker answered a request with an error code.

    ``text`` is the message without the code: what was requested, where, and what to do.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        """Keep the code beside the text."""
        super().__init__(f"{message} ({code.name})")
        self.code = code
        self.text = message


class ClaimRefusedError(RequestError):
    """A claim of ownership was refused, or the wait for it is over; nothing has changed (O1, O4).

    ``text`` names the resource, its holder, generation and epoch, and says what to do.
    """


class OwnershipLostError(FencedError, RequestError):
    """A claim has ended: another one was granted, or its lease is over (O5, O7, O10).

    Its holder must stop, and may claim again. Requests of a claim that has ended raise it too; the
    code is OWNER_FENCED.
    """


def error_text(error: Exception) -> str:
    """Return the text for a user; for a file error, its name and the reason without the errno."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error) or type(error).__name__
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
