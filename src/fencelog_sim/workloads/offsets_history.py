"""What must hold of the offsets that the readers see: whose they are, and that none is lost (O8).

The broker orders commits by their records, those of a transaction by where they were taken, not by
where it ended. They count once it is committed, and nobody sees an offset while one is undecided.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from fencelog_sim.workloads.owned_requests import READERS
from fencelog_sim.workloads.owned_rows import Note, session_of


class Epochs(Protocol):
    """The epochs that were granted."""

    newest: dict[tuple[str | None, str], int]
    """The highest that somebody was answered, by group and resource."""

    def epoch(self, session: str, resource: str) -> int | None:
        """The epoch of a session; None if it was not answered."""
        ...


@dataclass
class _Commit:
    """An offset that was committed, plainly or in a transaction; times are numbers of notes."""

    partition: str
    begun: int
    is_pending: bool
    taken: int | None = None
    """When it was answered."""
    effective: int | None = None
    """From when on everybody must see it, or a later one."""
    outcome: bool | None = None
    """What was asked for its transaction."""
    may_be_lost: bool = False
    """It was begun before a power cut in ``os`` mode."""


@dataclass(frozen=True)
class _Look:
    """Somebody looks at a partition's offset."""

    at: int
    newest: int
    """The highest epoch that was granted before."""


@dataclass(frozen=True)
class _Seen:
    """What was seen of a partition, and when."""

    metadata: str | None
    at: int
    newest: int


class Offsets:
    """The offsets of the readers as a register for each partition."""

    def __init__(self) -> None:
        """Nothing is committed."""
        self._commits: dict[str, _Commit] = {}
        self._looks: dict[tuple[str, str], _Look] = {}
        self._seen: dict[str, _Seen] = {}
        self._count = 0

    def take(self, note: Note, epochs: Epochs) -> Iterator[str]:
        """Apply a note; yield what it shows to be wrong."""
        self._count += 1
        match note["what"]:
            case "commit" | "nobody commits":
                commit = _Commit(note["partition"], self._count, note.get("is_pending", False))
                commit.may_be_lost = note.get("may_be_lost", False)
                self._commits[note["metadata"]] = commit
            case "committed" | "nobody committed":
                commit = self._commits[note["metadata"]]
                commit.taken = self._count
                if not commit.is_pending:
                    commit.effective = self._count
            case "offsets end" | "offsets ended":
                self._ends(note, has_ended=note["what"] == "offsets ended")
            case "look":
                newest = epochs.newest.get((READERS, note["partition"]), 0)
                self._looks[str(note["process"]), note["partition"]] = _Look(self._count, newest)
            case "found":
                look = self._looks[str(note["process"]), note["partition"]]
                yield from self._found(note["partition"], note["metadata"], look, epochs)
                if note.get("may_be_lost", False):
                    self._seen.pop(note["partition"], None)
            case _:
                return

    def _ends(self, note: Note, *, has_ended: bool) -> None:
        """A transaction is to end, or has."""
        for name in note["metadata"]:
            commit = self._commits[name]
            commit.outcome = note["commit"]
            if has_ended and commit.outcome and commit.taken is not None:
                commit.effective = self._count

    def _found(
        self, partition: str, metadata: str | None, look: _Look, epochs: Epochs
    ) -> Iterator[str]:
        what = f"{partition} has {metadata}"
        found = None if metadata is None else self._commits[metadata]
        is_undecided = found is not None and found.is_pending and found.outcome is not True
        if found is not None and is_undecided and not found.may_be_lost:
            yield f"undecided: {what} of a transaction that was not to be committed (E10)"
        for name, each in self._commits.items():
            is_due = each.effective is not None and each.effective < look.at
            is_due = is_due and each.partition == partition and not each.may_be_lost
            if not is_due or name == metadata:
                continue
            if found is None or (found.taken is not None and found.taken < each.begun):
                yield f"lost offset: {what}, though {name} was committed after it (D1, E10)"
                return
        yield from self._older(partition, metadata, look, epochs)

    def _older(
        self, partition: str, metadata: str | None, look: _Look, epochs: Epochs
    ) -> Iterator[str]:
        """After a grant no commit of an older epoch takes effect."""
        seen = self._seen.get(partition)
        if seen is None or look.at > seen.at:
            if seen is not None and metadata not in {None, seen.metadata}:
                assert metadata is not None
                epoch = epochs.epoch(session_of(metadata), partition)
                if epoch is not None and epoch < seen.newest:
                    yield (
                        f"older commit: {partition} has {metadata} of epoch {epoch}, instead of "
                        f"{seen.metadata} after {seen.newest} was granted (O8)"
                    )
            self._seen[partition] = _Seen(metadata, self._count, look.newest)
