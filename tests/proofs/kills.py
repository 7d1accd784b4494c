"""``./dev prove kills``: kill the broker again and again, and count.

Exit status 0: nothing acknowledged was lost, nothing doubled; and each fault that was applied to a
copy of the source was found. A run at full size writes the dated report in
``docs/internals/proofs``.
"""

import argparse
import logging
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs import _broker_kills as broker_part
from tests.proofs._kills_report import Proof, report
from tests.proofs._progress import progress, say
from tests.proofs._report import chosen_seed, conclude, parser
from tests.support.found import Search, look_for_all

KILLS = 50
ROUNDS_MAX = 6


def _arguments(argv: list[str]) -> argparse.Namespace:
    found = parser("kills", __doc__)
    add = found.add_argument
    add("--kills", type=int, default=KILLS, help="in each durability mode")
    add("--no-faults", action="store_true", help="leave out the faults")
    return found.parse_args(argv)


def _kill_brokers(kills: int, seed: int) -> list[broker_part.Verdict]:
    verdicts = []
    for number, durability in enumerate(("os", "fsync") if kills else ()):
        own_seed = seed + number
        with (
            tempfile.TemporaryDirectory(prefix="fencelog-kills-") as folder,
            progress(f"broker kills, {durability} mode, seed {own_seed}", kills) as step,
        ):
            verdict = broker_part.run(
                Path(folder) / "data",
                kills=kills,
                seed=own_seed,
                durability=durability,
                progress=step,
            )
        say(verdict.problems)
        verdicts.append(verdict)
    return verdicts


def find_by_broker_kills(search: Search) -> tuple[str, tuple[str, ...]]:
    """A fault that hurts for a moment only is not met by every row of kills."""
    durability, kills = search.argument.split()
    total = 0
    problems: tuple[str, ...] = ()
    for number in range(ROUNDS_MAX):
        verdict = broker_part.run(
            search.folder / f"data-{number}",
            kills=int(kills),
            seed=search.seed + number,
            durability=durability,
            environment=search.environment,
        )
        total += verdict.kills
        problems = verdict.problems
        if problems:
            break
    return f"{total} kills of the broker, {durability}", problems


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    # A consumer that is cut off again and again has much to say.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    seed = chosen_seed(wanted.seed)
    proof = Proof(
        began=datetime.now(UTC),
        seed=seed,
        brokers=_kill_brokers(wanted.kills, seed),
        faults=[] if wanted.no_faults else look_for_all("kills", find_by_broker_kills, seed),
    )
    is_full = wanted.kills >= KILLS and not wanted.no_faults
    return conclude("kills", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
