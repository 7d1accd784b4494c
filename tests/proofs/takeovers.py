"""``./dev prove takeovers``: strike the owner again and again, and account for every record.

Exit status 0: nothing that an owner was told is lost, and nothing of an older owner is behind the
fence of a newer one. A run at full size writes the dated report in ``docs/internals/proofs``.
"""

import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median

from tests.proofs._progress import progress, say
from tests.proofs._report import (
    chosen_seed,
    commit,
    conclude,
    head,
    packages,
    parser,
    problem_lines,
)
from tests.proofs._takeovers_process import KINDS
from tests.proofs._takeovers_rig import LEASE_MS, STRIKES, Verdict, run

TAKEOVERS = 200
CLIENTS = {"own": "raw messages", "confluent-kafka": "confluent-kafka"}
PROSE = f"""\
An owner of two partitions (a topic with `ownership=required`, a broker in `fsync` mode) writes in a
loop: raw messages on an attached connection, or confluent-kafka in transactions, under the
transactional id of the claim. It is struck; another claimant takes over. The owner that was stopped
goes on then, and one that was severed too: by its old connections, by new ones, by its producer and
by another one with the same id. The lease is {LEASE_MS} ms. In the end the logs are read with
their ownership records. Each acknowledged record is there once, at its offset; each committed
transaction is whole; each fence is where it was answered; from fence to fence there are one owner's
records only.

The time is from the strike, or from the claim that severs, to the first accepted write of the next
owner: confluent-kafka opens its producer in this time, and a start of the broker that lies between
counts. Other load on the machine shows; `./dev bench ownership` has the figures without it.
"""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    seed: int
    verdict: Verdict

    @property
    def holds(self) -> bool:
        """No promise was broken."""
        return not self.verdict.problems

    @property
    def summary(self) -> str:
        """One line."""
        verdict = self.verdict
        return (
            f"{len(verdict.takeovers)} takeovers, {verdict.accepted:,} records accepted, "
            f"{verdict.refused:,} writes refused, {len(verdict.problems)} problems"
        )


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Takeovers",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`./dev prove takeovers --seed {proof.seed}` (the seed draws the "
            "clients and moments)",
            code=commit(),
        ),
        packages(("confluent-kafka",)),
        "",
        *PROSE.splitlines(),
        "",
        *_rows(proof.verdict),
        "",
        *_places(proof.verdict),
        *problem_lines(proof.verdict.problems),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _rows(verdict: Verdict) -> list[str]:
    lines = [
        "| the owner | the next one | its client | times | median, ms | longest, ms |",
        "|---|---|---|---:|---:|---:|",
    ]
    for strike, kind in product(STRIKES, KINDS):
        found = [
            each.seconds
            for each in verdict.takeovers
            if each.strike is strike and each.kinds[1] == kind
        ]
        if found:
            how = "waits" if strike.waits else "severs it"
            lines.append(
                f"| {strike.name} | {how} | {CLIENTS[kind]} | {len(found)} "
                f"| {1000 * median(found):,.0f} | {1000 * max(found):,.0f} |"
            )
    return lines


def _places(verdict: Verdict) -> list[str]:
    kills = Counter(each.broker_killed for each in verdict.takeovers if each.broker_killed)
    if not kills:
        return []
    return [
        "| the broker was killed | times |",
        "|---|---:|",
        *(f"| {where} of the next claim | {count} |" for where, count in sorted(kills.items())),
        "",
    ]


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    found = parser("takeovers", __doc__)
    found.add_argument("--takeovers", type=int, default=TAKEOVERS)
    wanted = found.parse_args(argv)
    seed = chosen_seed(wanted.seed)
    began = datetime.now(UTC)
    with (
        tempfile.TemporaryDirectory(prefix="fencelog-takeovers-") as folder,
        progress(f"takeovers, seed {seed}", wanted.takeovers) as step,
    ):
        verdict = run(Path(folder), takeovers=wanted.takeovers, seed=seed, progress=step)
    say(verdict.problems)
    proof = Proof(began=began, seed=seed, verdict=verdict)
    is_full = wanted.takeovers >= TAKEOVERS
    return conclude("takeovers", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
