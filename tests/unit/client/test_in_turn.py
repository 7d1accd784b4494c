"""What any broker can answer, and who is asked when one fails or is silent."""

import asyncio
from collections.abc import Sequence

import pytest

from fencelog.client.in_turn import SILENT_S, ask_in_turn
from fencelog.errors import ErrorCode, RequestError
from tests.support.cluster_metadata import in_virtual_time

NEVER = 1e6
LOST, REFUSED = ErrorCode.NETWORK_EXCEPTION, ErrorCode.UNSUPPORTED_VERSION


class Brokers:
    """Brokers ``0``, ``1`` … each of which answers after a time, or fails then."""

    def __init__(self, *plan: tuple[float, ErrorCode | None]) -> None:
        self.plan = plan
        self.asked: list[tuple[int, float]] = []
        self.given_up: list[int] = []
        self.overtaken: list[int] = []

    async def ask(self, number: int) -> str:
        self.asked.append((number, round(now(), 1)))
        after_s, failure = self.plan[number]
        try:
            await asyncio.sleep(after_s)
        except asyncio.CancelledError:
            self.given_up.append(number)
            raise
        if failure is not None:
            raise RequestError(failure, f"{number} failed")
        return f"of {number}"

    async def any(self) -> str:
        numbers: Sequence[int] = range(len(self.plan))
        return await ask_in_turn(numbers, self.ask, self.overtaken.append)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_silent_one_is_overtaken_by_the_next() -> None:
    async def main() -> None:
        brokers = Brokers((NEVER, None), (NEVER, None), (0.5, None))
        assert await brokers.any() == "of 2"
        assert [number for number, _ in brokers.asked] == [0, 1, 2]
        assert round(now(), 1) == 2 * SILENT_S + 0.5
        await asyncio.sleep(0)
        assert brokers.overtaken == brokers.given_up == [0, 1]

    in_virtual_time(main)


def test_a_slow_one_may_still_answer_first() -> None:
    async def main() -> None:
        brokers = Brokers((SILENT_S + 1, None), (NEVER, None))
        assert await brokers.any() == "of 0"
        await asyncio.sleep(0)
        assert brokers.overtaken == brokers.given_up == [1]

    in_virtual_time(main)


def test_one_that_fails_is_followed_at_once() -> None:
    async def main() -> None:
        brokers = Brokers((0.0, LOST), (0.0, LOST), (0.0, None))
        assert await brokers.any() == "of 2"
        assert brokers.asked == [(0, 0.0), (1, 0.0), (2, 0.0)]
        assert brokers.overtaken == []

    in_virtual_time(main)


def test_the_last_one_is_waited_for_as_long_as_it_takes() -> None:
    async def main() -> None:
        alone = Brokers((100.0, None))
        assert await alone.any() == "of 0"
        brokers = Brokers((0.0, LOST), (100.0, None))
        assert await brokers.any() == "of 1"

    in_virtual_time(main)


def test_if_all_fail_the_error_names_all_of_them() -> None:
    async def main() -> None:
        brokers = Brokers((5.0, LOST), (0.0, LOST))
        with pytest.raises(RequestError, match=r"^1 failed; 0 failed") as raised:
            await brokers.any()
        assert raised.value.code is LOST

    in_virtual_time(main)


def test_an_answer_that_is_an_error_is_final() -> None:
    async def main() -> None:
        brokers = Brokers((0.0, REFUSED), (0.0, None))
        with pytest.raises(RequestError, match="0 failed"):
            await brokers.any()
        assert [number for number, _ in brokers.asked] == [0]

    in_virtual_time(main)


def test_who_gives_up_the_call_gives_up_all_that_were_asked() -> None:
    async def main() -> None:
        brokers = Brokers((NEVER, None), (NEVER, None))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2 * SILENT_S):
                await brokers.any()
        await asyncio.sleep(0)
        assert brokers.given_up == [0, 1]

    in_virtual_time(main)
