"""Runs seeds one after the other until one fails, and says so in one line of JSON.

A process of its own, whose Python path names the source that is searched:
``python -m tests.proofs._seek WORKLOAD FIRST END [--brokers N] [--checker]``.
"""

import argparse
import json
import logging
import multiprocessing
import signal
import sys
from collections.abc import Sequence

from fencelog.check.history import FINAL
from fencelog.check.verdict import ERRORS
from fencelog_sim.run import Case, run

SEEDS_PER_PROCESS = 15
"""A process keeps what its killed brokers were doing, so it gives way to the next one."""

RUN_CPU_S = 60
"""Many times what a sound run needs: a bug may be found by a broker that spins."""


NEED_FINAL_READERS = {"lost-write", "torn-transaction", "unseen"}
"""Without final readers that read the whole log, these prove nothing."""
WORKLOADS_SAY = (
    "spurious-out-of-order",
    "version ",
    "transfer ",
    *("broken", "left behind"),
    *("lost", "aborted", "twice", "elsewhere", "from nowhere", "reads back", "reads twice"),
    *("two owners", "epoch back", "stale claim", "overtaken", "left over", "still open"),
    *("not the owner's", "a zombie's", "zombie's", "nobody's", "older commit"),
    *("wrong fence", "wrong copy", "refused and stored"),
    *("order of", "wrong range", "behind the seal", "unfinished", "read otherwise", "refused:"),
    *("copied", "not copied"),
)


def first_problems(problems: Sequence[str]) -> dict[str, str]:
    """The kinds of problems, and the first problem of each kind; the checker's come first.

    The checker's anomalies go by their names.
    """
    has_ended = not any(each.startswith(f"client {FINAL}") for each in problems)
    by_kind: dict[str, str] = {}
    for problem in problems:
        kind = _kind(problem)
        if has_ended or kind not in NEED_FINAL_READERS:
            by_kind.setdefault(kind, problem)
    return {kind: by_kind[kind] for kind in sorted(by_kind, key=lambda each: each not in ERRORS)}


def _kind(problem: str) -> str:
    head = problem.split(":", 1)[0]
    if head in ERRORS:
        return head
    if head.startswith(f"client {FINAL}") or head == "stuck" or "did not end" in problem:
        return "a bound"
    if head.startswith("client "):
        return "a client"
    if head.startswith("unhandled"):
        return "an assertion"
    return "the workload" if head.startswith(WORKLOADS_SAY) else "a monitor"


class _EndlessError(KeyboardInterrupt):
    """A run gets nowhere. Tasks keep every other exception to themselves."""


def _give_up(number: int, frame: object) -> None:
    raise _EndlessError(f"a run took more than {RUN_CPU_S} s of processor time")


def seek(case: Case) -> tuple[int, list[str]]:
    """Run one seed; returns it with its problems."""
    logging.disable()
    signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, RUN_CPU_S)
    try:
        return case.seed, run(case).problems
    except _EndlessError as error:
        return case.seed, [f"stuck: {error}"]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main(arguments: Sequence[str]) -> int:
    """Look from a first seed up to an end; ``--checker``: for what the checker itself finds."""
    parser = argparse.ArgumentParser(prog="_seek")
    parser.add_argument("workload")
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--checker", action="store_true")
    asked = parser.parse_args(arguments)
    seeds = range(asked.first, asked.end)
    cases = (Case(seed, asked.workload, brokers=asked.brokers) for seed in seeds)
    context = multiprocessing.get_context("fork")
    with context.Pool(1, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        for seed, problems in pool.imap(seek, cases):
            kinds = first_problems(problems)
            if kinds and (not asked.checker or any(kind in ERRORS for kind in kinds)):
                problem = next(iter(kinds.values()))
                found = {"seed": seed, "kinds": list(kinds), "problem": problem}
                print(json.dumps(found), flush=True)
                return 0
    print(json.dumps({"seed": None}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
