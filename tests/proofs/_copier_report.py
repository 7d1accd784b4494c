"""The dated report of the copier matrix: one row for each cell, and what is behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tests.proofs._copier_rig import Cell, Result
from tests.proofs._report import head, packages, problem_lines

PROSE = """\
Copiers read an input topic at `read_committed` and write each record to an output topic, output and
offsets in one transaction of up to {size} records; one transaction in ten is aborted on purpose
and done again. Meanwhile the broker, or one or all of the copiers, is bounced three times: by
SIGKILL (hard) or SIGTERM (clean), at moments spread over the work. A second consumer reads the
output at `read_committed` all along. In the end both it and a kafka-python consumer that reads
everything anew must have seen each input record once, in order within each pair of an input and an
output partition; the group must have committed the ends of the input; no partition may be held
back and no transaction left open.

*Group metadata*: two copiers subscribe, and their transactions name member and generation (with
one partition the second one stands by). *Plain*: partitions are assigned, and transactions carry
the offsets without a member. This is Kafka's own system test of transactions
(`transactions_test.py`, `group_mode_transactions_test.py`) on one broker.
"""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All runs that were made."""

    began: datetime
    commits: Sequence[str]
    command: str
    size: int
    times: int
    wanted: Sequence[Cell]
    results: Sequence[Result]

    @property
    def holds(self) -> bool:
        """Every cell as often as it was wanted, and nothing wrong."""
        done = all(len(each) >= self.times for each in self.by_cell.values())
        return done and not any(each.problems for each in self.results)

    @property
    def by_cell(self) -> Mapping[Cell, list[Result]]:
        """The runs of each cell."""
        return {cell: [each for each in self.results if each.cell == cell] for cell in self.wanted}

    @property
    def summary(self) -> str:
        """One line."""
        wrong = sum(1 for each in self.results if each.problems)
        records = sum(each.records for each in self.results)
        bounces = sum(each.bounces for each in self.results)
        return (
            f"{len(self.results)} of {len(self.wanted) * self.times} runs in {len(self.wanted)} "
            f"cells, {records:,} records copied through {bounces} bounces, {wrong} runs with "
            f"a problem"
        )


def report(matrix: Matrix) -> str:
    """The report as Markdown."""
    clients = sorted({cell.client for cell in matrix.wanted})
    lines = [
        *head(
            "Copiers",
            began=matrix.began,
            holds=matrix.holds,
            summary=matrix.summary,
            again=f"`{matrix.command}`",
            code=", ".join(matrix.commits),
        ),
        packages(clients),
        "",
        *PROSE.format(size=matrix.size).splitlines(),
        "",
    ]
    for client in clients:
        lines += [f"## {client}", "", *_table(matrix, client), ""]
    problems = [
        f"{result.cell.client}, {result.cell.name}, seed {result.seed}: {problem}"
        for result in matrix.results
        for problem in result.problems
    ]
    lines += problem_lines(problems)
    return "\n".join(lines).rstrip() + "\n"


def _table(matrix: Matrix, client: str) -> list[str]:
    lines = [
        "| bounced | how | offsets | partitions | runs | records each | bounces | copiers started "
        "| committed | aborted | seconds | problems |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for cell, results in matrix.by_cell.items():
        if cell.client != client:
            continue
        sizes = sorted({each.records for each in results})
        numbers = [
            cell.partitions,
            len(results),
            " and ".join(f"{each:,}" for each in sizes),
            sum(each.bounces for each in results),
            sum(each.lives for each in results),
            sum(each.committed for each in results),
            sum(each.aborted for each in results),
            f"{sum(each.seconds for each in results):.0f}",
            sum(1 for each in results if each.problems),
        ]
        offsets = "group metadata" if cell.names_member else "plain"
        lines.append(
            f"| {cell.target} | {cell.how} | {offsets} | "
            + " | ".join(str(each) for each in numbers)
            + " |"
        )
    return lines
