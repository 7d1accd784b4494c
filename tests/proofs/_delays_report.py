"""The dated report of the delays: what was held, when it arrived, and what came of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version as version_of

from tests.proofs._delays_play import STUCK_AFTER_TIMEOUT_S, Outcome
from tests.proofs._delays_schedule import Kind
from tests.proofs._delays_stock import Stock
from tests.proofs._found import Found, section, summary
from tests.proofs._report import head

FAULTS_PROSE = [
    "Schedules, before a copy of the source with one fault, and again without any delay."
]
PROSE = """\
A producer at the level of messages consumes, transforms and produces: in each transaction it writes
to two partitions and commits its group's offset on one of two input partitions; it begins each from
what is committed, and some are aborted on purpose. It keeps one connection, or two as the stock
clients do, or (*the group apart*) one each for leader, coordinator and group, as a producer of
version 1 does before several brokers only. Its schedule holds one or two of its requests. The
producer behaves as if its time had run out: it asks again, or gives the transaction up, or is
replaced by a successor, or stays away until the transaction has run out of time; then it goes on.
Later the held request arrives: with one of those of the next two transactions (before it and
answered first, or racing with it), at the end, or after the broker was killed and started again.

How a request is held: **connection**, with all that follows on its connection, which is older than
those that the producer opens then; **reordered**, alone, while later requests pass it on the same
connection; **late connection**, as the first, but it reaches the broker on a connection that is
opened only then, as a relay between them might do (no plain TCP connection can: its client has
given it up).

Each schedule is a history of its own: `fencelog check` looks for lost, doubled, torn, aborted and
early records and for inputs without their one output; readers of committed data must reach the end
at most {stuck:.0f} s after the transaction's timeout. A *disturbed* producer was refused something
and started again: no promise is broken by that.
"""
ORDER = (
    "in its own transaction",
    "in the next one, at ADD_PARTITIONS_TO_TXN",
    "in the next one, at PRODUCE",
    "in the next one, at ADD_OFFSETS_TO_TXN",
    "in the next one, at TXN_OFFSET_COMMIT",
    "in the next one, at END_TXN",
    "in the next one, at INIT_PRODUCER_ID",
    "in the next one, at OFFSET_FETCH",
    "in a later one",
    "while its client was away",
    "at the end",
    "after a restart of the broker",
    "never: its connection broke",
)


@dataclass(kw_only=True)
class Part:
    """All schedules of one version whose requests were held in one way."""

    kind: Kind
    outcomes: list[Outcome]
    left_open: list[str]
    """Transactions that were open when their time, and more, was over."""
    seconds: float

    @property
    def wrong(self) -> list[Outcome]:
        """Schedules with a problem."""
        return [each for each in self.outcomes if each.problems]

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{self.kind.name}: {len(self.outcomes):,} schedules, "
            f"{len(self.wrong)} wrong, {self.seconds:.0f} s"
        )


@dataclass(kw_only=True)
class Proof:
    """All that was run."""

    began: datetime
    commit: str
    command: str
    parts: Sequence[Part]
    stock: Sequence[Stock]
    faults: Sequence[Found]

    @property
    def broken_promises(self) -> list[str]:
        """What should not have gone wrong."""
        found = [
            f"{each.schedule}: {problem}"
            for part in self.parts
            if part.kind.is_promised
            for each in part.wrong
            for problem in each.problems
        ]
        found += [
            f"{part.kind.name}: {name} is open after its timeout"
            for part in self.parts
            for name in part.left_open
        ]
        return found + [problem for each in self.stock for problem in each.problems]

    @property
    def holds(self) -> bool:
        """No promise broken, no fault overlooked."""
        return not self.broken_promises and all(each.problems for each in self.faults)

    @property
    def summary(self) -> str:
        """One line."""
        schedules = sum(len(part.outcomes) for part in self.parts)
        promised = sum(len(part.outcomes) for part in self.parts if part.kind.is_promised)
        open_ones = [part for part in self.parts if not part.kind.is_promised]
        wrong = sum(len(part.wrong) for part in open_ones)
        return (
            f"{schedules:,} schedules, {promised:,} of them under a promise: "
            f"{len(self.broken_promises)} broken; {wrong} of the other "
            f"{schedules - promised:,} wrong; {sum(each.schedules for each in self.stock)} of "
            f"stock clients; {summary(self.faults)}"
        )


def report(proof: Proof) -> str:
    """The report as Markdown."""
    lines = [
        *head(
            "Delayed messages",
            began=proof.began,
            holds=proof.holds,
            summary=proof.summary,
            again=f"`{proof.command}` (the seed fixes the schedules; races are the machine's).",
            code=proof.commit,
        ),
        "",
        *PROSE.format(stuck=STUCK_AFTER_TIMEOUT_S).splitlines(),
        "",
        *_overview(proof.parts),
    ]
    for part in proof.parts:
        lines += _arrivals(part)
    lines += [*_stock_lines(proof.stock), *section(proof.faults, FAULTS_PROSE)]
    if broken := proof.broken_promises:
        lines += ["## Broken promises", "", *(f"- {each}" for each in broken[:40]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _overview(parts: Sequence[Part]) -> list[str]:
    lines = [
        "| version | held | promised | schedules | requests held | cut off | wrong "
        "| what | disturbed | longest wait of readers at the end | seconds |",
        "|---|---|---|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for part in parts:
        kinds = Counter(
            kind for each in part.wrong for kind in {p.split(":")[0] for p in each.problems}
        )
        numbers = [
            f"{len(part.outcomes):,}",
            f"{sum(len(each.arrivals) for each in part.outcomes):,}",
            sum(each.cut_off for each in part.outcomes),
            f"**{len(part.wrong)}**",
            ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
            sum(1 for each in part.outcomes if each.disturbed),
            f"{max((each.stuck_s for each in part.outcomes), default=0):.2f} s",
            f"{part.seconds:.0f}",
        ]
        promised = "yes" if part.kind.is_promised else "no, counted"
        held = part.kind.name.partition(", ")[2]
        head = f"| {part.kind.version} | {held} | {promised} | "
        lines.append(head + " | ".join(str(each) for each in numbers) + " |")
    return [*lines, "", *CUT_OFF.splitlines(), ""]


CUT_OFF = """\
*Cut off*: the broker ended the connection that a late request came on, as it does for version 1
where the producer has used a newer one for the same kind of request (E14). A schedule may be wrong
in several ways; each is counted once.
"""


def _arrivals(part: Part) -> list[str]:
    """How many requests of each kind arrived when, and in how many schedules that were wrong."""
    counts: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for each in part.outcomes:
        for arrival in each.arrivals:
            counts[arrival] += 1
            wrong[arrival] += bool(each.problems)
    names = [api.name for api in part.kind.held]
    lines = [
        f"## {part.kind.name.capitalize()}",
        "",
        f"| it arrived | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for when in ORDER:
        cells = [
            f"{counts[name, when]}"
            + (f", **{wrong[name, when]} wrong**" if wrong[name, when] else "")
            for name in names
        ]
        if any(counts[name, when] for name in names):
            lines.append(f"| {when} | {' | '.join(cells)} |")
    return [*lines, ""]


def _stock_lines(stock: Sequence[Stock]) -> list[str]:
    if not stock:
        return []
    lines = [
        "## Stock clients",
        "",
        "The same through the proxy of `./dev prove chaos`: the whole connection of one request is",
        "held, the client is cut off and goes on by itself, and the request arrives in its next",
        "transaction.",
        "",
        "| client | schedules | requests that arrived late | committed | aborted | wrong |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for each in stock:
        name = f"{each.client} {version_of(each.client)}"
        lines.append(
            f"| {name} | {each.schedules} | {each.late} | {each.committed} | {each.aborted} "
            f"| {len(each.problems)} |"
        )
    return [*lines, ""]
