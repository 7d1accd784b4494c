"""Runs one case and tells it in one line of JSON: its faults, and what the checker says of it.

A process of its own, whose Python path names the source that is run:
``python -m tests.proofs._tell CASE [KIND]``. With the kind of an anomaly the case is made small
first, as long as the checker still finds that anomaly.
"""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace

from fencelog.check import check
from fencelog.sim.run import Case, Result, run
from fencelog.sim.shrink import shrink


def case_of(text: str) -> Case:
    """Read a case; without a plan its faults are the seed's."""
    entry = json.loads(text)
    return Case.from_json(entry) if "plan" in entry else Case(**entry)


def small(case: Case, kind: str) -> Case:
    """The same anomaly with fewer faults and clients, in a shorter run."""

    def attempt(tried: Case) -> Result:
        result = run(tried)
        same = [each for each in result.problems if each.startswith(f"{kind}:")]
        return replace(result, problems=same)

    best = shrink(attempt(case), attempt)
    return replace(best.case, plan=best.plan, clients=best.scale.clients, span_s=best.span_s)


def main(arguments: Sequence[str]) -> int:
    """Tell a case."""
    logging.disable()
    case = case_of(arguments[0])
    if len(arguments) > 1:
        case = small(case, arguments[1])
    result = run(case)
    verdict = check(result.history)
    findings = [
        {"kind": each.kind, "text": each.text, "witness": [w.line() for w in each.witness]}
        for each in verdict.problems
    ]
    told = {
        "case": case.to_json(),
        "setting": f"{result.setting.durability} mode, {result.scale.clients} clients, "
        f"{result.scale.partitions} partitions",
        "faults": result.story,
        "headline": verdict.text().splitlines()[0],
        "findings": findings,
        "problems": result.problems,
        "checked": {name: verdict.counts[name] for name in ("operations", "sends")},
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
