"""A timer runs its callback once, when it is due and not before, on every loop."""

import asyncio

import pytest

from fencelog.broker.timer import Timer
from fencelog.types import Instant
from tests.support.loops import LOOPS, run_on
from tests.support.node import until

on_every_loop = pytest.mark.parametrize("name", LOOPS)


@on_every_loop
def test_it_runs_once_and_never_early_however_near_the_time(name: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ran: list[tuple[float, Instant | None]] = []
        timer = Timer(lambda: ran.append((loop.time(), timer.due)))
        for step in range(60):  # 0 to 3 ms: around every rounding of half a millisecond
            due = Instant(loop.time() + step * 0.00005)
            timer.set(due)
            assert timer.due == due
            await until(lambda: ran, "it runs")
            await asyncio.sleep(0.001)
            ((ran_at, due_meanwhile),) = ran
            assert ran_at >= due
            assert due_meanwhile is None
            ran.clear()

    run_on(name, scenario)


@on_every_loop
def test_of_several_times_the_newest_counts(name: str) -> None:
    async def scenario() -> None:
        loop, ran = asyncio.get_running_loop(), []
        timer = Timer(lambda: ran.append(loop.time()))
        began = loop.time()
        for after_s in (60.0, 0.0002, 0.03, 0.01):
            timer.set(Instant(began + after_s))
        await until(lambda: ran, "it runs")
        await asyncio.sleep(0.03)
        assert len(ran) == 1
        assert ran[0] >= began + 0.01

    run_on(name, scenario)


@on_every_loop
def test_a_cancelled_one_runs_only_when_it_is_set_again(name: str) -> None:
    async def scenario() -> None:
        loop, ran = asyncio.get_running_loop(), []
        timer = Timer(lambda: ran.append("ran"))
        for after_s in (0.0, 0.0003, 0.002):
            timer.set(Instant(loop.time() + after_s))
            timer.cancel()
            assert timer.due is None
        await asyncio.sleep(0.01)
        assert ran == []
        timer.set(Instant(loop.time()))
        await until(lambda: ran, "it runs")

    run_on(name, scenario)
