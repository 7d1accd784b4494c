"""One timer for all waits: each ends when it is due, in any order of arrival."""

import asyncio
from collections.abc import Callable

from fencelog.broker.network.deadlines import Deadlines
from tests.support.leftovers import timers


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
    *,
    end_s: float | None = None,
) -> list[str]:
    """Add the waits, each with its seconds, and "last"; return who expired until then."""

    async def scenario() -> list[str]:
        deadlines = Deadlines()
        expired: list[str] = []
        over = asyncio.Event()
        named = {name: Wait(name, expired, nothing) for name, _ in waits}
        for name, after_s in waits:
            deadlines.add(named[name], after_s)
        last_s = max(s for _, s in waits) + 0.02 if end_s is None else end_s
        deadlines.add(Wait("last", expired, over.set), last_s)
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


def test_a_wait_whose_expiry_raises_leaves_the_others_their_deadlines() -> None:
    async def scenario() -> list[str]:
        errors: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))
        deadlines = Deadlines()
        expired: list[str] = []
        over = asyncio.Event()
        deadlines.add(Wait("raises", expired, lambda: [].remove(1)), 0)  # type: ignore[arg-type]
        deadlines.add(Wait("last", expired, over.set), 0.02)
        async with asyncio.timeout(10):
            await over.wait()
        assert [type(error) for error in errors] == [ValueError]
        return expired

    assert asyncio.run(scenario()) == ["raises", "last"]


def test_a_nearer_deadline_is_not_late_for_a_later_one_that_came_first() -> None:
    assert expired_until_last([("far", 60.0), ("near", 0.01)], end_s=0.03) == ["near", "last"]


def test_after_the_stop_nothing_expires_and_no_timer_is_left() -> None:
    async def scenario() -> None:
        deadlines = Deadlines()
        expired: list[str] = []
        deadlines.add(Wait("gone", expired, nothing), 0.005)
        deadlines.stop()
        assert timers() == set()
        await asyncio.sleep(0.02)
        assert expired == []

    asyncio.run(scenario())
