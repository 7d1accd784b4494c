"""Which error codes are retried, how long a retry waits, and the texts of errors."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fencelog.errors import ErrorCode, RequestError

T = TypeVar("T")

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0

RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Error codes after which a retry may succeed."""

STALE_ROUTE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Error codes after which the leader or coordinator must be looked up again."""

ADVICE = {
    ErrorCode.NETWORK_EXCEPTION: "check that the broker is running at this address",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create it first, or check the name",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is below the log start or above the end",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "the id is unknown",
    ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or write smaller records",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer has the same id; this one must stop",
    ErrorCode.PRODUCER_FENCED: "a newer producer has the same id; this one must stop",
    ErrorCode.INVALID_TXN_STATE: "the transaction is no longer open; begin a new one",
    ErrorCode.TRANSACTION_ABORTABLE: "abort the transaction and begin a new one",
    ErrorCode.RUN_FENCED: "a newer run of this app has started; this one must stop",
    ErrorCode.VERSION_CONFLICT: (
        "this version was committed with other input; the checkpoint was restored or replaced"
    ),
    ErrorCode.STALE_VERSION: "a later version is committed; the checkpoint is too old",
    ErrorCode.VERSION_GAP: "earlier versions are missing; check that the checkpoint is this app's",
    ErrorCode.APP_IN_USE: "another query uses this app; choose another, or set takeover=true",
    ErrorCode.TRANSACTION_ABORTED: "it timed out or was aborted; write the batch again",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk failed or is full; see the broker's log",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or delete it first",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "earlier records may be missing; write them again",
    ErrorCode.UNKNOWN_MEMBER_ID: "the request is from no member of the group",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop them first",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not support it; check that it is fencelog",
}


def failure(code: ErrorCode, what: str, detail: str | None = None) -> RequestError:
    """An error for this code: what was requested, the broker's message, what to do."""
    parts = [what]
    if detail:
        # RequestError appends the code; a broker's message may end with it already.
        parts.append(detail.removesuffix(f" ({code.name})"))
    if advice := ADVICE.get(code):
        parts.append(advice)
    return RequestError(code, ": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:]))


def again(error: RequestError, more: str = "") -> RequestError:
    """Return the same error with more text."""
    return RequestError(error.code, error.text + more)


class Deadline:
    """The loop time by which a call must have succeeded."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + seconds
        self._seconds = seconds

    @property
    def left_s(self) -> float:
        """Seconds that remain; never negative."""
        return max(self._at - self._loop.time(), 0.0)

    @property
    def passed(self) -> bool:
        """Whether no time remains."""
        return self._loop.time() >= self._at

    def __str__(self) -> str:
        """The allowed time as text."""
        return f"{self._seconds:g} s"


class Backoff:
    """Waits that double, up to a second, but end at the deadline."""

    def __init__(self) -> None:
        """Begin with the shortest wait."""
        self._next_s = BACKOFF_MIN_S

    async def wait(self, deadline: Deadline) -> None:
        """Sleep before the next attempt."""
        await asyncio.sleep(min(self._next_s, deadline.left_s))
        self._next_s = min(2 * self._next_s, BACKOFF_MAX_S)


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    deadline: Deadline,
    stale: Callable[[], None] | None = None,
) -> T:
    """Retry until success, an error that is not retriable, or the deadline.

    ``stale`` is called after an error that says that the request went to the wrong broker. Raises
    the last RequestError.
    """
    backoff = Backoff()
    while True:
        try:
            return await attempt()
        except RequestError as error:
            if stale is not None and error.code in STALE_ROUTE:
                stale()
            if error.code not in RETRIABLE:
                raise
            if deadline.passed:
                raise again(error, f"; given up after {deadline}") from error
            await backoff.wait(deadline)
