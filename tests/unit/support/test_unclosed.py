"""The tests' own check: a transport that is left open on a closed loop is found, and said where."""

import asyncio
import gc
import socket
import warnings

from tests.support.unclosed import left_open


async def _open() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)


async def _open_and_close() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        made = asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        transport, _ = await made
        transport.close()
        await asyncio.sleep(0)


def test_a_transport_left_open_is_found_with_its_place_and_test() -> None:
    loop = asyncio.SelectorEventLoop()
    loop.run_until_complete(_open())
    assert left_open() == []
    loop.close()
    (found,) = left_open()
    assert "in _open\n" in found
    assert "test_a_transport_left_open_is_found_with_its_place_and_test" in found
    assert left_open() == []
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


def test_one_that_is_closed_is_not() -> None:
    loop = asyncio.SelectorEventLoop()
    loop.run_until_complete(_open_and_close())
    loop.close()
    assert left_open() == []
