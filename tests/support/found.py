"""Looking for faults: each is applied to a copy of the source, and its proof has to fail on it.

A proof that cannot fail proves nothing. What a proof does with one fault is its ``Search``; what
came of it is a ``Found``. ``./dev prove faults`` runs them all, a long proof its own kind.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.support.faults import ROOT, Fault, copy_source, found_by

FIRST_PROBLEM_CHARACTERS = 160


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a proof is given: a copy of the source with the fault, and an empty folder."""

    fault: Fault
    argument: str
    """What the ``Found-by`` line says after its kind."""
    source: Path
    folder: Path
    seed: int

    @property
    def environment(self) -> dict[str, str]:
        """What runs a process on the copy."""
        return {"PYTHONPATH": str(self.source)}


Effort: TypeAlias = str
"""How much was run, such as "19 seeds"."""
Find: TypeAlias = Callable[[Search], tuple[Effort, Sequence[str]]]
"""Runs a proof on a copy; returns the effort and the problems that it found, none if it held."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a proof found of a fault."""

    fault: Fault
    argument: str
    effort: Effort
    problems: tuple[str, ...]
    seconds: float

    @property
    def line(self) -> str:
        """One line."""
        result = f"found: {self.first}" if self.problems else "NOT FOUND"
        return f"{self.fault.name} ({self.effort}, {self.seconds:.0f} s): {result}"

    @property
    def first(self) -> str:
        """The first problem in one line, cut where it is long."""
        text = " ".join(self.problems[0].split()) if self.problems else ""
        return text.replace("|", "/")[:FIRST_PROBLEM_CHARACTERS]


def look_for(fault: Fault, argument: str, find: Find, seed: int = 0) -> Found:
    """Run a proof on a copy of the source that has the fault."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fencelog-fault-", ignore_cleanup_errors=True) as path:
        copy, folder = Path(path, "copy"), Path(path, "run")
        folder.mkdir()
        source = copy_source(fault, copy)
        effort, problems = find(
            Search(fault=fault, argument=argument, source=source, folder=folder, seed=seed)
        )
    return Found(
        fault=fault,
        argument=argument,
        effort=effort,
        problems=tuple(each.replace(f"{folder}/", "") for each in problems),
        seconds=time.monotonic() - began,
    )


def look_for_all(kind: str, find: Find, seed: int) -> list[Found]:
    """Look for each fault that this kind of proof must find; reports each on stderr."""
    found = []
    for fault in found_by(kind):
        for argument in fault.arguments(kind):
            found.append(look_for(fault, argument, find, seed))
            print(f"fault {found[-1].line}", file=sys.stderr, flush=True)
    return found


def summary(found: Sequence[Found]) -> str:
    """How many were found, in a few words."""
    return f"{sum(1 for each in found if each.problems)} of {len(found)} faults found"


def table(found: Sequence[Found]) -> list[str]:
    """One row for each search."""
    rows = [
        f"| {each.fault.name} | {', '.join(each.fault.rules)} | {each.fault.effect} "
        f"| {each.effort} | {each.seconds:.0f} | {_first(each)} |"
        for each in found
    ]
    return [
        "| fault | breaks | what goes wrong | run | s | first problem |",
        *["|---" * 6 + "|"],
        *rows,
    ]


def _first(each: Found) -> str:
    """The first problem as a committed report may say it: no place of this machine."""
    return each.first.replace(f"{ROOT}/", "") or "**NOT FOUND**"


def section(found: Sequence[Found], prose: Sequence[str]) -> list[str]:
    """What a dated report says of the faults; nothing where none was looked for."""
    return ["## It can fail", "", *prose, "", *table(found), ""] if found else []
