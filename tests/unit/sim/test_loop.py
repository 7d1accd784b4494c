"""Virtual time, seeded order, and processes that end or stand still at any await."""

import asyncio
import re
import signal
import time
from contextlib import suppress

import pytest

from fencelog_sim.world import endless
from fencelog_sim.world.endless import EndlessStepError
from fencelog_sim.world.loop import SimLoop, StuckError


def play(seed: str = "1") -> tuple[list[int], SimLoop]:
    """Ten tasks that are ready in the same iterations; the order of their steps."""
    loop, order = SimLoop(seed), []

    async def worker(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            order.append(number)

    async def main() -> None:
        tasks = [asyncio.create_task(worker(number)) for number in range(10)]
        await asyncio.wait(tasks)

    loop.run(main(), limit_s=1.0)
    return order, loop


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endless, "CPU_S", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("waits", [False, True])
def test_steps_that_never_end_are_ended_and_named(*, waits: bool) -> None:
    before = signal.getsignal(signal.SIGVTALRM)

    async def spin() -> None:
        while True:
            with suppress(Exception):
                while not waits:
                    pass  # in no call of its own: the innermost is named
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(asyncio.sleep(1.0), spin())

    with pytest.raises(EndlessStepError, match=r"^steps without end: ") as ended:
        SimLoop("1").run(main(), limit_s=10.0)
    assert waits or re.search(r", spin \(test_loop\.py:\d+\)$", str(ended.value))
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.usefixtures("quick")
def test_steps_that_wait_may_take_any_time_together() -> None:
    async def main() -> int:
        turns, until = 0, time.process_time() + 0.3
        while time.process_time() < until:
            turns += 1
            await asyncio.sleep(0.1)
        return turns

    loop = SimLoop("1")
    turns = loop.run(main(), limit_s=10_000.0)
    assert loop.time() == pytest.approx(turns * 0.1, rel=0.01)


def test_the_seed_decides_the_order_of_steps() -> None:
    (one, loop_one), (same, loop_same), (other, loop_other) = play("1"), play("1"), play("2")
    assert one == same
    assert loop_one.digest() == loop_same.digest()
    assert one != other
    assert loop_one.digest() != loop_other.digest()


def test_callbacks_keep_their_order() -> None:
    loop, order = SimLoop("1"), []

    async def main() -> None:
        for number in range(50):
            loop.call_soon(order.append, number)
        await asyncio.sleep(0.1)

    loop.run(main(), limit_s=1.0)
    assert order == list(range(50))


def test_time_jumps_to_the_next_timer() -> None:
    loop = SimLoop("1")
    loop.run(asyncio.sleep(3600), limit_s=4000)
    assert loop.time() == pytest.approx(3600, abs=0.01)
    assert loop.events < 20


def test_a_loop_without_waits_does_not_stop_the_clock() -> None:
    loop = SimLoop("1")

    async def spin() -> None:
        for _ in range(1_000_000):
            await asyncio.sleep(0)

    with pytest.raises(TimeoutError, match=r"within 0 virtual seconds"):
        loop.run(spin(), limit_s=0.01)


def test_waiting_for_nothing_is_an_error() -> None:
    loop = SimLoop("1")

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(StuckError):
        loop.run(main(), limit_s=1.0)


def test_a_killed_process_runs_nothing_more_not_even_its_finally() -> None:
    loop, done = SimLoop("1"), []
    process = loop.process("victim", "host")

    async def generator():
        try:
            yield 1
        finally:
            done.append("generator closed")

    async def victim() -> None:
        try:
            async for _ in generator():
                await asyncio.sleep(10)
        finally:
            done.append("finally")

    async def main() -> None:
        loop.start(process, victim())
        await asyncio.sleep(1)
        loop.kill(process)
        await asyncio.sleep(100)

    loop.run(main(), limit_s=1000)
    assert done == []


def test_a_paused_process_goes_on_where_it_stood() -> None:
    loop, ticks = SimLoop("1"), []
    process = loop.process("sleeper", "host")

    async def sleeper() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(loop.time())

    async def main() -> None:
        loop.start(process, sleeper())
        await asyncio.sleep(2.5)
        loop.pause(process)
        await asyncio.sleep(10)
        assert len(ticks) == 2
        loop.resume(process)
        await asyncio.sleep(2)

    loop.run(main(), limit_s=100)
    assert ticks == pytest.approx([1, 2, 12.5, 13.5], abs=0.01)


def test_sets_of_tasks_and_futures_have_one_order() -> None:
    def order() -> list[int]:
        loop = SimLoop("1")
        seen: list[int] = []

        async def main() -> None:
            futures = [loop.create_future() for _ in range(600)]
            numbers = {future: number for number, future in enumerate(futures)}
            seen.extend(numbers[future] for future in set(futures))
            for future in futures:
                future.set_result(None)

        loop.run(main(), limit_s=1.0)
        return seen

    assert order() == order()
