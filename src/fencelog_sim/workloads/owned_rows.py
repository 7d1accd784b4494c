"""What must hold of a log that has owners, read with its ownership records (O8, O9).

From fence to fence one owner's records only, and nobody's where nobody owns it; a grant's fence is
where it was answered; the transactions of an older owner have ended before the newer one writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from fencelog_sim.workloads.owned_log import DATA, MARKER, OWNER
from fencelog_sim.workloads.owned_requests import NOBODY

Row: TypeAlias = Sequence[Any]
Note: TypeAlias = Mapping[str, Any]


def session_of(value: str) -> str:
    """Whose a value is."""
    return value.rpartition(":")[0]


class _Known(NamedTuple):
    """The newest ownership record of a group."""

    epoch: int
    session: str
    is_live: bool
    first: int


@dataclass
class _Log:
    """One partition's log, walked from its beginning."""

    name: str
    is_required: bool
    owners: dict[str | None, _Known] = field(default_factory=dict)
    open: dict[int, list[str]] = field(default_factory=dict)
    """Values of the open transactions, by producer id."""
    outcomes: dict[str, bool | None] = field(default_factory=dict)
    """By value: committed, aborted or (None) open."""
    may_hang: frozenset[str] = frozenset()
    """Values of transactions whose end a power cut in ``os`` mode may have taken."""
    places: dict[int, str] = field(default_factory=dict)
    """Values by offset."""
    fences: dict[int, tuple[str | None, int, str]] = field(default_factory=dict)
    """Grants by offset: group, epoch, session."""

    def take(self, row: Row) -> Iterator[str]:
        """Apply a row; yield what is wrong with it."""
        offset, kind, *rest = row
        if kind == OWNER:
            yield from self._owner(offset, *rest)
        elif kind == MARKER:
            producer_id, commit = rest
            for value in self.open.pop(producer_id, ()):
                self.outcomes[value] = commit
        elif kind == DATA:
            yield from self._data(offset, *rest)

    def _owner(
        self, offset: int, group: str | None, epoch: int, session: str, is_live: bool, first: int
    ) -> Iterator[str]:
        what = f"{self.name} at {offset}: epoch {epoch} of {session} in group {group}"
        known, new = self.owners.get(group), _Known(epoch, session, is_live, first)
        if first != offset:
            if known != new:
                yield f"wrong copy: {what}, the newest record is {known} (D4)"
            return
        is_end = known is not None and known.is_live and known[:2] == new[:2] and not is_live
        if known is not None and epoch <= known.epoch and not is_end:
            yield f"epoch back: {what} after {known} (O3)"
        self.owners[group] = new
        if is_live:
            self.fences[offset] = group, epoch, session

    def _data(
        self, offset: int, producer_id: int, is_transactional: bool, value: str
    ) -> Iterator[str]:
        session, owner = session_of(value), self.owners.get(None)
        is_nobodys = session.startswith(NOBODY)
        what = f"{self.name} at {offset}: {value}"
        self.places[offset] = value
        if value in self.outcomes:
            yield f"twice: {what}"
        self.outcomes[value] = None if is_transactional else True
        if owner is not None and owner.is_live:
            if session != owner.session:
                yield f"not the owner's: {what}, {owner.session} owns it (O8)"
        elif not is_nobodys:
            yield f"a zombie's: {what}, nobody owns it (O8)"
        elif self.is_required:
            yield f"nobody's: {what}, though an owner is required (O8)"
        for values in self.open.values():
            other = session_of(values[0])
            if other != session and not is_nobodys and values[0] not in self.may_hang:
                yield f"still open: {what}, and {values[0]} of a former owner is (O8)"
        if is_transactional:
            self.open.setdefault(producer_id, []).append(value)


class Logs:
    """The logs of the owned topic, and what writers were told."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._is_required = False
        self._rows: dict[str, Sequence[Row]] = {}
        self._wrote: list[Note] = []
        self._refused: list[Note] = []
        self._ended: list[Note] = []
        self._granted: list[Note] = []
        self._seen: list[Note] = []
        self._may_hang: set[str] = set()

    def take(self, note: Note) -> None:
        """Keep what matters here."""
        if note.get("may_be_lost", False) and note["what"] != "topic":
            if note["what"] == "write":
                self._may_hang.add(note["value"])
            return
        match note["what"]:
            case "topic":
                self._is_required = note["ownership"] == "required"
            case "log":
                self._rows[note["partition"]] = note["rows"]
            case "wrote":
                self._wrote.append(note)
            case "write refused":
                self._refused.append(note)
            case "ended":
                self._ended.append(note)
            case "granted":
                self._granted.append(note)
            case "seen":
                self._seen.append(note)
            case _:
                return

    def problems(self) -> Iterator[str]:
        """Yield what is wrong; nothing if the logs could not be read."""
        logs: dict[str, _Log] = {}
        for name, rows in self._rows.items():
            log = logs[name] = _Log(name, self._is_required, may_hang=frozenset(self._may_hang))
            for row in rows:
                yield from log.take(row)
        for note in self._granted:
            yield from _fence_problems(note, logs)
        for note in self._seen:
            yield from self._read_problems(note, logs)
        yield from self._told(logs)

    def _told(self, logs: Mapping[str, _Log]) -> Iterator[str]:
        """Yield what writers were told and is not so."""
        for note in self._wrote:
            log = logs.get(note["partition"])
            if log is not None and log.places.get(note["offset"]) != note["value"]:
                found = log.places.get(note["offset"])
                yield f"lost: {note['value']} at {log.name} {note['offset']}, found {found}"
        for note in self._refused:
            log = logs.get(note["partition"])
            if log is not None and note["value"] in log.outcomes:
                yield f"refused and stored: {note['value']} in {log.name}, {note['error']}"
        outcomes = {value: how for log in logs.values() for value, how in log.outcomes.items()}
        for note in self._ended if outcomes else ():
            for value in note["values"]:
                if outcomes.get(value, False) is not note["commit"]:
                    told = "committed" if note["commit"] else "aborted"
                    yield f"lost: {value} was {told}, the log says {outcomes.get(value)}"

    def _read_problems(self, note: Note, logs: Mapping[str, _Log]) -> Iterator[str]:
        """A fetch of an older owner shows nothing from the fence of a newer one on (O7, O8)."""
        epochs: dict[str, int] = next(
            (each["epochs"] for each in self._granted if each["session"] == note["session"]), {}
        )
        epoch, log = epochs.get(note["partition"]), logs.get(note["partition"])
        if epoch is None or log is None:
            return
        for offset, (group, newer, session) in log.fences.items():
            if group == note["group"] and newer > epoch and offset < note["end"]:
                yield (
                    f"zombie's read: {note['session']} of epoch {epoch} was shown {log.name} up to "
                    f"{note['end']}, behind the fence of {session} at {offset} (O7)"
                )
                return


def _fence_problems(note: Note, logs: Mapping[str, _Log]) -> Iterator[str]:
    """The fence of a grant is where it was answered (O9)."""
    for name, epoch in note["epochs"].items():
        log, offset = logs.get(name), note["fences"][name]
        if log is None:
            continue
        found = log.fences.get(offset)
        if found != (note["group"], epoch, note["session"]):
            yield f"wrong fence: {note['session']} at {offset} of {name}, found {found} (O9)"
