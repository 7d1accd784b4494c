"""Makes a failing case small: fewer faults, fewer clients, a shorter run, the same problem."""

import re
from collections.abc import Callable
from dataclasses import replace

from fencelog_sim.faults import Fault, Plan
from fencelog_sim.run import Case, Result

RUNS_MAX = 120


def shrink(result: Result, attempt: Callable[[Case], Result]) -> Result:
    """The smallest failing case that at most RUNS_MAX attempts find.

    ``attempt`` runs a case; any problem of the kinds that the first result had counts as the same.
    """
    kinds = problem_kinds(result)
    best = result
    left = RUNS_MAX

    def fails(case: Case) -> bool:
        nonlocal best, left
        if left <= 0:
            return False
        left -= 1
        tried = attempt(case)
        if not kinds & problem_kinds(tried):
            return False
        best = tried
        return True

    case = replace(
        result.case, plan=result.plan, clients=result.scale.clients, span_s=result.span_s
    )
    case = _fewer_faults(case, result.plan, fails)
    case = _simpler_faults(case, fails)
    for clients in range(1, result.scale.clients):
        if fails(replace(case, clients=clients)):
            case = replace(case, clients=clients)
            break
    for share in (0.25, 0.5, 0.75):
        shorter = replace(case, span_s=round(result.span_s * share, 3))
        if fails(shorter):
            break
    return best


def problem_kinds(result: Result) -> set[str]:
    """The kinds of a result's problems: what comes first in them, without numbers."""
    return {re.sub(r"\d+", "#", problem.split(":", 1)[0]) for problem in result.problems}


def _fewer_faults(case: Case, plan: Plan, fails: Callable[[Case], bool]) -> Case:
    """Delta debugging: leave out halves, quarters … as long as it still fails."""
    size = max(1, len(plan) // 2)
    while plan:
        for start in range(0, len(plan), size):
            fewer = plan[:start] + plan[start + size :]
            if fails(replace(case, plan=fewer)):
                plan, case = fewer, replace(case, plan=fewer)
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
            continue
        size = min(size, max(1, len(plan)))
    return case


def _simpler_faults(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Inject each fault at its time instead of at a point, for one second."""
    plan = case.plan or ()
    for number, fault in enumerate(plan):
        for simpler in _simpler(fault):
            changed = (*plan[:number], simpler, *plan[number + 1 :])
            if simpler != fault and fails(replace(case, plan=changed)):
                plan, case = changed, replace(case, plan=changed)
                break
    return case


def _simpler(fault: Fault) -> tuple[Fault, ...]:
    timed = replace(fault, point="", nth=1, after=False)
    return (replace(timed, seconds=1.0), timed, replace(fault, seconds=1.0))
