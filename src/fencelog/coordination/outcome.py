"""What a coordinator answers about a transaction that a partition's log has open after a crash."""

from enum import Enum


class TransactionOutcome(Enum):
    """How the open transaction of a producer on a partition has to end (rule E17)."""

    LISTED = "listed"
    """It is open or decided here, with this partition: the coordinator will send its marker."""
    COMMIT = "commit"
    """Committed, and this partition's marker was reported as written."""
    ABORT = "abort"
    """The producer is known, but has no transaction that includes this partition."""
    UNKNOWN = "unknown"
    """No such producer in this shard."""
