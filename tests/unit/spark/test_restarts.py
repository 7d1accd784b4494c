"""Which failed queries come back, and how soon."""

import pytest

from fencelog.spark.restarts import DELAY_MAX_S, FINAL, Restarts

LOST = "fencelog.errors.RequestError: no response (NETWORK_EXCEPTION)"


def test_the_wait_doubles_until_a_batch_is_done() -> None:
    restarts = Restarts(enabled=True)
    waits = [restarts.after("q", LOST, batches=3, now_s=0.0) for _ in range(8)]
    assert waits == [1, 2, 4, 8, 16, 32, DELAY_MAX_S, DELAY_MAX_S]
    assert restarts.after("q", LOST, batches=4, now_s=0.0) == 1


def test_a_query_is_due_once_after_its_wait() -> None:
    restarts = Restarts(enabled=True)
    restarts.after("q", LOST, batches=0, now_s=10.0)
    assert restarts.waits()
    assert restarts.waits("q")
    assert restarts.take_due(10.9) == []
    assert restarts.take_due(11.0) == ["q"]
    assert not restarts.waits()
    assert restarts.take_due(20.0) == []


@pytest.mark.parametrize("kind", FINAL)
def test_what_a_restart_does_not_cure_is_final(kind: str) -> None:  # S5
    restarts = Restarts(enabled=True)
    assert restarts.after("q", f"fencelog.errors.{kind}: why", batches=0, now_s=0.0) is None
    assert not restarts.waits()


def test_without_the_option_every_failure_is_final() -> None:
    assert Restarts(enabled=False).after("q", LOST, batches=0, now_s=0.0) is None
