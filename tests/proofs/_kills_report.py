"""The dated report of the kills: figures, the machine, the commit, and how to run it again."""

from dataclasses import dataclass
from datetime import datetime

from tests.proofs._broker_kills import Verdict as BrokerVerdict
from tests.proofs._report import commit, head, packages, problem_lines
from tests.support.found import Found, section, summary

BROKER_PROSE = """\
A confluent-kafka producer writes numbered idempotent records to three partitions, another one
transactions of 20 records over three partitions, each fourth aborted after all of its records
were acknowledged. Meanwhile the broker gets SIGKILL at random moments, some while it recovers.
Then kafka-python reads everything: each acknowledged record is there once, at the offset it was
acknowledged at, in order; each transaction is whole or absent, as its writer was told; no
reader of committed data is held back.
"""
FAULTS_PROSE = """\
A short run of the same proof, over a copy of the source with one fault. Syncs that are left out
are invisible to SIGKILL: the page cache survives it. They are found by `tests/durability`.
"""
PACKAGES = ("confluent-kafka", "kafka-python")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    seed: int
    brokers: list[BrokerVerdict]
    faults: list[Found]

    @property
    def problems(self) -> list[str]:
        """Every promise that was not kept."""
        return [problem for each in self.brokers for problem in each.problems]

    @property
    def holds(self) -> bool:
        """No promise broken, and no fault overlooked."""
        return not self.problems and all(each.problems for each in self.faults)

    @property
    def summary(self) -> str:
        """One line."""
        kills = sum(each.kills for each in self.brokers)
        return f"{kills} of the broker, {len(self.problems)} problems; {summary(self.faults)}"


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
