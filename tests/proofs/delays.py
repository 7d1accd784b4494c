"""``./dev prove delays``: requests that arrive late, ten thousand schedules of them.

A schedule says which requests of a transactional producer are held on their way, what the producer
does meanwhile, and when they arrive after all: in its transaction, in a later one, when it is gone,
after a restart of the broker. Each has a history, and the history checker checks it.

Exit status 0: with transaction version 2 nothing was torn, lost, doubled, shown too early or stuck,
however its requests were held; with version 1 neither, where whole connections were held; and each
fault applied to a copy of the source was found. What goes wrong with version 1 otherwise is
counted. A run of ten thousand writes the dated report in ``docs/internals/proofs``.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import uvloop

from tests.proofs._delays_play import SLOTS, Arena, Outcome
from tests.proofs._delays_report import Part, Proof, report
from tests.proofs._delays_schedule import Kind, Schedule, draw
from tests.proofs._delays_stock import play_stock
from tests.proofs._report import chosen_seed, commit, conclude, parser
from tests.support.found import Search, look_for_all

SCHEDULES = 10_000
STOCK_EACH = 40
CHAPTER = 1_000
"""Schedules before one broker: then a fresh one, with short logs."""
FAULT_SCHEDULES = 300
SHARES: tuple[tuple[Kind, float], ...] = (
    (Kind(version=2, mode="connection"), 0.22),
    (Kind(version=2, mode="reordered"), 0.15),
    (Kind(version=2, mode="late connection"), 0.13),
    (Kind(version=1, mode="connection"), 0.30),
    (Kind(version=1, mode="connection", is_group_apart=True), 0.05),
    (Kind(version=1, mode="reordered"), 0.09),
    (Kind(version=1, mode="late connection"), 0.06),
)
RESTART_SHARE = 0.08
"""Of each part: so many have the broker killed before the held request arrives."""


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    found = parser("delays", __doc__)
    add = found.add_argument
    add("--schedules", type=int, default=SCHEDULES)
    add("--stock", type=int, default=STOCK_EACH, help="schedules of each stock client")
    add("--no-faults", action="store_true", help="leave out the faults")
    return found.parse_args(argv)


async def run_part(kind: Kind, count: int, seed: int, first: int) -> Part:
    """Play so many schedules of one kind, numbered from ``first`` on."""
    began = time.monotonic()
    outcomes: list[Outcome] = []
    left: list[str] = []
    for chapter in _chapters(kind, count, seed, first):
        async with Arena() as arena:
            for wave in chapter:
                outcomes += await arena.wave(wave)
            left += await arena.left_open()
    return Part(
        kind=kind,
        outcomes=outcomes,
        left_open=left,
        seconds=time.monotonic() - began,
    )


def _chapters(kind: Kind, count: int, seed: int, first: int) -> list[list[list[Schedule]]]:
    """By broker and wave; those that see a restart are waves of their own."""
    waves = round(count * RESTART_SHARE / SLOTS)
    restarting = waves * SLOTS
    schedules = [draw(seed, first + at, kind, restarts=at < restarting) for at in range(count)]
    restarts = [schedules[at : at + SLOTS] for at in range(0, restarting, SLOTS)]
    plain = [schedules[at : at + CHAPTER] for at in range(restarting, count, CHAPTER)]
    chapters = [[wave] for wave in plain]
    for number, wave in enumerate(restarts):
        chapters[number % len(chapters)].append(wave)
    return chapters


async def play_faulty(
    environment: Mapping[str, str], kind: Kind, seed: int, count: int
) -> tuple[list[str], list[str]]:
    """Play schedules before a faulty broker; returns their problems, and those without delays."""
    delayed = [draw(seed, at, kind) for at in range(count)]
    problems: list[list[str]] = []
    for schedules in (delayed, [replace(each, holds=()) for each in delayed]):
        async with Arena(environment) as arena:
            outcomes = await arena.wave(schedules)
        problems.append([problem for each in outcomes for problem in each.problems[:1]])
    return problems[0], problems[1]


def find_by_delays(search: Search) -> tuple[str, list[str]]:
    """Play schedules of the version and mode that the fault's head says."""
    kind = kind_named(search.argument)
    problems, without = uvloop.run(
        play_faulty(search.environment, kind, search.seed, FAULT_SCHEDULES)
    )
    return (
        f"{kind.name}: {len(problems)} of {FAULT_SCHEDULES}, {len(without)} without delays",
        problems,
    )


def kind_named(name: str) -> Kind:
    """Find a kind by its version and mode, such as "2 reordered"."""
    return next(each for each, _ in SHARES if f"{each.version} {each.mode}" == name)


async def run_parts(wanted: argparse.Namespace, seed: int) -> list[Part]:
    """Play all parts."""
    parts, first = [], 0
    for kind, share in SHARES:
        count = round(wanted.schedules * share)
        part = await run_part(kind, count, seed, first)
        first += count
        print(part.summary, file=sys.stderr, flush=True)
        parts.append(part)
    return parts


def main(argv: Sequence[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    seed = chosen_seed(wanted.seed)
    began = datetime.now(UTC)
    under_test = commit()
    proof = Proof(
        began=began,
        commit=under_test,
        command=f"./dev prove delays --schedules {wanted.schedules} --stock {wanted.stock} "
        f"--seed {seed}",
        parts=uvloop.run(run_parts(wanted, seed)),
        stock=play_stock(wanted.stock, seed),
        faults=[] if wanted.no_faults else look_for_all("delays", find_by_delays, seed),
    )
    is_full = wanted.schedules >= SCHEDULES and not wanted.no_faults
    return conclude("delays", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
