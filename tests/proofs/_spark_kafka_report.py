"""The dated report of the kills of Spark on Apache Kafka."""

from dataclasses import dataclass
from datetime import datetime

from tests.proofs._report import commit, head, packages, problem_lines, strike_lines
from tests.proofs._spark_kafka_kills import Control
from tests.proofs._spark_kills import Verdict

PROSE = """\
One query copies a topic of Apache Kafka 4.3.1 (its jars, one node, KRaft) to another, over one
checkpoint and through a row of drivers. The driver commits each batch in one Kafka transaction;
every other batch is staged in files. After each strike the output at `read_committed` must be the
input up to the end of a batch that the checkpoint names, each record once: at a chosen point, of
exactly that batch. In the end it is the whole input, and no transaction is left open.

- who: `driver` (all of its processes), `orphan` (the driver's Python and JVM; the Python worker
  that commits goes on), `zombie` (all of the driver is stopped, another one repeats the batch and
  takes the query over, then the first is continued), `broker` (SIGKILL, started again),
  `frozen broker` (SIGSTOP for 1 to 10 s), `worker` (the Python of a task), `executor` (its JVM)
- where: `writing` (rows taken, nothing staged), `written` (staged), `committing` (nothing sent),
  `sending` (one record batch acknowledged), `ending` (all are, before EndTxn), `ended` (EndTxn
  answered), `committed` (Spark has not noted the batch), `start` (within 8 s of a driver's start),
  `random` (within a second of a batch's planning)
"""
CONTROL_PROSE = """\
The same copy by `format("kafka")` (spark-sql-kafka 4.2.0, the newest at Maven Central) on the same
Kafka. Each driver is killed when rows of a batch are visible that Spark has not noted.
"""
PACKAGES = ("kafka-python", "confluent-kafka", "pyspark", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    seed: int
    rows: list[Verdict]
    control: Control | None

    @property
    def kills(self) -> list[str]:
        """Every strike, as ``who at where``."""
        return [each.partition(",")[0] for verdict in self.rows for each in verdict.kills]

    @property
    def problems(self) -> list[str]:
        """Every promise that was not kept."""
        return [problem for verdict in self.rows for problem in verdict.problems]

    @property
    def holds(self) -> bool:
        """No promise broken, and the checks see what the connector doubles."""
        return not self.problems and (self.control is None or self.control.doubled > 0)

    @property
    def summary(self) -> str:
        """One line."""
        text = f"{len(self.kills)} strikes, {len(self.problems)} problems"
        if self.control is None:
            return text
        return f"{text}; Spark's own connector doubled {self.control.doubled:,} records"


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Spark on Apache Kafka",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`./dev prove spark-kafka --kills {len(proof.kills)} --seed {proof.seed}` (the"
            " seed fixes which strikes\nare drawn and their moments; what the machine does between"
            " them is its own).",
            code=commit(),
        ),
        packages(PACKAGES),
        "",
        *PROSE.splitlines(),
        "",
        *_table(proof),
        "",
        *strike_lines(proof.kills),
        "",
        *problem_lines(proof.problems),
    ]
    if proof.control is not None:
        lines += ["## The control: Spark's own connector", "", *CONTROL_PROSE.splitlines()]
    return "\n".join(lines).rstrip() + "\n"


def _table(proof: Proof) -> list[str]:
    rows, control = proof.rows, proof.control
    ours: list[tuple[str, object, object]] = [
        ("strikes", len(proof.kills), control and control.kills),
        ("drivers", sum(each.drivers for each in rows), control and control.kills + 1),
        ("zombies continued", sum(each.zombies for each in rows), control and "-"),
        ("records in", sum(each.sent for each in rows), control and control.sent),
        ("records out", sum(each.read for each in rows), control and control.read),
        ("records lost", sum(each.lost for each in rows), control and control.lost),
        ("records doubled", sum(each.doubled for each in rows), control and control.doubled),
        ("seconds", sum(round(each.seconds) for each in rows), control and round(control.seconds)),
    ]
    if control is None:
        return ["| | ours |", "|---|---:|", *(f"| {name} | {a} |" for name, a, _ in ours)]
    return [
        "| | ours | Spark's own connector |",
        "|---|---:|---:|",
        *(f"| {name} | {a} | {b} |" for name, a, b in ours),
    ]
