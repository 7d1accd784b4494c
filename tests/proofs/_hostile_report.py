"""The dated report of hostile clients: each attack, the bystander beside it, and memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tests.proofs._hostile_attacks import ATTACKS
from tests.proofs._hostile_run import (
    DELAY_MS_MAX,
    REQUESTS_MIB,
    RESPONSES_MIB,
    ROOM_MIB,
    Row,
)
from tests.proofs._report import head, problem_lines
from tests.support.found import Found, section, summary

PROSE = f"""\
Each attack has a broker of its own, in `os` mode on a file system in memory. A bystander writes one
record every 20 ms and checks each answer. Its latency is shown as it was, and without what the
machine took: the time in which broker or bystander had no core (the kernel's run delay), or by
which a sleep in another process was late meanwhile. Without the machine's part no answer may take
more than {DELAY_MS_MAX:.0f} ms.

Memory is what the broker has of its own (`RssAnon`), before the attack and at most. It may grow by
`queued.max.request.bytes` ({REQUESTS_MIB} MiB here), `queued.max.response.bytes` ({RESPONSES_MIB}
MiB) and {ROOM_MIB} MiB for all else.
"""
FAULTS_PROSE = ["An attack on a broker whose source has one fault: its row has to be red."]


@dataclass(kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    commit: str
    command: str
    rows: Sequence[Row]
    faults: Sequence[Found]

    @property
    def problems(self) -> list[str]:
        """What may not be."""
        return [problem for row in self.rows for problem in row.problems]

    @property
    def holds(self) -> bool:
        """No row is red, no fault was overlooked."""
        return bool(self.rows) and not self.problems and all(each.problems for each in self.faults)

    @property
    def summary(self) -> str:
        """One line."""
        red = [row.attack for row in self.rows if row.problems]
        worst = max((row.delay_ms for row in self.rows), default=0.0)
        return (
            f"{len(self.rows)} attacks, {sum(row.seconds for row in self.rows) / 60:.0f} minutes, "
            f"{len(red)} red, the bystander waited {worst:.0f} ms at most; {summary(self.faults)}"
        )


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Hostile clients",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`{proof.command}`",
            code=proof.commit,
        ),
        "",
        *PROSE.splitlines(),
        "",
        "| attack | s | done | answers | p99, ms | max, ms | as it was: p99 | max "
        "| sleeps late, ms | memory before, MiB | at most | allowed | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        *(_row(row) for row in proof.rows),
        "",
        *_legend(),
        *problem_lines(proof.problems),
        *section(proof.faults, FAULTS_PROSE),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(row: Row) -> str:
    raw = sorted(1e3 * latency for latency, _ in row.watched.latencies.get("produce", []))
    numbers = [
        f"{row.seconds:.0f}",
        f"{row.done:,}",
        f"{len(raw):,}",
        f"{_p99(row.delays_ms):.1f}",
        f"**{row.delay_ms:.1f}**",
        f"{_p99(raw):.1f}",
        f"{max(raw, default=0):.1f}",
        f"{1e3 * max(row.watched.late, default=0):.1f}",
        f"{row.memory_before_mib:.0f}",
        f"**{row.memory_mib:.0f}**",
        f"{row.memory_mib_max:.0f}",
        "RED" if row.problems else "",
    ]
    return f"| {row.attack} | {' | '.join(numbers)} |"


def _p99(ordered: Sequence[float]) -> float:
    return ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def _legend() -> list[str]:
    """What the attacks are, and what *done* counts."""
    told = [f"- {name}: {(run.__doc__ or '').strip()}" for name, (_, run) in ATTACKS.items()]
    counts = "*Done* counts requests, or what is sent at once where nothing is awaited."
    return [counts, "", *told, ""]
