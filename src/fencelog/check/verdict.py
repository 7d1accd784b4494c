"""What a check found: findings with their counterexamples, counts, and a report to read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isinf
from typing import Literal, TypeAlias

from fencelog.check.history import Value
from fencelog.check.tables import OUTCOMES, History

Outcome: TypeAlias = Literal["valid", "invalid", "nothing-checked"]
KEPT_MAX = 20
"""Findings of one kind that are kept; more are only counted."""

ERRORS = {
    "lost-write": "an acknowledged record is missing: readers read past its offset",
    "torn-transaction": "some records of a transaction are visible and others are not",
    "duplicate": "one value is at two offsets",
    "inconsistent-offset": "one offset has two values",
    "aborted-read": "a record is visible although its operation failed (G1a)",
    "precommitted-read": "a record was visible before its transaction could have committed",
    "phantom": "a record is visible that no client sent to that partition",
    "int-poll-skip": "within one operation, polls skipped records",
    "int-nonmonotonic-poll": "within one operation, polls went back or repeated records",
    "poll-skip": "from one operation to the next, a reader skipped records",
    "nonmonotonic-poll": "from one operation to the next, a reader went back or repeated records",
    "int-nonmonotonic-send": "within one operation, a later send has a lower offset",
    "nonmonotonic-send": "from one operation to the next, a later send has a lower offset",
    "unseen": "no final reader saw an acknowledged record",
    "G1c": "transactions read from each other in a cycle",
    "lost-input": "a group committed past an input without a visible output",
    "doubled-input": "an input has more than one visible output",
    "uncommitted-input": "an output is visible, but the group did not commit its input",
    "hanging-lso": "at the end a transaction was still open: last stable offset < high watermark",
    "end-order": "log start ≤ last stable offset ≤ high watermark ≤ log end does not hold",
}
"""Kinds that make a history invalid, the worst first."""
NOTES = {
    "int-send-skip": "other records are between the sends of one operation: normal",
    "G0": "transactions wrote between each other's records: normal, writes are not isolated",
    "G1c-ww": "a cycle with reads and write order: normal, like G0",
    "unread": "acknowledged records that no reader reached; there were no final readers",
}
"""Kinds that are allowed by design, and reported for information."""


@dataclass(frozen=True)
class Counterexample:
    """One operation that shows what went wrong."""

    op: int
    process: str
    number: int | str
    outcome: str
    invoked: float
    completed: float | None
    what: str
    """The part of it that matters."""

    def line(self) -> str:
        """One line of the report."""
        until = "        …" if self.completed is None else f"{self.completed:9.3f}"
        who = f"{self.process} #{self.number}"
        return f"{self.invoked:9.3f} to {until}  {who:<14} {self.outcome:<13} {self.what}"


@dataclass(frozen=True)
class Finding:
    """One anomaly, with the fewest operations that show it."""

    kind: str
    text: str
    key: str | None = None
    offsets: tuple[int, ...] = ()
    values: tuple[Value, ...] = ()
    counterexample: tuple[Counterexample, ...] = ()

    @property
    def is_error(self) -> bool:
        """Whether it makes the history invalid."""
        return self.kind in ERRORS

    def __str__(self) -> str:
        """Its kind and its text."""
        return f"{self.kind}: {self.text}"


class Findings:
    """Collects findings: counts all, and keeps KEPT_MAX of each kind."""

    def __init__(self, history: History) -> None:
        """Begin without findings."""
        self._history = history
        self.count: dict[str, int] = {}
        self.kept: list[Finding] = []

    def more(self, kind: str) -> bool:
        """Count one; True if it is to be kept and so worth describing."""
        count = self.count[kind] = self.count.get(kind, 0) + 1
        return count <= KEPT_MAX

    def keep(
        self,
        kind: str,
        text: str,
        counterexample: Sequence[tuple[int, str]] = (),
        *,
        key: int | None = None,
        offsets: Sequence[int] = (),
        values: Sequence[Value] = (),
    ) -> None:
        """Keep a counted finding; ``counterexample`` has operations and what they did."""
        self.kept.append(
            Finding(
                kind,
                text,
                None if key is None else self._history.keys.all[key],
                tuple(offsets),
                tuple(values),
                tuple(self._counterexample(op, what) for op, what in counterexample),
            )
        )

    def _counterexample(self, op: int, what: str) -> Counterexample:
        ops = self._history.ops
        completed = ops.completed[op]
        error = ops.errors.get(op)
        return Counterexample(
            op,
            self._history.processes.all[ops.process[op]],
            ops.number[op],
            OUTCOMES[ops.outcome[op]],
            ops.invoked[op],
            None if isinf(completed) else completed,
            f"{what} ({error})" if error else what,
        )


@dataclass(frozen=True)
class Verdict:
    """The answer."""

    outcome: Outcome
    problems: tuple[Finding, ...]
    """The anomalies, the worst kind first; at most ``KEPT_MAX`` of each kind."""
    notes: tuple[Finding, ...]
    """Findings that are allowed by design."""
    found: Mapping[str, int]
    """How many there are of each kind, kept or not."""
    counts: Mapping[str, int]
    """What was checked."""
    remarks: tuple[str, ...] = ()
    """What limits the verdict."""
    meta: Mapping[str, object] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether something was checked and nothing was wrong."""
        return self.outcome == "valid"

    def text(self) -> str:
        """A report for people."""
        lines = [self._headline(), ""]
        for kind in (*ERRORS, *NOTES):
            if kind in self.found:
                lines += self._section(kind)
        lines += [f"checked: {_counts(self.counts)}"]
        if self.meta:
            told = ", ".join(f"{name} {value}" for name, value in self.meta.items())
            lines.append(f"run: {told}")
        lines += [f"note: {remark}" for remark in self.remarks]
        return "\n".join(lines) + "\n"

    def _headline(self) -> str:
        if self.outcome == "valid":
            return "VALID: no anomaly"
        if self.outcome == "nothing-checked":
            return "NOTHING CHECKED: the history holds too little to say anything"
        kinds = [f"{count:,} {kind}" for kind in ERRORS if (count := self.found.get(kind, 0))]
        return f"INVALID: {', '.join(kinds)}"

    def _section(self, kind: str) -> list[str]:
        count = self.found[kind]
        lines = [f"{kind} ({count:,}): {ERRORS.get(kind) or NOTES[kind]}"]
        shown = [each for each in (*self.problems, *self.notes) if each.kind == kind]
        shown = shown[: 3 if kind in ERRORS else 1]
        for each in shown:
            lines.append(f"  {each.text}")
            lines += [f"    {counterexample.line()}" for counterexample in each.counterexample]
        if kind in ERRORS and count > len(shown):
            lines.append(f"  … and {count - len(shown):,} more")
        return [*lines, ""]

    def as_json(self) -> dict[str, object]:
        """All of it as plain values."""
        return {
            "outcome": self.outcome,
            "problems": [asdict(each) for each in self.problems],
            "notes": [asdict(each) for each in self.notes],
            "found": dict(self.found),
            "counts": dict(self.counts),
            "remarks": list(self.remarks),
            "meta": dict(self.meta),
        }


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
