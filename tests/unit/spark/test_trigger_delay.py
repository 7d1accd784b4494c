"""Small batches wait for more records, and not for ever."""

from fencelog.spark.trigger_delay import TriggerDelay


def delay(offsets_min: int | None = 10) -> TriggerDelay:
    return TriggerDelay(offsets_min=offsets_min, delay_max_ms=60_000)


def test_the_first_batch_of_a_run_waits_for_nothing() -> None:
    assert not delay().holds(1, 100.0)


def test_a_small_batch_waits_until_it_is_large_enough() -> None:
    waiting = delay()
    waiting.holds(1, 100.0)
    assert waiting.holds(9, 101.0)
    assert not waiting.holds(10, 102.0)
    assert waiting.holds(9, 103.0)


def test_a_small_batch_waits_no_longer_than_the_delay_since_the_last_one() -> None:
    waiting = delay()
    waiting.holds(1, 100.0)
    assert waiting.holds(1, 159.0)
    assert not waiting.holds(1, 160.0)
    assert waiting.holds(1, 219.0)


def test_nothing_to_read_does_not_begin_the_delay_anew() -> None:
    waiting = delay()
    waiting.holds(1, 100.0)
    assert not waiting.holds(0, 170.0)
    assert not waiting.holds(1, 171.0)


def test_without_a_minimum_nothing_waits() -> None:
    unlimited = delay(None)
    unlimited.holds(1, 100.0)
    assert not unlimited.holds(1, 100.1)
