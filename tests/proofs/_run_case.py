"""Runs one case and describes it in one line of JSON: its faults, and what the checker says of it.

A process of its own, whose Python path names the source that is run:
``python -m tests.proofs._run_case CASE [KIND]``. With the kind of an anomaly the case is made small
first, as long as the checker still finds that anomaly.
"""

import json
import logging
import sys
from collections.abc import Container, Sequence
from dataclasses import replace

from fencelog.check import Verdict, check
from fencelog_sim.run import Case, Result, run
from fencelog_sim.shrink import shrink
from tests.proofs._seek import first_problems


def case_of(text: str) -> Case:
    """Read a case; without a plan its faults are the seed's."""
    entry = json.loads(text)
    return Case.from_json(entry) if "plan" in entry else Case(**entry)


def small(case: Case, kind: str) -> Case:
    """The same anomaly with fewer faults and clients, in a shorter run."""

    def attempt(tried: Case) -> Result:
        result = run(tried)
        found = first_problems(result.problems)
        return replace(result, problems=[found[kind]] if kind in found else [])

    best = shrink(attempt(case), attempt)
    return replace(best.case, plan=best.plan, clients=best.scale.clients, span_s=best.span_s)


def headline(verdict: Verdict, kinds: Container[str]) -> str:
    """The verdict in a line, about these kinds."""
    found = [f"{count} {kind}" for kind, count in verdict.found.items() if kind in kinds]
    return f"INVALID: {', '.join(found)}" if found else verdict.text().splitlines()[0]


def main(arguments: Sequence[str]) -> int:
    """Run a case and print its description."""
    logging.disable()
    case = case_of(arguments[0])
    if len(arguments) > 1:
        case = small(case, arguments[1])
    result = run(case)
    verdict = check(result.history)
    kinds = first_problems(result.problems)
    findings = [
        {
            "kind": each.kind,
            "text": each.text,
            "counterexample": [w.line() for w in each.counterexample],
        }
        for each in verdict.problems
        if each.kind in kinds
    ]
    description = {
        "case": case.to_json(),
        "setting": f"{result.setting.durability} mode, {result.scale.clients} clients, "
        f"{result.scale.partitions} partitions",
        "faults": result.story,
        "headline": headline(verdict, kinds),
        "findings": findings,
        "problems": result.problems,
        "checked": {name: verdict.counts[name] for name in ("operations", "sends")},
    }
    print(json.dumps(description))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
