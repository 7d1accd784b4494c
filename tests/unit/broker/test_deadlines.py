"""One timer for all waits: each ends when it is due, in any order of arrival."""

import asyncio
from collections.abc import Callable

from fencelog.broker.network.deadlines import Deadlines


class Wait:
    """Notes in a common list that it has expired."""

    def __init__(self, name: str, expired: list[str], then: Callable[[], None]) -> None:
        self._name = name
        self._expired = expired
        self._then = then

    def expire(self) -> None:
        self._expired.append(self._name)
        self._then()


def nothing() -> None:
    pass


def expired_until_last(
    waits: list[tuple[str, float]],
    meanwhile: Callable[[Deadlines, dict[str, Wait]], None] = lambda _deadlines, _waits: None,
) -> list[str]:
    """Add the waits, each with its seconds, and "last" after them all; return who expired."""

    async def scenario() -> list[str]:
        deadlines = Deadlines()
        expired: list[str] = []
        over = asyncio.Event()
        named = {name: Wait(name, expired, nothing) for name, _ in waits}
        for name, after_s in waits:
            deadlines.add(named[name], after_s)
        deadlines.add(Wait("last", expired, over.set), max(s for _, s in waits) + 0.02)
        meanwhile(deadlines, named)
        async with asyncio.timeout(10):
            await over.wait()
        return expired

    return asyncio.run(scenario())


def test_waits_expire_in_the_order_of_their_deadlines() -> None:
    waits = [("third", 0.09), ("first", 0.01), ("second", 0.05)]
    assert expired_until_last(waits) == ["first", "second", "third", "last"]


def test_a_wait_that_was_done_in_time_never_expires() -> None:
    found = expired_until_last(
        [("done", 0.01), ("due", 0.03)],
        lambda deadlines, waits: deadlines.discard(waits["done"]),
    )
    assert found == ["due", "last"]


def test_an_expired_wait_may_discard_another_that_is_due() -> None:
    async def scenario() -> list[str]:
        deadlines = Deadlines()
        expired: list[str] = []
        over = asyncio.Event()
        other = Wait("other", expired, nothing)
        deadlines.add(Wait("first", expired, lambda: deadlines.discard(other)), 0)
        deadlines.add(other, 0)
        deadlines.add(Wait("last", expired, over.set), 0.02)
        async with asyncio.timeout(10):
            await over.wait()
        return expired

    assert asyncio.run(scenario()) == ["first", "last"]


def test_a_wait_added_after_all_have_ended_is_watched_again() -> None:
    async def scenario() -> list[str]:
        deadlines = Deadlines()
        expired: list[str] = []
        for name in ("one", "two"):
            over = asyncio.Event()
            deadlines.add(Wait(name, expired, over.set), 0.01)
            async with asyncio.timeout(10):
                await over.wait()
        return expired

    assert asyncio.run(scenario()) == ["one", "two"]
