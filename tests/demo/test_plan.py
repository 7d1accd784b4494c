"""Which fault is due when."""

from fencelog_demo.plan import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    PATIENCE_S,
    PLAN,
    Fault,
    Injection,
    PlanProgress,
    Reached,
)


def at(point: str, batch: int, tally: int = 10, pipeline: str = EXACTLY_ONCE) -> Reached:
    return Reached(pipeline=pipeline, point=point, batch=batch, tally=tally, pid=1)


def both(progress: PlanProgress, point: str, batch: int) -> Injection | None:
    """Both pipelines arrive; the fault that is then due."""
    for pipeline in (EXACTLY_ONCE, AT_LEAST_ONCE):
        progress.holds(at(point, batch, pipeline=pipeline), now=0.0)
    return progress.due(now=0.0)


def test_the_plan_kills_worker_broker_and_driver_and_ends_with_a_zombie() -> None:
    killed = [(fault.role, fault.point) for fault in PLAN if not fault.freeze]
    assert killed == [
        ("worker", "task-written"),
        ("broker", "task-writing"),
        ("driver", "before-commit"),
        ("driver", "after-commit"),
    ]
    assert [fault.name for fault in PLAN if fault.freeze] == ["zombie"]


def test_faults_are_injected_in_order_each_once() -> None:
    progress = PlanProgress()
    injections = [both(progress, fault.point, batch) for batch, fault in enumerate(PLAN)]
    assert [injection.fault for injection in injections if injection] == list(PLAN)
    assert progress.finished
    assert both(progress, "before-commit", 99) is None


def test_a_fault_waits_until_both_pipelines_are_at_its_point() -> None:
    progress = PlanProgress()
    assert progress.holds(at("task-written", 0), now=0.0)
    assert progress.due(now=1.0) is None
    assert progress.holds(at("task-written", 3, pipeline=AT_LEAST_ONCE), now=1.0)
    injection = progress.due(now=1.0)
    assert injection is not None
    assert {name: each.batch for name, each in injection.where.items()} == {
        EXACTLY_ONCE: 0,
        AT_LEAST_ONCE: 3,
    }


def test_only_one_of_a_pipeline_is_held_at_a_time() -> None:
    progress = PlanProgress()
    assert progress.holds(at("task-written", 0), now=0.0)
    assert not progress.holds(at("task-written", 0), now=0.0)


def test_the_wait_for_the_other_pipeline_ends() -> None:
    progress = PlanProgress()
    progress.holds(at("task-written", 0), now=0.0)
    injection = progress.due(now=PATIENCE_S + 1)
    assert injection is not None
    assert list(injection.where) == [EXACTLY_ONCE]


def test_no_fault_is_injected_into_at_least_once_alone() -> None:
    progress = PlanProgress()
    progress.holds(at("task-written", 0, pipeline=AT_LEAST_ONCE), now=0.0)
    assert progress.due(now=PATIENCE_S + 1) is None
    assert both(progress, "task-written", 1) is not None


def test_a_batch_gets_one_fault_only() -> None:
    progress = PlanProgress(
        (PLAN[0], Fault(name="x", point="before-commit", role="driver", title="x"))
    )
    assert both(progress, "task-written", 4) is not None
    assert both(progress, "before-commit", 4) is None
    assert both(progress, "before-commit", 5) is not None


def test_an_empty_batch_gets_no_fault() -> None:
    assert not PlanProgress().holds(at("task-written", 0, tally=0), now=0.0)


def test_a_process_at_another_point_does_not_wait() -> None:
    assert not PlanProgress().holds(at("before-commit", 0), now=0.0)
