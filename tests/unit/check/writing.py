"""Histories written by hand, a line an operation."""

from fencelog.check import Finding, Verdict, check
from fencelog.check.history import Event, Value

Records = list[tuple[int, Value]]


def send(key: str, value: Value, offset: int | None = None) -> list[object]:
    """A send, and the offset of its acknowledgement."""
    return ["send", key, value, offset]


def poll(**records: Records) -> list[object]:
    """A poll and what it returned, by key."""
    return ["poll", {key: [list(each) for each in some] for key, some in records.items()}]


class Written:
    """Events of operations; each ends before the next begins, unless they are asked to overlap."""

    def __init__(self) -> None:
        """Empty."""
        self.events: list[Event] = []
        self._ids = 0

    def _add(self, kind: str, process: str, **fields: object) -> None:
        time = float(len(self.events))
        self.events.append({"type": kind, "process": process, "time": time, **fields})

    def begin(self, process: str, *steps: list[object], txn: bool = False) -> int:
        """An invocation; its id."""
        self._ids += 1
        sends = [each[:3] for each in steps if each[0] == "send"]
        self._add("invoke", process, id=self._ids, transactional=txn, steps=sends)
        return self._ids

    def end(self, kind: str, process: str, number: int, *steps: list[object]) -> None:
        """A completion."""
        self._add(kind, process, id=number, steps=list(steps))

    def op(self, kind: str, process: str, *steps: list[object], txn: bool = False) -> int:
        """An operation that nothing overlaps; its id."""
        number = self.begin(process, *steps, txn=txn)
        self.end(kind, process, number, *steps)
        return number

    def ok(self, process: str, *steps: list[object], txn: bool = False) -> int:
        """One that is ok."""
        return self.op("ok", process, *steps, txn=txn)

    def failed(self, process: str, *steps: list[object], txn: bool = False) -> int:
        """One that failed."""
        return self.op("failed", process, *steps, txn=txn)

    def unknown(self, process: str, *steps: list[object], txn: bool = False) -> int:
        """One without a known end."""
        return self.op("indeterminate", process, *steps, txn=txn)

    def reset(self, process: str) -> None:
        """The next poll need not follow the last."""
        self._add("reset", process, how="assign")

    def ends(self, **partitions: tuple[int, int, int, int]) -> None:
        """log_start, last_stable, high_watermark, log_end of each key."""
        names = ("log_start", "last_stable", "high_watermark", "log_end")
        told = {key: dict(zip(names, each, strict=True)) for key, each in partitions.items()}
        self._add("end", "admin", partitions=told)

    def group_end(self, group: str, **offsets: int) -> None:
        """What a group committed."""
        self._add("group_end", "admin", group=group, offsets=offsets)

    def verdict(self) -> Verdict:
        """What the checker says."""
        return check(self.events)

    def kinds(self) -> dict[str, int]:
        """The anomalies and how many of each; notes are left out."""
        verdict = self.verdict()
        kinds = {each.kind for each in verdict.problems}
        return {kind: count for kind, count in verdict.found.items() if kind in kinds}

    def only(self, kind: str) -> Finding:
        """The only anomaly, which must be of this kind."""
        verdict = self.verdict()
        (finding,) = verdict.problems
        assert finding.kind == kind, verdict.text()
        return finding

    def first(self, kind: str) -> Finding:
        """The first one of this kind."""
        verdict = self.verdict()
        found = [each for each in verdict.problems if each.kind == kind]
        assert found, verdict.text()
        return found[0]


def who(finding: Finding) -> list[tuple[str, int | str]]:
    """(process, id) of each operation of the counterexample."""
    return [(each.process, each.number) for each in finding.counterexample]
