"""The simulated wall clock follows virtual time, and may be wrong; randomness follows its seed."""

from random import Random

from fencelog_sim.world.clocks import SimRandom, SimWallClock


def test_the_clock_follows_virtual_time_from_its_epoch() -> None:
    now = 0.0
    clock = SimWallClock(lambda: now, 1_800_000_000_000)
    assert clock.now_ms() == 1_800_000_000_000
    now = 12.3456
    assert clock.now_ms() == 1_800_000_012_345


def test_a_skewed_clock_is_wrong_by_that_much_and_can_go_back() -> None:
    clock = SimWallClock(lambda: 1.0, 0)
    clock.skew_ms = 500
    assert clock.now_ms() == 1_500
    clock.skew_ms = -3_000
    assert clock.now_ms() == -2_000


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, second, other = SimRandom(Random(1)), SimRandom(Random(1)), SimRandom(Random(2))
    drawn = [first.bytes(16) for _ in range(3)]
    assert drawn == [second.bytes(16) for _ in range(3)]
    assert drawn != [other.bytes(16) for _ in range(3)]
