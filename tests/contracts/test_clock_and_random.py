"""The contracts of WallClock and Random, for the machine's own."""

import time

from fencelog.adapters.system_clock import SystemClock, SystemRandom


def test_the_clock_says_milliseconds_since_1970() -> None:
    before = int(time.time() * 1000)
    assert before <= SystemClock().now_ms() <= int(time.time() * 1000)


def test_random_bytes_have_the_length_and_do_not_repeat() -> None:
    random = SystemRandom()
    assert random.bytes(0) == b""
    drawn = {random.bytes(16) for _ in range(100)}
    assert len(drawn) == 100
    assert {len(some) for some in drawn} == {16}
