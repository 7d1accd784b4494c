"""Deadlines that are put off, against a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.timers import Timers
from fencelog.types import Instant

keys = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("set"), keys, st.integers(0, 20)),
    st.tuples(st.just("cancel"), keys, st.just(0)),
    st.tuples(st.just("take"), st.just(""), st.integers(0, 20)),
)


@given(st.lists(steps, max_size=30))
def test_what_is_due_is_what_a_dictionary_of_deadlines_says(
    script: list[tuple[str, str, int]],
) -> None:
    timers: Timers[str] = Timers()
    model: dict[str, Instant] = {}
    now = Instant(0.0)
    for verb, key, number in script:
        if verb == "set":
            due = Instant(now + number)
            timers.set(key, due)
            model[key] = due
        elif verb == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            now = Instant(now + number)
            late = {each for each, due in model.items() if due <= now}
            assert set(timers.take_due(now)) == late
            for each in late:
                del model[each]
        earliest = timers.next_due()
        assert (earliest is None) == (not model)
        assert earliest is None or earliest <= min(model.values())
        assert {each for each in "abc" if timers.has(each)} == model.keys()


def test_a_deadline_that_is_put_off_is_not_looked_for_among_the_others() -> None:
    timers: Timers[int] = Timers()
    for number in range(1000):
        timers.set(number, Instant(10.0))
    for _ in range(100):
        timers.set(7, Instant(20.0))
    assert len(timers._heap) == 1000
    assert len(list(timers.take_due(Instant(10.0)))) == 999
    assert timers.next_due() == 20.0


def test_keys_that_come_and_go_leave_nothing_behind() -> None:
    timers: Timers[int] = Timers()
    timers.set(-1, Instant(7.0))
    for number in range(10_000):
        timers.set(number, Instant(1000.0))
        timers.cancel(number)
    assert len(timers._heap) < 2000
    assert timers.next_due() == 7.0
    assert list(timers.take_due(Instant(2000.0))) == [-1]
