"""Transcripts: a story, a command, ``----``, and exactly what it says.

A block is lines of comment (``#``), one command line, ``----``, and the output up to an empty line.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RULER = "----"


@dataclass(frozen=True)
class Step:
    """One command of a transcript, with what is expected of it."""

    comment: str
    command: str
    expected: str

    def write(self, output: str) -> str:
        """The block, with this output."""
        body = f"{self.command}\n{RULER}\n{output}\n"
        return f"{self.comment}\n{body}" if self.comment else body


def read(path: Path) -> list[Step]:
    """The steps of a transcript. A trailing block of comments only is a step without command."""
    return [_step(block) for block in path.read_text(encoding="utf-8").strip().split("\n\n")]


def _step(block: str) -> Step:
    lines = block.splitlines()
    start = next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment, rest = "\n".join(lines[:start]), lines[start:]
    if not rest:
        return Step(comment, "", "")
    assert RULER in rest, f"a command and {RULER} are wanted in: {block!r}"
    ruler = rest.index(RULER)
    assert ruler == 1, f"one command line is wanted before {RULER} in: {block!r}"
    return Step(comment, rest[0], "\n".join(rest[ruler + 1 :]))


def play(path: Path, answer: Callable[[str], str]) -> str:
    """The transcript as it comes out when its commands are answered by ``answer``."""
    blocks = [
        step.write(answer(step.command) or "ok") if step.command else f"{step.comment}\n"
        for step in read(path)
    ]
    return "\n".join(blocks)
