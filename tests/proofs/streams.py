"""``./dev prove streams``: write and copy a stream through resizes and kills, and check it all.

Exit status 0: each acknowledged record is in the stream once, a key's records in the order in which
they were written, and the copy has each once, in the stream's order. A run of a gigabyte and more
writes the dated report in ``docs/internals/proofs``.
"""

import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs._progress import progress, say
from tests.proofs._report import chosen_seed, commit, conclude, head, parser, problem_lines
from tests.proofs._streams_process import KEYS, LEASE_S
from tests.proofs._streams_rig import READERS, WRITERS, Verdict, run

FULL_MEGABYTES, RESIZES, RECORD_BYTES = 1000, 50, 4000
PROSE = f"""\
A broker in `fsync` mode; {WRITERS} writers of {KEYS} keys, two of them in transactions of which a
tenth is aborted; {READERS} readers of one group, which copy each batch of events to a topic in a
transaction with their position. Segments are split and merged one resize after the other; within
50 ms of the beginning of each, one of all is struck, or none: SIGKILL of a writer, a reader or the
broker, which are started again, or SIGSTOP of a reader for one and a half of its lease of
{LEASE_S:g} s. In the end all segments are read, in the stream's order, and the copy. The checks are
those of the simulator's workloads `streams` and `readers` (`fencelog_sim/workloads`,
`stream_history` and `stream_copies`).
"""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    seed: int
    megabytes: int
    verdict: Verdict

    @property
    def holds(self) -> bool:
        """No promise was broken."""
        return not self.verdict.problems

    @property
    def summary(self) -> str:
        """One line."""
        found = self.verdict
        return (
            f"{found.megabytes:,.0f} MB, {found.resizes} resizes to {found.segments} segments, "
            f"{found.sent:,} records sent, {found.stored:,} stored, {found.copied:,} copied, "
            f"{sum(found.strikes.values()) - found.strikes['none']} strikes, "
            f"{len(found.problems)} problems, {found.seconds:,.0f} s"
        )


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Streams",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`./dev prove streams --megabytes {proof.megabytes} --seed {proof.seed}` (the "
            "seed draws resizes, strikes and records)",
            code=commit(),
        ),
        "",
        *PROSE.splitlines(),
        "",
        "| what was struck | times |",
        "|---|---:|",
        *(f"| {kind} | {count} |" for kind, count in sorted(proof.verdict.strikes.items())),
        "",
        *problem_lines(proof.verdict.problems),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    found = parser("streams", __doc__, full="a gigabyte and more")
    found.add_argument("--megabytes", type=int, default=FULL_MEGABYTES)
    found.add_argument("--resizes", type=int, default=RESIZES)
    wanted = found.parse_args(argv)
    seed = chosen_seed(wanted.seed)
    began = datetime.now(UTC)
    with (
        tempfile.TemporaryDirectory(prefix="fencelog-streams-") as folder,
        progress(f"streams, seed {seed}", wanted.resizes) as step,
    ):
        verdict = run(
            Path(folder),
            megabytes=wanted.megabytes,
            resizes=wanted.resizes,
            seed=seed,
            record_bytes=RECORD_BYTES,
            progress=step,
        )
    say(verdict.problems)
    proof = Proof(began=began, seed=seed, megabytes=wanted.megabytes, verdict=verdict)
    is_full = wanted.megabytes >= FULL_MEGABYTES
    return conclude("streams", proof, report(proof), wanted.report, is_full=is_full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
