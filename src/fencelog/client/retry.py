"""Which answers are worth another try, how long to wait before it, and how a failure is worded."""

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
"""Answers that another try may turn into success."""

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
"""Answers after which leader or coordinator must be looked up again."""

ADVICE = {
    ErrorCode.NETWORK_EXCEPTION: "is the broker running, and is this its address?",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create it first, or check the name",
    ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or write smaller records",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer took over; this one must stop",
    ErrorCode.PRODUCER_FENCED: "a newer producer took over; this one must stop",
    ErrorCode.INVALID_TXN_STATE: "the transaction is not open any more; begin it again",
    ErrorCode.TRANSACTION_ABORTABLE: "abort the transaction and begin it again",
    ErrorCode.RUN_FENCED: "a newer run drives this app; this one must stop",
    ErrorCode.VERSION_CONFLICT: (
        "this version was committed from other input; the checkpoint was restored or replaced"
    ),
    ErrorCode.STALE_VERSION: "a later version is committed; the checkpoint is an old one",
    ErrorCode.VERSION_GAP: "versions before it are missing; is this the app's checkpoint?",
    ErrorCode.APP_IN_USE: "another query owns this app; choose another app, or ask for takeover",
    ErrorCode.TRANSACTION_ABORTED: "it timed out or was aborted; the batch must be written again",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk failed or is full; see the broker's log",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or delete it first",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "records may be missing; write them again",
    ErrorCode.UNKNOWN_MEMBER_ID: "only the group's members may; stop them first, or be one",
    ErrorCode.NON_EMPTY_GROUP: "it has members; stop them first",
    ErrorCode.UNSUPPORTED_VERSION: "it does not know this request; is it a fencelog broker?",
}


def failure(code: ErrorCode, what: str, detail: str | None = None) -> RequestError:
    """Word a refusal: what was asked of whom, what the broker said, what to do."""
    parts = [what]
    if detail:
        parts.append(detail)
    if advice := ADVICE.get(code):
        parts.append(advice)
    return RequestError(code, ": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:]))


def again(error: RequestError, more: str = "") -> RequestError:
    """Return an error that says the same, and more."""
    return RequestError(error.code, error.text + more)


class Deadline:
    """A point in the loop's time by which a call must have succeeded."""

    def __init__(self, seconds: float) -> None:
        """Count from now."""
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + seconds
        self._seconds = seconds

    @property
    def left_s(self) -> float:
        """Seconds that remain; never negative."""
        return max(self._at - self._loop.time(), 0.0)

    @property
    def passed(self) -> bool:
        """Whether nothing remains."""
        return self._loop.time() >= self._at

    def __str__(self) -> str:
        """Say how long was allowed."""
        return f"{self._seconds:g} s"


class Backoff:
    """Waits that double, up to a second, and never pass the deadline."""

    def __init__(self) -> None:
        """Begin with the shortest wait."""
        self._next_s = BACKOFF_MIN_S

    async def wait(self, deadline: Deadline) -> None:
        """Sleep before the next try."""
        await asyncio.sleep(min(self._next_s, deadline.left_s))
        self._next_s = min(2 * self._next_s, BACKOFF_MAX_S)


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    deadline: Deadline,
    stale: Callable[[], None] | None = None,
) -> T:
    """Try until it succeeds, fails for good, or the deadline passes.

    ``stale`` is called after an answer that says that the request went to the wrong broker. Raises
    the last RequestError, saying that it was given up.
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
