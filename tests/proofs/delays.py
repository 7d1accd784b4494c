"""``./dev prove delays``: requests that arrive late, ten thousand schedules of them.

A schedule says which requests of a transactional producer are held on their way, what the producer
does meanwhile, and when they arrive after all: in its transaction, in a later one, when it is gone,
after a restart of the broker. Each has a history, and the history checker judges it.

Exit status 0: with transaction version 2 nothing was torn, lost, doubled, shown too early or stuck,
however its requests were held; with version 1 neither, where whole connections were held; and each
break planted in a copy of the source was found. What goes wrong with version 1 otherwise is
counted. A run of ten thousand writes the dated report in ``docs/internals/proofs``.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from tests.proofs._delays_breaks import BREAKS, Break
from tests.proofs._delays_play import SLOTS, Arena, Outcome
from tests.proofs._delays_report import Broken, Part, Proof, report
from tests.proofs._delays_schedule import Kind, Schedule, draw
from tests.proofs._delays_stock import play_stock
from tests.proofs._report import commit, publish
from tests.simulation._bug import plant

SCHEDULES = 10_000
STOCK_EACH = 40
CHAPTER = 1_000
"""Schedules before one broker: then a fresh one, with short logs."""
BREAK_SCHEDULES = 300
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
    parser = argparse.ArgumentParser(prog="./dev prove delays", description=__doc__)
    add = parser.add_argument
    add("--schedules", type=int, default=SCHEDULES)
    add("--stock", type=int, default=STOCK_EACH, help="schedules of each stock client")
    add("--no-breaks", action="store_true", help="leave out the planted breaks")
    add("--seed", type=int, default=None, help="default: a new one; it is printed")
    add("--report", type=Path, default=None, help="default: by date, for a run at full size")
    return parser.parse_args(argv)


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


async def find_break(broken: Break, seed: int, count: int = BREAK_SCHEDULES) -> Broken:
    """Play schedules before a copy of the source that has it, and the same without any delay."""
    with tempfile.TemporaryDirectory(prefix="fencelog-delays-") as folder:
        environment = {"PYTHONPATH": str(plant(broken.bug, Path(folder)))}
        delayed = [draw(seed, at, broken.kind) for at in range(count)]
        found = []
        for schedules in (delayed, [replace(each, holds=()) for each in delayed]):
            async with Arena(environment) as arena:
                outcomes = await arena.wave(schedules)
            found.append([problem for each in outcomes for problem in each.problems[:1]])
    return Broken(broken=broken, schedules=count, problems=found[0], without_delay=found[1])


async def prove(wanted: argparse.Namespace, seed: int) -> tuple[list[Part], list[Broken]]:
    """All parts, then the breaks."""
    parts, first = [], 0
    for kind, share in SHARES:
        count = round(wanted.schedules * share)
        part = await run_part(kind, count, seed, first)
        first += count
        print(part.summary, file=sys.stderr, flush=True)
        parts.append(part)
    breaks = []
    for broken in () if wanted.no_breaks else BREAKS:
        breaks.append(await find_break(broken, seed))
        print(breaks[-1].summary, file=sys.stderr, flush=True)
    return parts, breaks


def main(argv: Sequence[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    seed = random.SystemRandom().randrange(10**6) if wanted.seed is None else wanted.seed
    print(f"seed {seed}", file=sys.stderr)
    began = datetime.now(UTC)
    under_test = commit()
    parts, breaks = uvloop.run(prove(wanted, seed))
    proof = Proof(
        began=began,
        commit=under_test,
        command=f"./dev prove delays --schedules {wanted.schedules} --stock {wanted.stock} "
        f"--seed {seed}",
        parts=parts,
        stock=play_stock(wanted.stock, seed),
        breaks=breaks,
    )
    is_full = wanted.schedules >= SCHEDULES and not wanted.no_breaks
    publish("delays", began, report(proof), wanted.report, is_full=is_full)
    print(f"delays: {proof.summary}")
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
