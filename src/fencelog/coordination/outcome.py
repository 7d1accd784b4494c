"""How a coordinator answers for a transaction that a partition's log holds open after a crash."""

from enum import Enum


class TransactionOutcome(Enum):
    """What is to become of the open transaction of a producer on a partition (rule E17)."""

    LISTED = "listed"
    """It is open or decided here, with this partition: the ordinary road will end it."""
    COMMIT = "commit"
    """Decided, and this partition's marker counted as written."""
    ABORT = "abort"
    """Known producer, but no transaction of it is open on this partition."""
    UNKNOWN = "unknown"
    """No such producer in this shard."""
