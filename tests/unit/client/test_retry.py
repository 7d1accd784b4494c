"""A call that is retried until its deadline says why it failed."""

import pytest

from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.deadline import Deadline
from tests.support.loops import run_on


def test_no_attempt_begins_without_time() -> None:
    left: list[float] = []

    async def main() -> None:
        deadline = Deadline(0.12)

        async def attempt() -> None:
            left.append(deadline.left_s)
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads it")

        await retrying(attempt, deadline)

    with pytest.raises(RequestError, match=r"nobody leads it; given up after 0\.12 s") as caught:
        # In virtual time: a real clock goes on between the look at it and the attempt.
        run_on("simulated", main)
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(left) > 1
    assert all(seconds > 0 for seconds in left)
