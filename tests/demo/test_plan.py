"""Which blow falls when."""

from fencelog_demo.plan import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    PATIENCE_S,
    PLAN,
    Blow,
    Course,
    Reached,
    Strike,
)


def at(point: str, batch: int, tally: int = 10, pipeline: str = EXACTLY_ONCE) -> Reached:
    return Reached(pipeline=pipeline, point=point, batch=batch, tally=tally, pid=1)


def both(course: Course, point: str, batch: int) -> Blow | None:
    """Both pipelines arrive; the blow that then falls."""
    for pipeline in (EXACTLY_ONCE, AT_LEAST_ONCE):
        course.holds(at(point, batch, pipeline=pipeline), now=0.0)
    return course.due(now=0.0)


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
    fallen = [both(course, strike.point, batch) for batch, strike in enumerate(PLAN)]
    assert [blow.strike for blow in fallen if blow] == list(PLAN)
    assert course.finished
    assert both(course, "before-commit", 99) is None


def test_a_strike_waits_until_both_pipelines_stand_at_its_point() -> None:
    course = Course()
    assert course.holds(at("task-written", 0), now=0.0)
    assert course.due(now=1.0) is None
    assert course.holds(at("task-written", 3, pipeline=AT_LEAST_ONCE), now=1.0)
    blow = course.due(now=1.0)
    assert blow is not None
    assert {name: each.batch for name, each in blow.where.items()} == {
        EXACTLY_ONCE: 0,
        AT_LEAST_ONCE: 3,
    }


def test_only_one_of_a_pipeline_is_held_at_a_time() -> None:
    course = Course()
    assert course.holds(at("task-written", 0), now=0.0)
    assert not course.holds(at("task-written", 0), now=0.0)


def test_the_wait_for_the_other_pipeline_ends() -> None:
    course = Course()
    course.holds(at("task-written", 0), now=0.0)
    blow = course.due(now=PATIENCE_S + 1)
    assert blow is not None
    assert list(blow.where) == [EXACTLY_ONCE]


def test_no_strike_is_spent_on_the_other_pipeline_alone() -> None:
    course = Course()
    course.holds(at("task-written", 0, pipeline=AT_LEAST_ONCE), now=0.0)
    assert course.due(now=PATIENCE_S + 1) is None
    assert both(course, "task-written", 1) is not None


def test_a_batch_that_was_hit_is_not_hit_again() -> None:
    course = Course((PLAN[0], Strike(name="x", point="before-commit", role="driver", title="x")))
    assert both(course, "task-written", 4) is not None
    assert both(course, "before-commit", 4) is None
    assert both(course, "before-commit", 5) is not None


def test_an_empty_batch_is_spared() -> None:
    assert not Course().holds(at("task-written", 0, tally=0), now=0.0)


def test_another_point_is_passed_by() -> None:
    assert not Course().holds(at("before-commit", 0), now=0.0)
