"""The dated report of the kills: figures, the machine, the commit, and how to run it again."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from tests.proofs._broker_kills import Verdict as BrokerVerdict
from tests.proofs._report import commit, head, packages, problem_lines
from tests.proofs._spark_kills import Verdict as SparkVerdict
from tests.support.found import Found, section, summary

BROKER_PROSE = """\
A confluent-kafka producer writes numbered idempotent records to three partitions, another one
transactions of 20 records over three partitions, each fourth aborted after all of its records
were acknowledged. Meanwhile the broker gets SIGKILL at random moments, some while it recovers.
Then kafka-python reads everything: each acknowledged record is there once, at the offset it was
acknowledged at, in order; each transaction is whole or absent, as its writer was told; no
reader of committed data is held back.
"""
SPARK_PROSE = """\
One query copies a topic by versioned transactions, over one checkpoint and through a row of
drivers. After each kill the output must be the input up to the end of a batch that the
checkpoint names, each record once: at a chosen point, of exactly that batch. In the end it is
the whole input.
"""
STATE_PROSE = """\
Five queries with state (windows, a join, `dropDuplicates`, `applyInPandasWithState`,
`transformWithStateInPandas`) run in one driver. When each is at a point of its batch that was
drawn, the driver gets SIGKILL, and the next one goes on. In the end the output of each is exactly
what follows from the whole input.
"""
FAULTS_PROSE = """\
A short run of the same proof, over a copy of the source with one fault. Syncs that are left out
are invisible to SIGKILL: the page cache survives it. They are found by `tests/durability`.
"""
PACKAGES = ("confluent-kafka", "kafka-python", "pyspark", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    seed: int
    brokers: list[BrokerVerdict]
    spark: SparkVerdict | None
    state: SparkVerdict | None
    faults: list[Found]

    @property
    def problems(self) -> list[str]:
        """Every promise that was not kept."""
        kept = [problem for each in self.brokers for problem in each.problems]
        of_spark = [each.problems for each in (self.spark, self.state) if each is not None]
        return kept + [problem for problems in of_spark for problem in problems]

    @property
    def holds(self) -> bool:
        """No promise broken, and no fault overlooked."""
        return not self.problems and all(each.problems for each in self.faults)

    @property
    def summary(self) -> str:
        """One line."""
        of_broker = sum(each.kills for each in self.brokers)
        of_spark = len(self.spark.kills) if self.spark else 0
        of_state = self.state.drivers - 1 if self.state else 0
        return (
            f"{of_broker} of the broker, {of_spark} of Spark, {of_state} of queries with state, "
            f"{len(self.problems)} problems; {summary(self.faults)}"
        )


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Kills",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`./dev prove kills --seed {proof.seed}` (the seed fixes which kills are drawn\n"
            "and their moments; what the machine does between them is its own).",
            code=commit(),
        ),
        packages(PACKAGES),
        "",
        *_broker_lines(proof.brokers),
        *_spark_lines(proof.spark),
        *_state_lines(proof.state),
        *section(proof.faults, FAULTS_PROSE.splitlines()),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _broker_lines(verdicts: list[BrokerVerdict]) -> list[str]:
    if not verdicts:
        return []
    rows: list[tuple[str, list[object]]] = [
        ("kills (SIGKILL)", [each.kills for each in verdicts]),
        ("of them before the broker was ready again", [each.in_recovery for each in verdicts]),
        ("idempotent records acknowledged", [f"{each.acknowledged:,}" for each in verdicts]),
        ("transactions committed", [each.committed for each in verdicts]),
        ("transactions aborted", [each.aborted for each in verdicts]),
        ("transactions of unknown end", [each.unknown for each in verdicts]),
        ("of them visible, whole", [each.unknown_seen for each in verdicts]),
        ("transactional producers given up", [len(each.replaced) for each in verdicts]),
        ("records read at `read_committed`", [f"{each.read:,}" for each in verdicts]),
        ("problems", [len(each.problems) for each in verdicts]),
        ("seconds", [f"{each.seconds:.0f}" for each in verdicts]),
        ("seed", [each.seed for each in verdicts]),
    ]
    modes = [f"`{each.durability}`" for each in verdicts]
    lines = [
        "## The broker",
        "",
        *BROKER_PROSE.splitlines(),
        "",
        f"| | {' | '.join(modes)} |",
        f"|---|{'---:|' * len(verdicts)}",
        *(f"| {name} | {' | '.join(str(each) for each in row)} |" for name, row in rows),
        "",
    ]
    return lines + problem_lines([each for verdict in verdicts for each in verdict.problems])


def _spark_lines(verdict: SparkVerdict | None) -> list[str]:
    if verdict is None:
        return []
    kinds = Counter(each.partition(",")[0] for each in verdict.kills)
    return [
        "## Spark",
        "",
        *SPARK_PROSE.splitlines(),
        "",
        f"- {len(verdict.kills)} kills, {verdict.drivers} drivers, {verdict.sent:,} records in, "
        f"{verdict.read:,} out, {len(verdict.problems)} problems, {verdict.seconds:.0f} s, "
        f"seed {verdict.seed}",
        "- points: `writing` (rows taken), `written` (all acknowledged), `committing` (nothing",
        "  decided), `committed` (decided, Spark does not know), `start` (within 8 s of a driver's",
        "  start), `random` (within a second of a batch's planning)",
        "",
        "| who, where | times |",
        "|---|---:|",
        *(f"| {kind} | {count} |" for kind, count in sorted(kinds.items())),
        "",
        *problem_lines(verdict.problems),
    ]


def _state_lines(verdict: SparkVerdict | None) -> list[str]:
    if verdict is None:
        return []
    points = Counter(each.rpartition(", batch")[0] for each in verdict.kills)
    return [
        "## Queries with state",
        "",
        *STATE_PROSE.splitlines(),
        "",
        f"- {verdict.drivers - 1} kills, {verdict.sent:,} records in, {verdict.read:,} out of all "
        f"queries, {len(verdict.problems)} problems, {verdict.seconds:.0f} s, seed {verdict.seed}",
        "",
        "| who, where | times |",
        "|---|---:|",
        *(f"| {point} | {count} |" for point, count in sorted(points.items())),
        "",
        *problem_lines(verdict.problems),
    ]
