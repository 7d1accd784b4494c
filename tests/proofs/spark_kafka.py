"""``./dev prove spark-kafka``: kill Spark and Apache Kafka under an exactly-once query, and count.

Exit status 0: after each of the strikes the output was the input of whole batches, each record
once, and Spark's own connector doubled records under a few of them. A run at full size writes the
dated report in ``docs/internals/proofs``.
"""

import logging
import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs import _spark_kafka_kills as part
from tests.proofs._progress import progress, say
from tests.proofs._report import chosen_seed, conclude, parser
from tests.proofs._spark_kafka_report import Proof, report
from tests.proofs._spark_kills import Verdict

KILLS, CONNECTOR_KILLS = 200, 5
KILLS_EACH = 40
"""Of one broker and one checkpoint; more rows of kills follow each other."""


def _kill(kills: int, seed: int) -> Verdict:
    chosen = part.choose(kills, random.Random(seed))
    with (
        tempfile.TemporaryDirectory(prefix="fencelog-kafka-", ignore_cleanup_errors=True) as folder,
        progress(f"kills on Apache Kafka, seed {seed}", kills) as step,
    ):
        verdict = part.run(Path(folder), kills=chosen, seed=seed, progress=step)
    say(verdict.problems)
    return verdict


def _kill_connector(kills: int) -> part.Control | None:
    if not kills:
        return None
    with (
        tempfile.TemporaryDirectory(prefix="fencelog-kafka-", ignore_cleanup_errors=True) as folder,
        progress("kills of Spark's own connector", kills) as step,
    ):
        return part.run_connector(Path(folder), kills=kills, progress=step)


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    asked = parser("spark-kafka", __doc__)
    asked.add_argument("--kills", type=int, default=KILLS)
    asked.add_argument("--connector-kills", type=int, default=CONNECTOR_KILLS)
    wanted = asked.parse_args(argv)
    # A consumer that is cut off again and again has much to say.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    seed = chosen_seed(wanted.seed)
    began = datetime.now(UTC)
    rows = [min(KILLS_EACH, wanted.kills - done) for done in range(0, wanted.kills, KILLS_EACH)]
    proof = Proof(
        began=began,
        seed=seed,
        rows=[_kill(kills, seed + number) for number, kills in enumerate(rows)],
        control=_kill_connector(wanted.connector_kills),
    )
    is_full = wanted.kills >= KILLS and wanted.connector_kills > 0
    return conclude("spark-kafka", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
