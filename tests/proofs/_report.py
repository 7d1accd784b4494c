"""What the dated reports of all proofs share: how they begin, what they ran on, where they go."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tests.support.faults import ROOT

REPORTS = ROOT / "docs/internals/proofs"


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
