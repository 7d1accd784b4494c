"""The loop's thread, and calls that meet its close."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from fencelog.client.loop_thread import LoopThread
from fencelog.errors import FencelogError

DEADLINE_S = 10.0


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_a_call_that_meets_the_close_is_refused_and_waits_for_nothing() -> None:
    closing, said = threading.Event(), threading.Event()

    async def farewell() -> None:
        closing.set()
        await asyncio.to_thread(said.wait, DEADLINE_S)

    thread = LoopThread("test", farewell)
    closer = threading.Thread(target=thread.close)
    closer.start()
    assert closing.wait(DEADLINE_S)
    try:
        with pytest.raises(FencelogError, match="closed"):
            thread.submit(for_ever()).result(DEADLINE_S)
    finally:
        said.set()
        closer.join(DEADLINE_S)


def test_a_call_that_came_before_the_close_is_cancelled_by_it() -> None:
    async def farewell() -> None:
        pass

    thread = LoopThread("test", farewell)
    waiting = thread.submit(for_ever())
    thread.close()
    with pytest.raises(CancelledError):
        waiting.result(DEADLINE_S)
    thread.close()


def test_a_thread_that_nobody_closed_does_not_keep_its_process_alive() -> None:
    async def farewell() -> None:
        pass

    before = set(threading.enumerate())
    thread = LoopThread("named", farewell)
    (new,) = set(threading.enumerate()) - before
    assert (new.name, new.daemon) == ("named", True)
    thread.close()
    assert not new.is_alive()
