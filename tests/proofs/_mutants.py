"""Mutants: which are tried, what became of each, and the table of it. Nothing here is run."""

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOMS = ("log", "storage", "coordination", "broker", "client", "spark")
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.toml"
GOAL_PERCENT = 95
SURVIVED = "survived"
STAGES = {
    "types": "mypy",
    "room": "the room's own tests",
    "fresh": "the same in a fresh process",
    "quick": "all quick tests",
    "simulator": "the simulator",
    "processes": "process tests",
}
"""Who may kill a mutant, in their order: a mutant meets the next one if it survived the last."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One small change of one function."""

    file: str
    """Below the repository, ``src/fencelog/log/state.py``."""
    where: str
    """The function or method of the file, ``LogState.replay``."""
    line: int
    """Of the first old line, counted from 1."""
    old: tuple[str, ...]
    new: tuple[str, ...]
    nth: int
    """Which one, from 0, where the function has the same lines more than once."""
    body: str
    """A digest of the sound function."""

    @property
    def room(self) -> str:
        """The package that it is in."""
        return self.file.split("/")[2]

    @property
    def place(self) -> str:
        """The function, as ``equivalent_mutants.toml`` and the coverage name it."""
        return f"{self.file.removeprefix('src/fencelog/')} {self.where}"

    @property
    def name(self) -> str:
        """Ten hex digits that stay the same while the changed lines and the function's name do."""
        parts = (self.file, self.where, str(self.nth), *self.old, "->", *self.new)
        return sha256("\n".join(parts).encode()).hexdigest()[:10]

    @property
    def change(self) -> tuple[str, str]:
        """The old and the new lines, without what they have in common at their left."""
        return _flush_left(self.old), _flush_left(self.new)

    def applied_to(self, text: str) -> str:
        """Return the file's text with the change; raises ValueError where it does not fit."""
        lines = text.splitlines()
        first, end = self.line - 1, self.line - 1 + len(self.old)
        if tuple(lines[first:end]) != self.old:
            raise ValueError(f"{self.place} has changed since its mutants were listed")
        return "\n".join([*lines[:first], *self.new, *lines[end:], ""])

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Mutant":
        """Read what ``_mutant_generate.py`` writes."""
        return cls(**{**entry, "old": tuple(entry["old"]), "new": tuple(entry["new"])})

    def diff(self) -> str:
        """The place and the change, for people."""
        signed = [f"  - {each}" for each in self.old] + [f"  + {each}" for each in self.new]
        return "\n".join([f"{self.name} {self.file}:{self.line} {self.where}", *signed])


def place_of(file: str, text: str, line: int) -> str:
    """Name the function or method of a file in which a line is, as ``Mutant.place`` does."""
    tree = ast.parse(text)
    bodies = [("", tree.body)]
    bodies += [(f"{each.name}.", each.body) for each in tree.body if isinstance(each, ast.ClassDef)]
    for prefix, body in bodies:
        for each in body:
            is_function = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and each.lineno <= line <= (each.end_lineno or 0):
                return f"{file.removeprefix('src/fencelog/')} {prefix}{each.name}"
    return file


def _flush_left(lines: Sequence[str]) -> str:
    return "\n".join(each.strip() for each in lines)


def sample(mutants: Iterable[Mutant], of_each_room: int, seed: int) -> list[Mutant]:
    """As many of each room, by chance; a change of the source moves no other mutant in or out."""
    by_room: dict[str, list[Mutant]] = {room: [] for room in ROOMS}
    for each in mutants:
        by_room[each.room].append(each)

    def rank(mutant: Mutant) -> str:
        return sha256(f"{seed} {mutant.name}".encode()).hexdigest()

    return [each for found in by_room.values() for each in sorted(found, key=rank)[:of_each_room]]


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """An entry of ``equivalent_mutants.toml``: a change that nobody can observe."""

    where: str
    old: str
    new: str
    why: str
    nth: int = 0

    @property
    def room(self) -> str:
        """The package that it is in."""
        return self.where.split("/")[0]

    def is_for(self, mutant: Mutant) -> bool:
        """Whether it names this mutant."""
        return (self.where, self.nth, self.old, self.new) == (
            *(mutant.place, mutant.nth),
            *mutant.change,
        )


def equivalents(path: Path = EQUIVALENT) -> list[Equivalent]:
    """Read the explained mutants."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
    return [Equivalent(**each) for each in entries]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant
    killer: str
    """A stage; ``SURVIVED`` where all of them passed."""
    by: str = ""
    """The first test, message or seed that saw it."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A room's figures."""

    room: str
    all: int
    sampled: int
    killed: Mapping[str, int]
    """By stage."""
    equivalent: int
    survived: int

    @property
    def percent(self) -> float:
        """How many of those that anybody could see were killed."""
        return _percent(sum(self.killed.values()), self.survived)

    @property
    def percent_by_tests(self) -> float:
        """The same of those that mypy accepts."""
        return _percent(sum(self.killed.values()) - self.killed.get("types", 0), self.survived)


def _percent(killed: int, survived: int) -> float:
    return 100 * killed / (killed + survived) if killed else 0.0


def scores(
    outcomes: Sequence[Outcome], explained: Sequence[Equivalent], sizes: Mapping[str, int]
) -> list[Score]:
    """Count what became of the sample, room by room; ``sizes`` is how many mutants there are."""
    found = []
    for room in ROOMS:
        mine = [each for each in outcomes if each.mutant.room == room]
        if not mine:
            continue
        lived = [each for each in mine if each.killer == SURVIVED]
        silent = [each for each in lived if is_explained(each.mutant, explained)]
        found.append(
            Score(
                room=room,
                all=sizes[room],
                sampled=len(mine),
                killed=Counter(each.killer for each in mine if each.killer != SURVIVED),
                equivalent=len(silent),
                survived=len(lived) - len(silent),
            )
        )
    return found


def is_explained(mutant: Mutant, explained: Sequence[Equivalent]) -> bool:
    """Whether it is listed as equivalent."""
    return any(each.is_for(mutant) for each in explained)


def complaints(
    mutants: Sequence[Mutant], outcomes: Sequence[Outcome], explained: Sequence[Equivalent]
) -> list[str]:
    """What is wrong with the list of equivalent mutants."""
    killed = [each for each in outcomes if each.killer != SURVIVED]
    rooms = {each.room for each in mutants}
    by_place: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_place.setdefault(mutant.place, []).append(mutant)
    return [
        *(
            f"listed as equivalent, but it is no mutant: {each.where}: {each.new}"
            for each in explained
            if each.room in rooms
            and not any(each.is_for(mutant) for mutant in by_place.get(each.where, []))
        ),
        *(
            f"listed as equivalent, but killed by {each.by}: {each.mutant.diff()}"
            for each in killed
            if is_explained(each.mutant, explained)
        ),
    ]


def table(found: Sequence[Score]) -> list[str]:
    """One row for each room."""
    stages = [stage for stage in STAGES if any(each.killed.get(stage) for each in found)]
    columns = ["room", "mutants", "sample", *(f"killed by {STAGES[each]}" for each in stages)]
    columns += ["equivalent", "survived", "killed of the others", "by tests alone"]
    rows = [
        [
            *(each.room, str(each.all), str(each.sampled)),
            *(str(each.killed.get(stage, 0)) for stage in stages),
            *(str(each.equivalent), str(each.survived)),
            *(f"{each.percent:.1f} %", f"{each.percent_by_tests:.1f} %"),
        ]
        for each in found
    ]
    return [_row(columns), f"|---{'|---:' * (len(columns) - 1)}|", *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
