"""Which blow falls when."""

from fencelog.demo.plan import PLAN, Course, Reached, Strike


def at(point: str, batch: int, tally: int = 10) -> Reached:
    return Reached(point=point, batch=batch, tally=tally, pid=1)


def test_the_plan_kills_what_can_die_and_ends_with_a_zombie() -> None:
    killed = [(strike.role, strike.point) for strike in PLAN if not strike.freeze]
    assert killed == [
        ("worker", "task-written"),
        ("broker", "task-writing"),
        ("driver", "before-commit"),
        ("driver", "after-commit"),
    ]
    assert [strike.name for strike in PLAN if strike.freeze] == ["zombie"]


def test_strikes_fall_in_order_each_once() -> None:
    course = Course()
    fallen = [course.strike(at(strike.point, batch)) for batch, strike in enumerate(PLAN)]
    assert fallen == list(PLAN)
    assert course.finished
    assert course.strike(at("before-commit", 99)) is None


def test_a_batch_that_was_hit_is_not_hit_again() -> None:
    course = Course((PLAN[0], Strike(name="x", point="before-commit", role="driver", title="x")))
    assert course.strike(at("task-written", 4)) is PLAN[0]
    assert course.strike(at("before-commit", 4)) is None
    assert course.strike(at("before-commit", 5)) is not None


def test_an_empty_batch_is_spared() -> None:
    assert Course().strike(at("task-written", 0, tally=0)) is None


def test_another_point_is_passed_by() -> None:
    assert Course().strike(at("before-commit", 0)) is None
