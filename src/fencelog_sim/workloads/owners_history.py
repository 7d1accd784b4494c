"""What must hold of grants, waits, reads and commits, as the claimants saw them (O1 to O10).

The order of the notes is the order in which things happened. What was asked after an answer was
received must be decided after what that answer says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fencelog.check.history import Event
from fencelog.coordination.ownership.model import NEXT_GENERATION
from fencelog_sim.workloads.offsets_history import Offsets
from fencelog_sim.workloads.owned_rows import Logs

PROBLEMS_MAX = 20
Note: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[str | None, str]
"""A group and a resource."""


def problems_of(events: Sequence[Event]) -> list[str]:
    """Return what does not hold."""
    notes: list[Note] = [event for event in events if event["type"] == "meta"]
    grants, commits, logs, offsets = Grants(), Commits(), Logs(), Offsets()
    problems: list[str] = []
    for note in notes:
        problems += grants.take(note)
        problems += commits.take(note, grants)
        problems += offsets.take(note, grants)
        logs.take(note)
    problems += grants.overtaken()
    problems += logs.problems()
    problems += _states(notes)
    return problems[:PROBLEMS_MAX]


@dataclass
class _Asked:
    """A claim, from its first request on."""

    note: Note
    index: int
    floors: dict[str, int]
    """The epochs that somebody was answered before its last request."""
    waited: int | None = None
    """When it was first told its place."""
    epochs: dict[str, int] = field(default_factory=dict)


class Grants:
    """All claims, and what was answered."""

    def __init__(self) -> None:
        """Nothing is granted."""
        self._asked: dict[str, _Asked] = {}
        self._sessions: dict[tuple[str | None, str, int], str] = {}
        self._generations: dict[tuple[str | None, str, int], int] = {}
        self.newest: dict[Place, int] = {}
        """The highest epoch that somebody was answered."""
        self.epochs: dict[str, dict[str, int]] = {}
        """By session."""
        self._count = 0

    def take(self, note: Note) -> Iterator[str]:
        """Apply a note; yield what it shows to be wrong."""
        self._count += 1
        match note["what"]:
            case "own":
                group = note["group"]
                floors = {name: self.newest.get((group, name), 0) for name, _, _ in note["wanted"]}
                known = self._asked.setdefault(note["id"], _Asked(note, self._count, floors))
                known.floors = floors
            case "waiting":
                asked = self._asked[note["id"]]
                asked.waited = asked.waited or self._count
            case "granted":
                yield from self._granted(note)
            case _:
                return

    def _granted(self, note: Note) -> Iterator[str]:
        asked, group, session = self._asked[note["id"]], note["group"], note["session"]
        asked.epochs = self.epochs[session] = note["epochs"]
        wanted = {name: (generation, prev) for name, generation, prev in asked.note["wanted"]}
        if list(asked.epochs) != list(wanted):
            yield f"broken: {session} was granted {list(asked.epochs)}, asked {list(wanted)} (O6)"
            return
        for name, epoch in asked.epochs.items():
            what = f"epoch {epoch} of {name} in group {group}"
            other = self._sessions.setdefault((group, name, epoch), session)
            if other != session:
                yield f"two owners: {what} was granted to {other} and to {session} (O3)"
            if epoch <= asked.floors[name]:
                yield f"epoch back: {what} was granted after {asked.floors[name]} (O3)"
            _, prev = wanted[name]
            if prev >= 0 and epoch != prev + 1:
                yield f"zombie's claim: {what} was granted to who held {prev} (O5)"
            generation = note["generations"][name]
            before = self._generations.get((group, name, epoch - 1))
            yield from _generation_problems(what, wanted[name][0], before, generation)
            self._generations[group, name, epoch] = generation
            self.newest[group, name] = max(epoch, self.newest.get((group, name), 0))

    def overtaken(self) -> Iterator[str]:
        """Yield each claim that waited and let a later one of its resources pass (O10)."""
        waited = [each for each in self._asked.values() if each.note["waits"] and each.epochs]
        for early in waited:
            if early.waited is None or any(_is_conditional(each) for each in early.note["wanted"]):
                continue
            for late in waited:
                if late.index < early.waited or late.note["group"] != early.note["group"]:
                    continue
                for name in early.epochs.keys() & late.epochs.keys():
                    if late.epochs[name] < early.epochs[name]:
                        yield f"overtaken: {early.note['id']} by {late.note['id']}: {name} (O10)"

    def epoch(self, session: str, resource: str) -> int | None:
        """The epoch that a session was granted; None if it was not answered."""
        return self.epochs.get(session, {}).get(resource)


def _is_conditional(wanted: Sequence[Any]) -> bool:
    _, generation, prev = wanted
    return bool(generation > 0 or prev >= 0)


def _generation_problems(
    what: str, wanted: int, before: int | None, recorded: int
) -> Iterator[str]:
    if wanted not in {NEXT_GENERATION, recorded}:
        yield f"broken: {what} has generation {recorded}, asked for {wanted} (O4)"
    if before is None:
        return
    if wanted == NEXT_GENERATION and recorded != before + 1:
        yield f"broken: {what} has generation {recorded} after {before} (O4)"
    if 0 < wanted < before:
        yield f"stale claim: {what} was granted to generation {wanted} after {before} (O1, O4)"


class Commits:
    """What commits and fetches of attached connections were answered, beside the grants."""

    def __init__(self) -> None:
        """Nothing is committed."""
        self._asked: dict[str, dict[Place, int]] = {}
        """The newest epochs when something was asked, by the value or number that names it."""
        self._count = 0
        self._begun: dict[str, int] = {}
        """When a commit was asked for, by its metadata."""
        self._owned_from: dict[tuple[str, str], int] = {}
        """When an owner's first commit was acknowledged, by session and partition."""
        self._nobodys: dict[str, list[tuple[int, int, str]]] = {}
        """When commits without a claim began and were acknowledged, by partition."""

    def take(self, note: Note, grants: Grants) -> Iterator[str]:
        """Apply a note; yield what it shows to be wrong."""
        self._count += 1
        match note["what"]:
            case "commit":
                self._begun[note["metadata"]] = self._count
                self._asked[note["metadata"]] = dict(grants.newest)
            case "read":
                self._asked[f"{note['session']}:{note['number']}"] = dict(grants.newest)
            case "seen":
                yield from self._late(f"{note['session']}:{note['number']}", "read", note, grants)
            case "committed":
                yield from self._late(note["metadata"], "commit", note, grants)
                yield from self._committed(note, grants)
            case "nobody commits":
                self._begun[note["metadata"]] = self._count
            case "nobody committed":
                times = self._begun[note["metadata"]], self._count, str(note["metadata"])
                self._nobodys.setdefault(note["partition"], []).append(times)
            case _:
                return

    def _late(self, asked: str, what: str, note: Note, grants: Grants) -> Iterator[str]:
        """What was asked after a newer grant was answered must be refused (O7, O8)."""
        place = note["group"], note["partition"]
        epoch = grants.epoch(note["session"], note["partition"])
        newest = self._asked[asked].get(place, 0)
        if epoch is not None and epoch < newest:
            yield (
                f"zombie's {what}: {note['session']} of epoch {epoch} was served at "
                f"{note['partition']} in group {note['group']} after {newest} was granted (O8)"
            )

    def _committed(self, note: Note, grants: Grants) -> Iterator[str]:
        """Whoever is the owner before and after another's commit was it all the time."""
        partition, session = note["partition"], note["session"]
        owned_from = self._owned_from.setdefault((session, partition), self._count)
        for begun, ended, metadata in self._nobodys.get(partition, ()):
            if owned_from < begun and ended < self._begun[note["metadata"]]:
                yield f"not the owner's: {partition} took {metadata}, {session} owned it (O8)"


def _states(notes: Sequence[Note]) -> Iterator[str]:
    """Yield what is left over in the end (O9)."""
    for note in notes:
        for group, resource, state, waiting in note["states"] if note["what"] == "states" else ():
            if state == "claiming" or waiting:
                yield f"left over: {resource} in group {group} is {state}, {waiting} wait (O9)"
