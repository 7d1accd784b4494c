"""Virtual time, seeded randomness and process numbers, for what asks the standard library.

Installed once, before such a library is imported, since it may bind ``time.time`` at import. While
a simulated loop runs, the functions answer from it; at any other time they are the real ones.
"""

import asyncio
import os
import random
import time
import uuid

from fencelog.client.streams import synchronizer
from fencelog_sim.world.loop import SimLoop, current_process

EPOCH_S = 1_800_000_000.0
"""The time of day at which each run starts."""

_real_time = time.time
_real_time_ns = time.time_ns
_real_monotonic = time.monotonic
_real_monotonic_ns = time.monotonic_ns
_real_perf_counter = time.perf_counter
_real_urandom = os.urandom
_real_getpid = os.getpid


def install() -> None:
    """Put the trampolines in place; a second call does nothing."""
    if time.time is _time:
        return
    # Its compiled codec reads the clock behind our back.
    os.environ["AIOKAFKA_NO_EXTENSIONS"] = "1"
    time.time = _time
    time.time_ns = _time_ns
    time.monotonic = _monotonic
    time.monotonic_ns = _monotonic_ns
    time.perf_counter = _perf_counter
    os.urandom = _urandom
    os.getpid = _getpid
    uuid.uuid4 = _uuid4
    # ``datetime`` reads the clock by itself, and is no attribute that can be replaced.
    synchronizer._now_ms = _now_ms


def seed(of: str) -> None:
    """Start the standard library's shared generator from a run's seed."""
    random.seed(f"{of}/shared")


def _loop() -> SimLoop | None:
    loop = asyncio._get_running_loop()
    return loop if isinstance(loop, SimLoop) else None


def _time() -> float:
    loop = _loop()
    return _real_time() if loop is None else EPOCH_S + loop.time()


def _now_ms() -> int:
    return int(_time() * 1000)


def _time_ns() -> int:
    loop = _loop()
    return _real_time_ns() if loop is None else int((EPOCH_S + loop.time()) * 1e9)


def _monotonic() -> float:
    loop = _loop()
    return _real_monotonic() if loop is None else loop.time()


def _monotonic_ns() -> int:
    loop = _loop()
    return _real_monotonic_ns() if loop is None else int(loop.time() * 1e9)


def _perf_counter() -> float:
    loop = _loop()
    return _real_perf_counter() if loop is None else loop.time()


def _urandom(size: int) -> bytes:
    return _real_urandom(size) if _loop() is None else random.randbytes(size)


def _getpid() -> int:
    """Of the simulated process: a claim's holder is named after it."""
    process = None if _loop() is None else current_process.get(None)
    return _real_getpid() if process is None else process.number


def _uuid4() -> uuid.UUID:
    return uuid.UUID(bytes=os.urandom(16), version=4)
