"""Runs seeds one after the other until one fails, and says so in one line of JSON.

A process of its own, whose Python path names the source that is searched:
``python -m tests.proofs._seek WORKLOAD FIRST END [--checker]``.
"""

import json
import logging
import multiprocessing
import sys
from collections.abc import Sequence

from fencelog.check.verdict import ERRORS
from fencelog.sim.run import Case, run

SEEDS_PER_PROCESS = 15
"""A process keeps what its killed brokers were doing, so it gives way to the next one."""


def kinds_of(problems: Sequence[str]) -> list[str]:
    """Who told of the problems: the checker's anomalies by name, then monitors, then the rest."""
    found: dict[str, None] = {}
    for problem in problems:
        head = problem.split(":", 1)[0]
        if head in ERRORS:
            found[head] = None
    for problem in problems:
        head = problem.split(":", 1)[0]
        if head in ERRORS:
            continue
        if head.startswith("client "):
            found["a client"] = None
        elif head.startswith("unhandled"):
            found["an assertion"] = None
        elif head.startswith("stuck") or "did not end" in problem:
            found["a bound"] = None
        elif head in {"spurious-out-of-order"} or head.startswith(("version ", "transfer ")):
            found["the workload"] = None
        else:
            found["a monitor"] = None
    return list(found)


def seek(case: Case) -> tuple[int, list[str]]:
    """Run one seed; returns it with its problems."""
    logging.disable()
    return case.seed, run(case).problems


def main(arguments: Sequence[str]) -> int:
    """Look from a first seed up to an end; ``--checker``: for what the checker itself tells."""
    workload, first, end = arguments[0], int(arguments[1]), int(arguments[2])
    wants_checker = "--checker" in arguments
    cases = (Case(seed, workload) for seed in range(first, end))
    context = multiprocessing.get_context("fork")
    with context.Pool(1, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        for seed, problems in pool.imap(seek, cases):
            kinds = kinds_of(problems)
            if problems and (not wants_checker or any(kind in ERRORS for kind in kinds)):
                found = {"seed": seed, "kinds": kinds, "problem": problems[0]}
                print(json.dumps(found), flush=True)
                return 0
    print(json.dumps({"seed": None}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
