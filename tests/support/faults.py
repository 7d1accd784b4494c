"""Faults: mutations of a copy of the source that a test or a proof must find.

``tests/faults/NAME.patch`` is one fault: a head of ``Key: value`` lines (the rules that it breaks,
what goes wrong, and one ``Found-by`` line for each that finds it), then a unified diff against
``src``. It is applied strictly: the old lines of each hunk, context and all, must stand exactly
once in their file. Line numbers count for nothing. The product itself has no switches.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "tests/faults"
SOURCE = ROOT / "src"
CONTEXT_LINES_MAX = 8
OLD, NEW = "--- a/", "+++ b/"


class FaultError(ValueError):
    """A patch file is malformed, or does not apply to the source as it stands."""


@dataclass(frozen=True)
class Finder:
    """Who must find a fault: the kind of proof, and its argument as written."""

    kind: str
    argument: str


@dataclass(frozen=True)
class Hunk:
    """Lines of a file that become others, each with its newline."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """One patch file; ``name`` is the file's."""

    name: str
    rules: tuple[str, ...]
    effect: str
    """What the broker does wrong, in a few words."""
    finders: tuple[Finder, ...]
    hunks: tuple[Hunk, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it changes, as repository paths."""
        return tuple(dict.fromkeys(each.file for each in self.hunks))

    def arguments(self, kind: str) -> list[str]:
        """What the finders of one kind are given; empty where it has none."""
        return [each.argument for each in self.finders if each.kind == kind]


def names() -> list[str]:
    """Every fault's name, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.patch"))


def load(name: str) -> Fault:
    """Read a fault; raises FaultError where its file is malformed."""
    text = (FOLDER / f"{name}.patch").read_text(encoding="utf-8")
    head, start, patch = text.partition(OLD)
    values: dict[str, list[str]] = {"Rules": [], "Effect": [], "Found-by": []}
    for line in filter(None, head.splitlines()):
        key, _, value = line.partition(": ")
        if key not in values or not value:
            raise FaultError(f"{name}: {line!r} is none of {', '.join(values)}")
        values[key].append(value)
    if not (len(values["Rules"]) == len(values["Effect"]) == 1 and values["Found-by"]):
        raise FaultError(f"{name}: needs one Rules line, one Effect line and a Found-by line")
    found_by = [each.partition(" ") for each in values["Found-by"]]
    return Fault(
        name=name,
        rules=tuple(values["Rules"][0].split(", ")),
        effect=values["Effect"][0],
        finders=tuple(Finder(kind, argument) for kind, _, argument in found_by),
        hunks=tuple(_hunks(name, start + patch)),
    )


def _hunks(name: str, patch: str) -> Iterator[Hunk]:
    for of_file in patch.split(f"\n{OLD}"):
        head, *hunks = of_file.split("\n@@ ")
        old_path, _, new_path = head.removeprefix(OLD).partition(f"\n{NEW}")
        if not old_path.startswith("src/") or old_path != new_path or not hunks:
            raise FaultError(f"{name}: {head!r} is no change of one file below src")
        for hunk in hunks:
            lines = hunk.splitlines()[1:]
            if strange := [each for each in lines if each[:1] not in {"", " ", "-", "+"}]:
                raise FaultError(f"{name}: {strange[0]!r} is no line of a diff")
            yield Hunk(old_path, _side(lines, "-"), _side(lines, "+"))


def _side(lines: list[str], sign: str) -> str:
    """The context and the lines with this sign; an editor may have emptied a blank one."""
    return "".join(f"{each[1:]}\n" for each in lines if each[:1] in {"", " ", sign})


def everything() -> list[Fault]:
    """Load every fault, sorted by name; raises FaultError."""
    return [load(name) for name in names()]


def found_by(kind: str) -> list[Fault]:
    """Load the faults that a kind of proof must find."""
    return [each for each in everything() if each.arguments(kind)]


def faulty_files(fault: Fault) -> dict[str, str]:
    """Return each file that a fault changes, by its repository path, with its faulty text.

    Raises FaultError where the fault does not apply.
    """
    sound = {file: (ROOT / file).read_text(encoding="utf-8") for file in fault.files}
    faulty = dict(sound)
    for hunk in fault.hunks:
        for text in (sound[hunk.file], faulty[hunk.file]):
            count = text.count(hunk.old)
            if count != 1:
                raise FaultError(f"{fault.name}: {hunk.file} has {count} times:\n{hunk.old}")
        faulty[hunk.file] = faulty[hunk.file].replace(hunk.old, hunk.new)
    return faulty


def copy_source(fault: Fault, folder: Path) -> Path:
    """Copy the source below a folder and apply a fault; returns what goes on PYTHONPATH.

    Raises FaultError where the fault does not apply.
    """
    faulty = faulty_files(fault)
    # With their times, so that compiled files stay valid for all but the faulty ones.
    shutil.copytree(SOURCE, folder / "src")
    for file, text in faulty.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder / "src"


def diff(faulty: Mapping[str, str]) -> str:
    """The unified diff from the source to these files, with as little context as is unique.

    Raises FaultError where no context does.
    """
    return "".join(_diff_of_file(file, text) for file, text in sorted(faulty.items()))


def _diff_of_file(file: str, faulty: str) -> str:
    sound = (ROOT / file).read_text(encoding="utf-8")
    before, after = sound.splitlines(keepends=True), faulty.splitlines(keepends=True)
    for context in range(1, CONTEXT_LINES_MAX + 1):
        text = "".join(unified_diff(before, after, OLD[4:] + file, NEW[4:] + file, n=context))
        if all(sound.count(hunk.old) == 1 for hunk in _hunks(file, text)):
            return text
    raise FaultError(f"{file}: its lines do not make the place of the change unique")


def refresh(name: str) -> None:
    """Write a fault's diff anew, with the line numbers and context of the source as it stands.

    Raises FaultError where the fault does not apply.
    """
    path = FOLDER / f"{name}.patch"
    head = path.read_text(encoding="utf-8").partition(OLD)[0]
    path.write_text(head + diff(faulty_files(load(name))), encoding="utf-8")
