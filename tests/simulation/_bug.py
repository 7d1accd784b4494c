"""What a planted bug is, and how it gets into a copy of the source."""

import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src"


@dataclass(frozen=True)
class Edit:
    """In this file below ``src/fencelog`` a text that stands there once becomes another one."""

    file: str
    sound: str
    broken: str

    def applied(self, source: str) -> str:
        """Return the file's text with the edit; AssertionError where it no longer fits."""
        count = source.count(self.sound)
        assert count == 1, f"{self.file} has {count} times:\n{self.sound}"
        return source.replace(self.sound, self.broken)


@dataclass(frozen=True)
class Bug:
    """A real mistake, made on purpose, that the simulator has to find."""

    name: str
    rule: str
    says: str
    """What the broker does wrong, in a few words: a row of the table."""
    edits: tuple[Edit, ...]
    workloads: tuple[str, ...] = ("queue",)
    """Whose traffic should meet it, best first."""
    durability: str = "fsync"


def broken_files(bug: Bug) -> dict[str, str]:
    """Return each file that the bug changes, with its new text."""
    files: dict[str, str] = {}
    for edit in bug.edits:
        path = SOURCE / "fencelog" / edit.file
        text = files.get(edit.file) or path.read_text(encoding="utf-8")
        files[edit.file] = edit.applied(text)
    return files


def plant(bug: Bug, folder: Path) -> Path:
    """Copy the source below a folder with the bug in it; returns what goes on the Python path."""
    copy = folder / "src"
    # With their times, so that compiled files stay valid for all but the broken ones.
    shutil.copytree(SOURCE, copy)
    for file, text in broken_files(bug).items():
        (copy / "fencelog" / file).write_text(text, encoding="utf-8")
    return copy
