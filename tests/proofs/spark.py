"""``./dev prove spark``: kill Spark and the broker under exactly-once queries, and count.

Exit status 0: over each master, with each kind of query, in both durability modes, after each kill
the queries went on by themselves and nothing was lost or doubled; and each fault that was applied
to a copy of the source was found. A case that gets stuck is ended after its time, and is a problem.
A run at full size, or one that ``--minutes`` ends, writes the dated report in
``docs/internals/proofs``; ``--first`` goes on where that one ended.
"""

import logging
import random
import sys
import tempfile
import time
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from tests.proofs import _spark_run as part
from tests.proofs._limit import limited
from tests.proofs._progress import progress, say
from tests.proofs._report import chosen_seed, conclude, parser
from tests.proofs._spark_cases import Case, choose_cases, choose_strikes, shares
from tests.proofs._spark_kills import LOCAL, Kill
from tests.proofs._spark_report import Proof, report
from tests.support.found import Search, look_for_all
from tests.support.spark.queries import COPY

KILLS = 500
CASE_S, KILL_S = 600.0, 120.0
"""What a case may take, and each of its kills: several times what they take on a busy machine."""


def _kill(kills: int, seed: int, first: int, until: float) -> list[part.CaseVerdict]:
    chance = random.Random(seed)
    cases = choose_cases(chance)
    verdicts = []
    for number, (case, share) in enumerate(zip(cases, shares(kills, cases), strict=True), 1):
        strikes = choose_strikes(case, share, chance)
        if number < first:
            continue
        if not strikes or time.monotonic() > until:
            break
        with (
            tempfile.TemporaryDirectory(prefix="fencelog-spark-", ignore_cleanup_errors=True) as at,
            progress(str(case), share) as step,
            limited(CASE_S + KILL_S * len(strikes), str(case)),
        ):
            verdicts.append(
                part.run(Path(at), case, kills=strikes, seed=seed, until=until, progress=step)
            )
        say(verdicts[-1].problems)
    return verdicts


def find_by_spark_kills(search: Search) -> tuple[str, list[str]]:
    """Kill Spark where the fault's head says, as ``target:point``."""
    kills = [Kill(*each.split(":")) for each in search.argument.split()]
    case = Case(master=LOCAL, kind="stateless", queries=(COPY,), durability="os")
    with limited(CASE_S + KILL_S * len(kills), search.fault.name):
        verdict = part.run(
            search.folder,
            case,
            kills=kills,
            seed=search.seed,
            until=inf,
            environment=search.environment,
        )
    # A starved machine gets stuck without any fault: what was written has to be wrong.
    wrong = [each for each in verdict.problems if not each.startswith(part.GOT_STUCK)]
    return ", ".join(verdict.kills), wrong


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    asked = parser("spark", __doc__)
    asked.add_argument("--kills", type=int, default=KILLS)
    asked.add_argument("--minutes", type=float, default=inf, help="no new kill after this time")
    asked.add_argument("--first", type=int, default=1, help="begin with this case of the seed's")
    asked.add_argument("--no-faults", action="store_true", help="leave out the faults")
    wanted = asked.parse_args(argv)
    # A consumer that is cut off again and again has much to say.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    seed = chosen_seed(wanted.seed)
    until = time.monotonic() + wanted.minutes * 60
    proof = Proof(
        began=datetime.now(UTC),
        seed=seed,
        wanted=wanted.kills,
        first=wanted.first,
        cases=_kill(wanted.kills, seed, wanted.first, until),
        faults=[] if wanted.no_faults else look_for_all("spark", find_by_spark_kills, seed),
    )
    is_full = wanted.kills >= KILLS
    return conclude("spark", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
