"""An alarm goes off at its last deadline, and not before."""

import asyncio

from fencelog.broker.replicas.alarm import Alarm

SOON_S = 0.01


async def test_it_goes_off_at_the_deadline_it_was_moved_to() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    alarm = Alarm(rung.set)
    alarm.set(loop.time() + SOON_S)
    moved_to = loop.time() + 5 * SOON_S
    alarm.set(moved_to)
    await rung.wait()
    assert loop.time() >= moved_to


async def test_once_cleared_it_waits_for_another_deadline() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    alarm = Alarm(rung.set)
    cleared_at = loop.time() + SOON_S
    alarm.set(cleared_at)
    alarm.clear()
    later = asyncio.Event()
    loop.call_at(cleared_at + SOON_S, later.set)
    await later.wait()
    assert not rung.is_set()
    alarm.set(loop.time() + SOON_S)
    await rung.wait()


async def test_a_closed_one_keeps_no_timer() -> None:
    loop = asyncio.get_running_loop()
    rung: list[str] = []
    alarm = Alarm(lambda: rung.append("rung"))
    due = loop.time() + SOON_S
    alarm.set(due)
    alarm.close()
    later = asyncio.Event()
    loop.call_at(due + SOON_S, later.set)
    await later.wait()
    assert not rung
