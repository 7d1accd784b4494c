"""``./dev prove kills``: kill the broker and Spark again and again, and count.

Exit status 0: nothing acknowledged was lost, nothing doubled, the output exact after each kill; and
each fault that was applied to a copy of the source was found. A run at full size writes the dated
report in ``docs/internals/proofs``.
"""

import argparse
import logging
import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs import _broker_kills as broker_part
from tests.proofs import _spark_kills as spark_part
from tests.proofs import _state_kills as state_part
from tests.proofs._kills_report import Proof, report
from tests.proofs._progress import progress, say
from tests.proofs._report import chosen_seed, conclude, parser
from tests.support.found import Found, Search, look_for_all

BROKER_KILLS, SPARK_KILLS, STATE_KILLS = 50, 30, 10
ROUNDS_MAX = 6


def _arguments(argv: list[str]) -> argparse.Namespace:
    found = parser("kills", __doc__)
    add = found.add_argument
    add("--broker-kills", type=int, default=BROKER_KILLS, help="in each durability mode")
    add("--spark-kills", type=int, default=SPARK_KILLS)
    add("--state-kills", type=int, default=STATE_KILLS, help="of queries with state")
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


def _kill_spark(kills: int, seed: int) -> spark_part.Verdict | None:
    if not kills:
        return None
    chosen = spark_part.choose(kills, random.Random(seed))
    with (
        tempfile.TemporaryDirectory(prefix="fencelog-kills-", ignore_cleanup_errors=True) as folder,
        progress(f"Spark kills, seed {seed}", kills) as step,
    ):
        verdict = spark_part.run(Path(folder), kills=chosen, seed=seed, progress=step)
    say(verdict.problems)
    return verdict


def _kill_queries_with_state(kills: int, seed: int) -> spark_part.Verdict | None:
    if not kills:
        return None
    with (
        tempfile.TemporaryDirectory(prefix="fencelog-kills-", ignore_cleanup_errors=True) as folder,
        progress(f"kills of queries with state, seed {seed}", kills) as step,
    ):
        verdict = state_part.run(Path(folder), kills=kills, seed=seed, progress=step)
    say(verdict.problems)
    return verdict


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


def find_by_spark_kills(search: Search) -> tuple[str, list[str]]:
    """Kill Spark where the fault's head says, as ``target:point``."""
    kills = tuple(spark_part.Kill(*each.split(":")) for each in search.argument.split())
    verdict = spark_part.run(
        search.folder, kills=kills, seed=search.seed, environment=search.environment
    )
    return ", ".join(verdict.kills), verdict.problems


def _find_faults(seed: int, *, on_spark: bool) -> list[Found]:
    found = look_for_all("kills", find_by_broker_kills, seed)
    return found + (look_for_all("spark", find_by_spark_kills, seed) if on_spark else [])


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    # A consumer that is cut off again and again has much to say.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    seed = chosen_seed(wanted.seed)
    proof = Proof(
        began=datetime.now(UTC),
        seed=seed,
        brokers=_kill_brokers(wanted.broker_kills, seed),
        spark=_kill_spark(wanted.spark_kills, seed + 2),
        state=_kill_queries_with_state(wanted.state_kills, seed + 3),
        faults=[] if wanted.no_faults else _find_faults(seed, on_spark=wanted.spark_kills > 0),
    )
    is_full = wanted.broker_kills >= BROKER_KILLS and wanted.spark_kills >= SPARK_KILLS
    is_full = is_full and wanted.state_kills >= STATE_KILLS and not wanted.no_faults
    return conclude("kills", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
