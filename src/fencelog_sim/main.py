"""``./dev sim``: one seed in detail, or many in parallel."""

import argparse
import asyncio
import itertools
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Semaphore

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from fencelog_sim.run import Case, Result, run
from fencelog_sim.shrink import shrink
from fencelog_sim.workloads import WORKLOADS

SEEDS_PER_PROCESS = 100
"""A worker keeps the tasks of killed processes in memory, so it is replaced after these many."""
LOG_LINES = 40
FAILURES_SHOWN = 20
SLOT_POLL_S = 0.1
FAILED = 1
INTERRUPTED = 130
USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments name; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.case is not None:
        return _one(options, _read_case(options.case))
    wanted = options.workload or ("all" if options.seed is None else "queue")
    names = sorted(WORKLOADS) if wanted == "all" else [wanted]
    if options.seed is not None and len(names) == 1:
        return _one(options, Case(options.seed, names[0], brokers=options.brokers))
    if options.seed is not None:
        options.seeds = (options.seed, options.seed + 1)
    return _many(options, names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev sim",
        description="Run the real broker and real clients in a simulated world, by seed.",
        epilog="A failing seed is shrunk to a short plan of faults. The exit status is 1 then.",
    )
    parser.add_argument("seed", nargs="?", type=int, help="one seed, in detail")
    parser.add_argument(
        "--seeds", type=_range, metavar="A:B", default=(0, 200), help="from A to B-1 (0:200)"
    )
    parser.add_argument(
        "--workload",
        default=None,
        choices=[*sorted(WORKLOADS), "all"],
        help="what the clients do (queue for one seed, else all)",
    )
    parser.add_argument("--brokers", type=_count, default=1, help="of the cluster (1: alone)")
    parser.add_argument("--minutes", type=_minutes, help="run seeds from A for this many minutes")
    parser.add_argument("--jobs", type=_count, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--stop", action="store_true", help="end at the first failure")
    parser.add_argument("--no-shrink", action="store_true", help="leave failing plans as they are")
    parser.add_argument("--case", metavar="FILE", help="replay what a shrunk failure printed")
    parser.add_argument("--history", metavar="FILE", help="write one seed's history here")
    parser.add_argument("--log", action="store_true", help="show one seed's broker log")
    return parser


def _range(text: str) -> tuple[int, int]:
    first, colon, end = text.partition(":")
    if not colon or not first.isdecimal() or not end.isdecimal() or int(end) <= int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A < B, for example 0:200")
    return int(first), int(end)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if minutes <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, for example 1.5")
    return minutes


def _read_case(path: str) -> Case:
    try:
        return Case.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        sys.stderr.write(f"--case {path}: {type(error).__name__}: {error}\n")
        raise SystemExit(USAGE) from error


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


# -- one seed ----------------------------------------------------------------------------------


class _LogBuffer(logging.Handler):
    """The log of the run's broker, with virtual times."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        at = loop.time() if loop is not None else 0.0
        self.lines.append(f"{at:8.3f} s  {record.levelname.lower():7} {record.getMessage()}")


def _one(options: argparse.Namespace, case: Case) -> int:
    log = _LogBuffer()
    logging.basicConfig(handlers=[log], level=logging.INFO)
    result = run(case)
    _say(_story(result))
    if options.log or result.problems:
        _say("\nthe broker's log:", *(f"  {line}" for line in log.lines[-LOG_LINES:]))
    if options.history:
        lines = (json.dumps(event) + "\n" for event in result.history)
        Path(options.history).write_text("".join(lines), encoding="utf-8")
    if result.problems:
        _say(f"\nFAILED: seed {case.seed}, workload {case.workload}")
        _say(*(f"  {problem}" for problem in result.problems))
        if not options.no_shrink:
            logging.disable()
            _say(_shrunk(shrink(result, run)))
    _say(f"digest: {result.digest}")
    sys.stdout.flush()
    # The tasks of killed processes must not run their ``finally`` blocks now.
    os._exit(FAILED if result.problems else 0)


def _story(result: Result) -> str:
    setting, scale = result.setting, result.scale
    counts = ", ".join(f"{value} {name}" for name, value in result.counts.items())
    return "\n".join(
        [
            f"seed {result.case.seed}, workload {result.case.workload}: "
            f"{result.case.brokers} brokers, {setting.durability} mode, "
            f"{scale.clients} clients, {scale.partitions} partitions, "
            f"faults for {result.span_s:.1f} s",
            *(result.story or ["  no fault was injected"]),
            f"{result.events} events in {result.virtual_s:.1f} virtual seconds, "
            f"{result.real_s:.2f} real ones; {counts}",
        ]
    )


def _shrunk(small: Result) -> str:
    case = replace(small.case, plan=small.plan, clients=small.scale.clients, span_s=small.span_s)
    size = f"{len(small.plan)} faults, {small.scale.clients} clients, {small.span_s:.1f} s"
    return "\n".join(
        [
            f"shrunk to {size}: {small.problems[0]}",
            "replay it with --case FILE, where FILE has this line:",
            json.dumps(case.to_json()),
        ]
    )


# -- many seeds --------------------------------------------------------------------------------


@dataclass
class _Totals:
    seeds: int = 0
    events: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    injected: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.events += result.events
        self.virtual_s += result.virtual_s
        self.real_s += result.real_s
        self.injected.update(result.injected)
        self.counts.update(result.counts)
        if result.problems:
            self.failures.append(result)

    def note(self, took_s: float) -> str:
        """The text beside the progress bar."""
        return (
            f"{self.seeds / took_s:.1f}/s, {self.virtual_s / 3600:.2f} virtual hours, "
            f"{len(self.failures)} failed"
        )


def _light(case: Case) -> Result:
    """Run in a worker; return only what is needed."""
    logging.disable()
    result = run(case)
    return result if result.problems else replace(result, history=[], story=[])


class _Cases:
    """The cases to run, handed out a few at a time: a pool would take all of them at once."""

    def __init__(self, options: argparse.Namespace, names: Sequence[str]) -> None:
        first, end = options.seeds
        self.count = None if options.minutes else (end - first) * len(names)
        seeds = itertools.count(first) if options.minutes else range(first, end)
        brokers = options.brokers
        self._cases = (Case(seed, name, brokers=brokers) for seed in seeds for name in names)
        self._ends_at = time.monotonic() + 60 * options.minutes if options.minutes else None
        self.slots = Semaphore(options.jobs * 4)
        self.stopped = False

    def __iter__(self) -> Iterator[Case]:
        for case in self._cases:
            # The pool cannot end while this waits.
            while not self.slots.acquire(timeout=SLOT_POLL_S):
                if self.stopped:
                    return
            if self._ends_at is not None and time.monotonic() > self._ends_at:
                return
            yield case


def _many(options: argparse.Namespace, names: Sequence[str]) -> int:
    cases, totals, began = _Cases(options, names), _Totals(), time.monotonic()
    context = multiprocessing.get_context("fork")
    status = 0
    with (
        context.Pool(options.jobs, _ignore_sigint, (), SEEDS_PER_PROCESS) as pool,
        _progress(cases.count) as progress,
    ):
        bar = progress.add_task("seeds", total=cases.count, note="")
        try:
            for result in pool.imap_unordered(_light, cases):
                cases.slots.release()
                totals.add(result)
                progress.update(bar, advance=1, note=totals.note(time.monotonic() - began))
                if result.problems:
                    progress.console.print(_failure(result), highlight=False)
                    if options.stop:
                        break
        except KeyboardInterrupt:
            status = INTERRUPTED  # what was run so far is still reported
        finally:
            cases.stopped = True
    _report(totals, time.monotonic() - began)
    if totals.failures and not options.no_shrink and not status:
        with context.Pool(1, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
            worst = min(totals.failures, key=lambda each: each.events)
            _say(_shrunk(shrink(worst, lambda case: pool.apply(_light, (case,)))))
    return FAILED if totals.failures else status


def _ignore_sigint() -> None:
    """Ignore SIGINT in a worker: a terminal signals all processes, and the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _progress(count: int | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn() if count else TextColumn("{task.completed}"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True, soft_wrap=True),
    )


def _failure(result: Result) -> str:
    case = result.case
    return (
        f"FAILED seed {case.seed} {case.workload}: {result.problems[0][:300]}\n"
        f"  replay: ./dev sim {case.seed} --workload {case.workload}"
        + f" --brokers {case.brokers}"
        * (case.brokers > 1)
    )


def _report(totals: _Totals, took_s: float) -> None:
    console = Console(soft_wrap=True, highlight=False)
    if not totals.seeds:
        console.print("no seed was run in this time")
        return
    table = Table("fault", "injected", box=None)
    for kind, number in totals.injected.most_common():
        table.add_row(kind, str(number))
    console.print(table)
    console.print(", ".join(f"{value} {name}" for name, value in totals.counts.items()))
    console.print(
        f"{totals.seeds} seeds, {len(totals.failures)} failed; "
        f"{totals.virtual_s / 3600:.2f} virtual hours; {totals.seeds / took_s:.1f} seeds/s; "
        f"in each process {totals.events / totals.real_s:,.0f} events/s "
        f"and {totals.virtual_s / totals.real_s:.0f} virtual seconds a second"
    )
    for failed in totals.failures[:FAILURES_SHOWN]:
        console.print(_failure(failed))
