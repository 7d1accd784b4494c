"""What ``./dev prove cluster`` did and what the checker said of it, summed up and as a report."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tests.proofs._cluster_chapter import Chapter
from tests.proofs._report import head, packages, problem_lines
from tests.support.network import Frames

PROSE = """\
In each chapter three brokers and an etcd of three members are started, each in a network namespace
of its own, on a bridge; brokers keep their data on small file systems in memory. Topics have three
replicas and `min.insync.replicas=2`; a session lasts 3 s. Every client of a workload is a process
of its own. Once a record is acknowledged, two rows of faults, drawn from the seed, run side by
side: one hits brokers, their disks, etcd and clients, the other has nftables drop what one host
sends to another, or narrows a broker's link to 1 Mbit/s, where frames wait for up to a second. Then
all is healed; the clients end (each within 60 s, or it counts as stuck), no transaction may be left
open, every partition's last stable offset must meet its high watermark, and all is read from the
beginning. The history of what each client asked and was told is judged by `fencelog.check`, and by
the workload, while the next chapter is played.
"""
WITHOUT = """\
Here without namespaces: processes of one host, nothing is cut or delayed, and a full disk is a
limit on the size of a broker's files.
"""
RECORDS = 20_000_000
NOT_SHOWN = """\
Brokers share one kernel and one clock, and a file system in memory syncs at once.
"""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    command: str
    commit: str
    frames: Frames | None
    """None without a network."""
    chapters: list[Chapter]

    @property
    def problems(self) -> list[str]:
        """Every promise that was not kept."""
        return [f"chapter {each.name}: {text}" for each in self.chapters for text in each.problems]

    @property
    def holds(self) -> bool:
        """Something was checked, faults of the network had effect, and no promise was broken.

        A short run may draw only cuts, or only narrow links.
        """
        had_effect = any if self.is_short else all
        is_real = self.frames is None or had_effect(self.frames)
        return self.sum("sends acknowledged") > 0 and is_real and not self.problems

    def sum(self, count: str, chapters: Iterable[Chapter] | None = None) -> int:
        """One of the checker's counts, over these chapters or all."""
        chosen = self.chapters if chapters is None else chapters
        return sum(each.checked.counts[count] for each in chosen if each.checked)

    @property
    def counts(self) -> Counter[str]:
        """How often each fault was there, and what else the nemesis counted."""
        return sum((each.counts for each in self.chapters), Counter())

    @property
    def is_short(self) -> bool:
        """Whether it is less than what a proof of the whole has to be."""
        seconds = sum(each.seconds for each in self.chapters)
        return seconds < 3600 or self.sum("sends acknowledged") < RECORDS

    @property
    def summary(self) -> str:
        """One line."""
        faults = sum(sum(each.faults.values()) for each in self.chapters)
        return (
            f"{self.sum('sends acknowledged'):,} acknowledged records and "
            f"{self.sum('records polled'):,} polled ones checked, "
            f"{faults:,} faults, {len(self.problems)} bad"
        )


def report(proof: Proof) -> str:
    """The report as Markdown."""
    found = sum((Counter(each.checked.found) for each in proof.chapters if each.checked), Counter())
    lines = [
        *head(
            "Cluster",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`{proof.command}` (the seed fixes\n"
            "the faults and their times; what the machine does between them is its own).",
            code=proof.commit,
        ),
        packages(("grpcio", "uvloop")),
        "",
        "## What was done and seen",
        "",
        *PROSE.splitlines(),
        *([] if proof.frames is not None else ["", *WITHOUT.splitlines()]),
        "",
        *_figures(proof),
        "## The faults",
        "",
        "| fault | times |",
        "|---|---:|",
        *(f"| {name} | {count:,} |" for name, count in sorted(proof.counts.items())),
        "",
        *_frames(proof.frames),
        "## The verdict",
        "",
        "Findings by kind (`int-send-skip`, `G0` and `G1c-ww` are allowed by design):",
        f"{', '.join(f'{count:,} {kind}' for kind, count in sorted(found.items())) or 'none'}.",
        "",
        "## What this does not show",
        "",
        *(["The bar is an hour and 20 million records."] if proof.is_short else []),
        *NOT_SHOWN.splitlines(),
        "",
        *problem_lines(proof.problems),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _frames(frames: Frames | None) -> list[str]:
    if frames is None:
        return []
    return [
        f"nftables dropped {frames.dropped:,} frames; {frames.delayed:,} waited on narrow links.",
        "",
    ]


def _figures(proof: Proof) -> list[str]:
    groups: dict[str, list[Chapter]] = {}
    for each in proof.chapters:
        groups.setdefault(f"{each.script.workload}, `{each.script.durability}`", []).append(each)
    columns = [*groups.values(), proof.chapters]
    rows: list[tuple[str, list[str]]] = [
        ("chapters", [f"{len(column)}" for column in columns]),
        ("seconds", [f"{sum(each.seconds for each in column):,.0f}" for column in columns]),
        ("client processes", [f"{sum(each.lives for each in column):,}" for column in columns]),
        *(
            (label, [f"{proof.sum(count, column):,}" for column in columns])
            for label, count in (
                ("operations", "operations"),
                ("of them acknowledged", "ok"),
                ("of them failed for certain", "failed"),
                ("of them of unknown end", "indeterminate"),
                ("of them transactions", "transactions"),
                ("**records acknowledged, and judged**", "sends acknowledged"),
                ("records polled, and judged", "records polled"),
                ("of them by the final readers", "records polled by final readers"),
            )
        ),
        (
            "faults",
            [f"{sum(sum(each.faults.values()) for each in column):,}" for column in columns],
        ),
        ("**bad**", [f"{sum(len(each.problems) for each in column)}" for column in columns]),
        (
            "longest from healing until all was read, s",
            [f"{max(each.rest_s for each in column):.1f}" for column in columns],
        ),
    ]
    return [
        f"| | {' | '.join([*groups, 'all'])} |",
        f"|---|{'---:|' * len(columns)}",
        *(f"| {label} | {' | '.join(cells)} |" for label, cells in rows),
        "",
    ]
