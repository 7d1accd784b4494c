"""Finds the transports that a test leaves open on an event loop of asyncio that it closes.

Python warns of one when it is collected, which may be many tests later. Here it is found when the
loop is closed, so that the test that left it open fails, with the place where it was opened.
"""

import os
import traceback
from asyncio import BaseTransport, selector_events
from typing import Any
from weakref import WeakKeyDictionary

_opened: WeakKeyDictionary[BaseTransport, str] = WeakKeyDictionary()
"""Where each was opened, and by which test."""
_left: list[str] = []


def watch() -> None:
    """Watch every loop from now on. Harmless twice."""
    loops: Any = selector_events.BaseSelectorEventLoop
    if hasattr(loops, "is_watched"):
        return
    loops.is_watched = True
    make, close = loops._make_socket_transport, loops.close

    def make_and_note(loop: Any, *args: Any, **options: Any) -> BaseTransport:
        transport: BaseTransport = make(loop, *args, **options)
        place = "".join(traceback.format_stack(limit=12)[:-1])
        _opened[transport] = f"opened in {os.environ.get('PYTEST_CURRENT_TEST')} at\n{place}"
        return transport

    def note_and_close(loop: Any) -> None:
        if not loop.is_closed():
            left = [each for each in loop._transports.values() if each._sock is not None]
            _left.extend(f"{each!r}, {_opened.get(each)}" for each in left)
        close(loop)

    loops._make_socket_transport, loops.close = make_and_note, note_and_close


def left_open() -> list[str]:
    """Return what has been left open since the last call."""
    found = list(_left)
    _left.clear()
    return found
