"""``./dev prove kills``: kill the broker and Spark again and again, and count.

Exit status 0: nothing acknowledged was lost, nothing doubled, the output exact after each kill; and
each break that was planted in a copy of the source was found. A run at full size writes the dated
report in ``docs/internals/proofs``.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs import _broker_kills as broker_part
from tests.proofs import _spark_kills as spark_part
from tests.proofs._breaks import BROKER_BREAKS, SPARK_BREAKS, Break, BrokerBreak, SparkBreak, plant
from tests.proofs._kills_report import Found, Proof, report
from tests.proofs._report import publish

BROKER_KILLS, SPARK_KILLS = 50, 30
ROUNDS_MAX = 6

Step = Callable[[], None]


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev prove kills", description=__doc__)
    add = parser.add_argument
    add("--broker-kills", type=int, default=BROKER_KILLS, help="in each durability mode")
    add("--spark-kills", type=int, default=SPARK_KILLS)
    add("--no-breaks", action="store_true", help="leave out the planted breaks")
    add("--seed", type=int, default=None, help="default: a new one; it is printed")
    add("--report", type=Path, default=None, help="default: by date, for a run at full size")
    return parser.parse_args(argv)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Step]:
    """A bar on a terminal, a line at begin and end elsewhere; on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description:<44}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    began = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(what, total=total)
        if not console.is_terminal:
            console.print(f"{what} …")
        yield lambda: bars.advance(bar)
    if not console.is_terminal:
        console.print(f"{what}: {time.monotonic() - began:.0f} s")


def _say(problems: "tuple[str, ...] | list[str]") -> None:
    for problem in problems[:20]:
        print(f"  PROBLEM {problem}", file=sys.stderr)
    if len(problems) > 20:
        print(f"  and {len(problems) - 20} more", file=sys.stderr)


def _kill_brokers(kills: int, seed: int) -> list[broker_part.Verdict]:
    verdicts = []
    for number, durability in enumerate(("os", "fsync") if kills else ()):
        own_seed = seed + number
        with (
            tempfile.TemporaryDirectory(prefix="fencelog-kills-") as folder,
            _progress(f"broker kills, {durability} mode, seed {own_seed}", kills) as step,
        ):
            verdict = broker_part.run(
                Path(folder) / "data",
                kills=kills,
                seed=own_seed,
                durability=durability,
                progress=step,
            )
        _say(verdict.problems)
        verdicts.append(verdict)
    return verdicts


def _kill_spark(kills: int, seed: int) -> spark_part.Verdict | None:
    if not kills:
        return None
    chosen = spark_part.choose(kills, random.Random(seed))
    with (
        tempfile.TemporaryDirectory(prefix="fencelog-kills-", ignore_cleanup_errors=True) as folder,
        _progress(f"Spark kills, seed {seed}", kills) as step,
    ):
        verdict = spark_part.run(Path(folder), kills=chosen, seed=seed, progress=step)
    _say(verdict.problems)
    return verdict


def _find_breaks(seed: int, *, on_spark: bool) -> list[Found]:
    """Run the same proof, shorter, over each planted break."""
    breaks: tuple[Break, ...] = (*BROKER_BREAKS, *(SPARK_BREAKS if on_spark else ()))
    found = []
    with _progress("planted breaks", len(breaks)) as step:
        for broken in breaks:
            with tempfile.TemporaryDirectory(
                prefix="fencelog-kills-", ignore_cleanup_errors=True
            ) as folder:
                found.append(find_break(broken, Path(folder), seed))
            step()
            if not found[-1].problems:
                _say([f"planted and not found: {broken.name}"])
    return found


def find_break(broken: Break, folder: Path, seed: int) -> Found:
    """Run the part of the proof that must find this break, against a copy that has it."""
    environment = plant(broken, folder)
    if isinstance(broken, BrokerBreak):
        return _find_in_rounds(broken, folder, seed, environment)
    assert isinstance(broken, SparkBreak), broken
    on_spark = spark_part.run(folder, kills=broken.kills, seed=seed, environment=environment)
    return Found(broken, ", ".join(on_spark.kills), tuple(on_spark.problems))


def _find_in_rounds(
    broken: BrokerBreak, folder: Path, seed: int, environment: Mapping[str, str]
) -> Found:
    """A break that hurts for a moment only is not met by every row of kills."""
    kills = 0
    problems: tuple[str, ...] = ()
    for number in range(ROUNDS_MAX):
        verdict = broker_part.run(
            folder / f"data-{number}",
            kills=broken.kills,
            seed=seed + number,
            durability=broken.durability,
            environment=environment,
        )
        kills += verdict.kills
        problems = verdict.problems
        if problems:
            break
    return Found(broken, f"{kills} of the broker", problems)


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    # A consumer that is cut off again and again has much to say.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    seed = random.SystemRandom().randrange(10**6) if wanted.seed is None else wanted.seed
    print(f"seed {seed}", file=sys.stderr)
    proof = Proof(
        began=datetime.now(UTC),
        seed=seed,
        brokers=_kill_brokers(wanted.broker_kills, seed),
        spark=_kill_spark(wanted.spark_kills, seed + 2),
        breaks=[] if wanted.no_breaks else _find_breaks(seed, on_spark=wanted.spark_kills > 0),
    )
    is_full = wanted.broker_kills >= BROKER_KILLS and wanted.spark_kills >= SPARK_KILLS
    is_full = is_full and not wanted.no_breaks
    publish("kills", proof.began, report(proof), wanted.report, is_full=is_full)
    print(f"kills: {proof.summary}")
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
