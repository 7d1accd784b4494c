"""The dated report of the proof of every byte."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tests.proofs._bytes_check import OUTCOMES
from tests.proofs._bytes_history import PROGRAMS, all_left
from tests.proofs._report import commit, head, problem_lines
from tests.support.found import Found, section

if TYPE_CHECKING:
    from tests.proofs.bytes import Counts

FAULTS_PROSE = """\
Every 11th place, with a copy of the source that has one fault, up to the first history with
problems.
"""
PROSE = """\
Each history is made by the product on the simulated disk, in both durability modes, and ended by
a clean stop or by a kill with the recovery point close to the end, at it, or far back (the latter
two, and the kill amid a swap, for the log only). Then every file is cut at every length, every
bit of every file but the log's own is flipped, and every bit of the log's last three batches; one
fault at a time, and the partition is started from what is left. Every 16th start, and each that a
flipped bit kept offline, is followed by two more, one as after a kill, one as after a power cut;
every 997th is repeated on real files.
"""

MEANINGS = """\
- **start refused**: the broker does not start and names the file. Only for what concerns every
  partition: the two offset checkpoints and the cleaner's carry a checksum, and a log start that
  cannot be believed must not delete anything.
- **partition offline**: damage, with file and offset; every byte of the log is still as it was
  found.
- **log cut**: the log ends before the damage, at or above the recovery point, the cut is told (a
  cut between two batches cannot be), and everything below means what it meant when the log ended
  there. In `fsync` mode only the last batch can go this way; in `os` mode, which does not promise
  to survive a power cut, what follows the damage goes too.
- **rebuilt** (harmless): the file follows from the log, and was made anew. After a kill all of
  them are; after a clean stop they are where the checksum in the mark of the stop does not match.
  Of a log's own files: one that a finished swap stands for is not needed any more.
- **means the same** (harmless): believed, and equal in all that is compared, because what changed
  is not read (the newest segment's indexes, which the walk makes anew; ids of cluster and
  directory) or says the same (white space, a character of base64 that carries two bits).
- **moved in a gap** (the one known limit): a base offset inside a file that compaction is about
  to put in place, moved to where a compacted record was. Kafka's format keeps base offsets
  outside the CRC; what was compacted away leaves room on either side. The newest segment has no
  gaps under any policy, so it cannot happen there.
"""

COMPARED = """\
Where a start serves, all of this must be what it was: bytes of the log, log start, LSO, end,
producers with epochs, sequences and windows, open transactions, the list of aborted ones, leader
epochs, both indexes, the highest producer id. What an undamaged start comes to is held against
the memory of the live broker at that offset; after deletion or compaction older batches of a
window may be missing.

Leader epochs, which are outside the CRC too, are held against two references: none is above the
newest that this broker led under (on a single node 0, which alone finds every flip), and the
leader epoch checkpoint, for all that it covers. With several epochs a flipped digit of
that checkpoint contradicts a sound log, and the partition is offline: which of the two is wrong
cannot be told.
"""


def report(
    counts: "Counts",
    found: Sequence[Found],
    began: datetime,
    seconds: tuple[float, float],
) -> str:
    """The report as Markdown."""
    total = sum(counts.outcomes.values())
    missed = [each for each in found if not each.problems]
    lines = [
        *head(
            "Crash at every byte",
            began=began,
            holds=not (counts.wrong or missed),
            summary=f"{total:,} faults in {len(all_left())} recorded stops, {counts.wrong} "
            f"problems, {seconds[0]:.0f} s ({seconds[1]:.0f} s of CPU)",
            again="`./dev prove bytes`. Nothing in it is random.",
            code=commit(),
        ),
        f"- {counts.again:,} starts repeated, {counts.on_disk:,} on real files",
        "",
        PROSE,
        *_histories(),
        "## What came of them",
        "",
        *_table(counts.outcomes),
        "",
        MEANINGS,
        COMPARED,
        *section(found, FAULTS_PROSE.splitlines()),
    ]
    return "\n".join([*lines, *problem_lines(counts.problems)]) + "\n"


def _histories() -> list[str]:
    rows = ["| history | what it has |", "|---|---|"]
    for name, (program, _) in PROGRAMS.items():
        rows.append(f"| {name} | {(program.__doc__ or '').strip()} |")
    return [*rows, ""]


def _table(outcomes: "Counter[tuple[str, str, str]]") -> list[str]:
    lines = [
        f"| file | fault | {' | '.join(OUTCOMES)} | all |",
        f"|---|---|{'---:|' * len(OUTCOMES)}---:|",
    ]
    for file, kind in sorted({row[:2] for row in outcomes}):
        numbers = [outcomes[file, kind, what] for what in OUTCOMES]
        lines.append(_row(f"`{file}` | {kind}", numbers))
    sums = [sum(n for row, n in outcomes.items() if row[2] == what) for what in OUTCOMES]
    return [*lines, _row("all |", sums)]


def _row(head: str, numbers: Iterable[int]) -> str:
    cells = list(numbers)
    return f"| {head} | {' | '.join(f'{n:,}' if n else '' for n in cells)} | {sum(cells):,} |"
