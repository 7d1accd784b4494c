"""Which error codes are retried, and how long a retry waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.deadline import Deadline

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
        ErrorCode.CLAIM_IN_PROGRESS,
        ErrorCode.RESIZE_IN_PROGRESS,
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


def again(error: RequestError, more: str = "") -> RequestError:
    """Return the same error, of the same type, with more text."""
    return type(error)(error.code, error.text + more)


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

    ``stale`` is called after an error that says that the request went to the wrong broker. If that
    error is not retriable, as of a partition that is not known, it is retried once, on the route
    that is looked up anew. Raises the last RequestError.
    """
    backoff = Backoff()
    is_looked_up = stale is None
    while True:
        try:
            return await attempt()
        except RequestError as error:
            is_curable = False
            if stale is not None and error.code in STALE_ROUTE:
                stale()
                is_curable, is_looked_up = not is_looked_up, True
            if error.code not in RETRIABLE and not is_curable:
                raise
            await backoff.wait(deadline)
            # An attempt without time would only hide this error behind its own.
            if deadline.passed:
                raise again(error, f"; given up after {deadline}") from error
