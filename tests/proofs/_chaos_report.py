"""What chaos did and what the checker said of it, summed up and as a dated report."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import Self

from fencelog.check.verdict import ERRORS
from tests.proofs._chaos_chapter import Outcome
from tests.proofs._chaos_check import Checked
from tests.proofs._chaos_holds import END
from tests.proofs._chaos_nemesis import number_of
from tests.proofs._found import Found, section, summary
from tests.proofs._report import head

FAULTS_PROSE = ["Short chapters of the same chaos, over a copy of the source with one fault."]
PROSE = """\
In each chapter a broker is started on an empty file system of its own (ext4 on a loop device,
where mounting is permitted). Every client of a workload is a process of its own that reaches it
through a proxy which knows frames. Two rows of faults, drawn from the seed, run side by side: one
hits processes and the disk, one the network. Then everything is healed; the clients end (each
within 60 s, or it counts as stuck), no transaction may be left open, every partition's last stable
offset must meet its high watermark, and all is read from the beginning. The history of what each
client asked and was told is judged by `fencelog.check`, and by the workload, while the next chapter
is played.
"""
HELD_PROSE = """\
The proxy holds a frame back together with all that follows on its connection, cuts the client off
(or lets it wait until it gives up), and delivers it once another connection has carried the end of
its transaction, the begin of the same producer's next one and up to four of that one's writes: a
delayed message in a later transaction (E14). Without transactions it waits for up to four later
writes of the producer. A connection that broke towards the broker meanwhile delivers nothing.
"""
ENDS_PROSE = """\
An EndTxn whose client got no answer, asked again elsewhere and went on must not end the next
transaction (E14). Here nothing else is held. Our own client speaks transaction version 2, where
each transaction has an epoch of its own; aiokafka speaks version 1, where it is the connection that
tells.
"""
ENDS_HEAD = (
    "| workload | EndTxn delivered in a later transaction | transactions | records acknowledged "
    "| anomalies |",
    "|---|---:|---:|---:|---|",
)
PACKAGES = ("aiokafka", "uvloop")


@dataclass(kw_only=True)
class Chapter:
    """One chapter's figures."""

    name: str
    workload: str
    durability: str
    seconds: float
    settle_s: float
    faults: Counter[str]
    network: Counter[str]
    lives: int
    own_problems: list[str]
    checked: Checked | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """What was played, not yet checked."""
        script = outcome.script
        return cls(
            name=f"{script.number} ({script.workload}, {script.durability})",
            workload=script.workload,
            durability=script.durability,
            seconds=outcome.seconds,
            settle_s=outcome.settle_s,
            faults=outcome.faults,
            network=outcome.network,
            lives=outcome.lives,
            own_problems=outcome.problems,
        )

    @property
    def problems(self) -> list[str]:
        """What is wrong with it."""
        return self.own_problems + (self.checked.problems if self.checked else ["never checked"])


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    command: str
    commit: str
    chapters: list[Chapter]
    ends_alone: list[Chapter] = field(default_factory=list)
    """Chapters that held nothing but EndTxn."""
    found: list[Found] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Every promise that was not kept."""
        promised = [*self.chapters, *self.ends_alone]
        return [f"chapter {each.name}: {text}" for each in promised for text in each.problems]

    @property
    def holds(self) -> bool:
        """Something was checked, no promise broken, and no fault overlooked."""
        return (
            self.sum("sends acknowledged") > 0
            and not self.problems
            and all(each.problems for each in self.found)
        )

    def sum(self, count: str, chapters: Iterable[Chapter] | None = None) -> int:
        """One of the checker's counts, over these chapters or all."""
        chosen = self.chapters if chapters is None else chapters
        return sum(each.checked.counts[count] for each in chosen if each.checked)

    @property
    def faults(self) -> Counter[str]:
        """How often each fault was there."""
        return sum((each.faults for each in self.chapters), Counter())

    @property
    def network(self) -> Counter[str]:
        """What the proxies counted."""
        return sum((each.network for each in self.chapters), Counter())

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{self.sum('sends acknowledged'):,} acknowledged records and "
            f"{self.sum('records polled'):,} polled ones checked, {len(self.problems)} bad; "
            f"{summary(self.found)}"
        )


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Chaos",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`{proof.command}` (the seed fixes\n"
            "the faults and their times; what the machine does between them is its own).",
            code=proof.commit,
        ),
        f"- {', '.join(f'{name} {version(name)}' for name in PACKAGES)}",
        "",
        "## What was done and seen",
        "",
        *PROSE.splitlines(),
        "",
        *_figures(proof),
        *_faults(proof),
        *_problems(proof),
        *_ends_alone(proof),
        *section(proof.found, FAULTS_PROSE),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _figures(proof: Proof) -> list[str]:
    groups: dict[str, list[Chapter]] = {}
    for each in proof.chapters:
        groups.setdefault(f"{each.workload}, `{each.durability}`", []).append(each)
    columns = [*groups.values(), proof.chapters]
    names = [*groups, "all"]
    rows: list[tuple[str, list[str]]] = [
        ("chapters", [f"{len(column)}" for column in columns]),
        ("minutes", [f"{sum(each.seconds for each in column) / 60:.1f}" for column in columns]),
        ("client processes", [f"{sum(each.lives for each in column):,}" for column in columns]),
        *(
            (label, [f"{proof.sum(count, column):,}" for column in columns])
            for label, count in (
                ("operations", "operations"),
                ("of them acknowledged", "ok"),
                ("of them failed for certain", "failed"),
                ("of them of unknown end", "indeterminate"),
                ("of them transactions", "transactions"),
                ("records sent", "sends"),
                ("**records acknowledged, and judged**", "sends acknowledged"),
                ("records polled, and judged", "records polled"),
                ("of them by the final readers", "records polled by final readers"),
                ("partitions", "keys"),
            )
        ),
        (
            "faults",
            [f"{sum(number_of(each.faults) for each in column):,}" for column in columns],
        ),
        ("**bad**", [f"{sum(len(each.problems) for each in column)}" for column in columns]),
        (
            "longest until rest, s",
            [f"{max((each.settle_s for each in column), default=0):.1f}" for column in columns],
        ),
        (
            "seconds to check",
            [
                f"{sum(each.checked.seconds for each in column if each.checked):.0f}"
                for column in columns
            ],
        ),
    ]
    return [
        f"| | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
        *(f"| {label} | {' | '.join(cells)} |" for label, cells in rows),
        "",
    ]


def _faults(proof: Proof) -> list[str]:
    network = Counter(
        {
            name: count
            for name, count in proof.network.items()
            if name.startswith(("held", "delivered", "never"))
        }
    )
    others = [
        f"{proof.network[name]:,} {name}"
        for name in ("requests", "answers lost", "connections reset")
    ]
    mebibytes = (proof.network["request bytes"] + proof.network["answer bytes"]) >> 20
    return [
        "## The faults",
        "",
        f"Through the proxy went {', '.join(others)}, {mebibytes:,} MiB both ways.",
        "",
        "| fault | times |",
        "|---|---:|",
        *(f"| {name} | {count:,} |" for name, count in sorted(proof.faults.items())),
        "",
        "### Held and delivered late",
        "",
        *HELD_PROSE.splitlines(),
        "",
        "| frame | times |",
        "|---|---:|",
        *(f"| {name} | {count:,} |" for name, count in sorted(network.items())),
        "",
    ]


def _problems(proof: Proof) -> list[str]:
    found = sum((Counter(each.checked.found) for each in proof.chapters if each.checked), Counter())
    lines = [
        "## The verdict",
        "",
        "Findings by kind (`int-send-skip`, `G0` and `G1c-ww` are allowed by design):",
        f"{', '.join(f'{count:,} {kind}' for kind, count in sorted(found.items())) or 'none'}.",
        "",
    ]
    if proof.problems:
        lines += [
            "Problems:",
            "",
            *(f"- {each.replace(chr(10), ' / ')}" for each in proof.problems),
        ]
        lines.append("")
    return lines


def _ends_alone(proof: Proof) -> list[str]:
    if not proof.ends_alone:
        return []
    rows = []
    for each in proof.ends_alone:
        assert each.checked is not None
        late = each.network[f"delivered {END}, in a later transaction"]
        found = {kind: count for kind, count in each.checked.found.items() if kind in ERRORS}
        anomalies = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items())) or "none"
        counts = each.checked.counts
        rows.append(
            f"| {each.workload} | {late} | {counts['transactions']:,} | "
            f"{counts['sends acknowledged']:,} | {anomalies} |"
        )
    return [
        "## Old ends of transactions alone",
        "",
        *ENDS_PROSE.splitlines(),
        "",
        *ENDS_HEAD,
        *rows,
        "",
    ]
