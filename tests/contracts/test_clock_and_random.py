"""The contracts of WallClock and Random, for the machine's own and the simulated ones."""

import time
from random import Random

import pytest

from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.ports import Random as RandomPort
from fencelog.ports import WallClock
from fencelog_sim.world.clocks import SimRandom, SimWallClock

CLOCKS = [SystemClock(), SimWallClock(time.time, 0)]
RANDOMS = [SystemRandom(), SimRandom(Random(0))]


@pytest.mark.parametrize("clock", CLOCKS, ids=lambda clock: type(clock).__name__)
def test_the_clock_says_milliseconds_since_1970(clock: WallClock) -> None:
    before = int(time.time() * 1000)
    assert before <= clock.now_ms() <= int(time.time() * 1000)


@pytest.mark.parametrize("random", RANDOMS, ids=lambda random: type(random).__name__)
def test_random_bytes_have_the_length_and_do_not_repeat(random: RandomPort) -> None:
    assert random.bytes(0) == b""
    drawn = {random.bytes(16) for _ in range(100)}
    assert len(drawn) == 100
    assert {len(some) for some in drawn} == {16}
