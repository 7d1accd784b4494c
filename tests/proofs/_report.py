"""What the dated reports of all proofs share: how they begin, what they ran on, where they go."""

import os
import platform
import random
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from tests.support.faults import ROOT

REPORTS = ROOT / "docs/internals/proofs"
PROBLEMS_SHOWN = 50


def head(
    title: str, *, began: datetime, holds: bool, summary: str, again: str, code: str
) -> list[str]:
    """The first lines: the verdict, how to run it again, and when, where and on what it was run."""
    return [
        f"# {title}, {began:%Y-%m-%d}",
        "",
        f"**{'Holds' if holds else 'DOES NOT HOLD'}**: {summary}.",
        "",
        f"Run again: {again}",
        "",
        f"- begun {began:%Y-%m-%d %H:%M} UTC, on {machine()}",
        f"- code under test: {code}",
    ]


class Proof(Protocol):
    """All that a long proof ran."""

    @property
    def began(self) -> datetime:
        """When it began, in UTC."""

    @property
    def holds(self) -> bool:
        """No promise was broken, and no fault overlooked."""

    @property
    def summary(self) -> str:
        """One line."""


def parser(name: str, doc: str | None, *, full: str = "a run at full size") -> ArgumentParser:
    """The options of every long proof with a seed."""
    found = ArgumentParser(prog=f"./dev prove {name}", description=doc)
    found.add_argument("--seed", type=int, default=None, help="default: a new one; it is printed")
    found.add_argument("--report", type=Path, default=None, help=f"default: by date, for {full}")
    return found


def chosen_seed(seed: int | None) -> int:
    """Return the seed that was asked for, or a new one; says it on stderr."""
    chosen = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"seed {chosen}", file=sys.stderr)
    return chosen


def conclude(name: str, proof: Proof, text: str, path: Path | None, *, is_full: bool) -> int:
    """Publish a report and say what it came to; returns the exit status."""
    publish(name, proof.began, text, path, is_full=is_full)
    print(f"{name}: {proof.summary}")
    return 0 if proof.holds else 1


def run_with_report(
    name: str,
    doc: str | None,
    prove: Callable[[Path, datetime], tuple[str, bool]],
    argv: Sequence[str],
) -> int:
    """Run a proof without options but ``--write``, in a folder of its own; the exit status.

    ``prove`` returns the report and whether it holds.
    """
    asked = ArgumentParser(prog=f"./dev prove {name}", description=doc)
    asked.add_argument("--write", action="store_true", help="keep the report, by date")
    wanted = asked.parse_args(argv)
    began = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as folder:
        report, holds = prove(Path(folder), began)
    publish(name, began, report, None, is_full=wanted.write)
    return 0 if holds else 1


def packages(names: Iterable[str]) -> str:
    """The line of a report with the versions of these packages."""
    return f"- {', '.join(f'{name} {version(name)}' for name in names)}"


def strike_lines(strikes: Iterable[object]) -> list[str]:
    """A table of how often what was struck, and where."""
    kinds = Counter(map(str, strikes))
    return [
        "| who, where | times |",
        "|---|---:|",
        *(f"| {kind} | {count} |" for kind, count in sorted(kinds.items())),
    ]


def problem_lines(problems: Sequence[str]) -> list[str]:
    """The part of a report that has the problems; nothing where there are none."""
    if not problems:
        return []
    lines = [" / ".join(each.splitlines()) for each in problems[:PROBLEMS_SHOWN]]
    return ["## Problems", "", *(f"- {each}" for each in lines), ""]


def publish(name: str, began: datetime, text: str, path: Path | None, *, is_full: bool) -> None:
    """Write a report to ``path``; without one a full run's is kept by date, any other printed."""
    if path is None and is_full:
        path = REPORTS / f"{name}-{began:%Y-%m-%d}.md"
    if path is None:
        print(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"report: {path}")


def machine() -> str:
    """What this runs on."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} "
        f"{platform.release()} {platform.machine()}, Python {platform.python_version()}"
    )


def commit() -> str:
    """Which source this is."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "src")
    return f"commit {git('rev-parse', 'HEAD')}" + (" with changes in `src`" if changed else "")


def between(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what stands between a page's two comments of this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, opened, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    assert opened, f"{page} has no {begin}"
    assert closed, f"{page} has no {end}"
    page.write_text("\n".join([before + begin, "", *lines, "", end + after]), encoding="utf-8")
