"""The parts of the style that a test can check: sizes, docstrings, pure packages, documents."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.draw_architecture import DIAGRAM, PAGE, draw
from tools.generate_messages import MESSAGES, PACKAGE, RECORDS

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
PURE_FILES = ("types.py", "errors.py")
PURE_PACKAGES = ("wire", "log", "check", "coordination", "replication", "settings")
# A compiled kernel is one loop over bytes; a call per record would cost more than its length.
KERNELS = ("kernel.py", "kernel_encode.py")
GENERATED = {PACKAGE / each for each in (MESSAGES, RECORDS)}
LEFT_BEHIND = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|NotImplementedError")


def python_files(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


WRITTEN = [
    path
    for path in python_files("src", "tests", "bench", "tools", "examples")
    if GENERATED.isdisjoint(path.parents)
]


# What is counted is the body: the parameters of a verb are its options, one to a line or more.
def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", WRITTEN, ids=name)
def test_a_file_is_short_says_what_it_is_for_and_leaves_nothing_undone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= FILE_LINES_MAX, "split the file: one idea each"
    assert ast.get_docstring(tree), "begin with a docstring that says what the file is for"
    long = [
        f"{each.name}: {lines} lines"
        for each in functions(tree)
        if path.name not in KERNELS
        and (lines := (each.end_lineno or 0) - each.body[0].lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, f"a function fits on a screen ({FUNCTION_LINES_MAX} lines)"
    if path != Path(__file__):
        assert not LEFT_BEHIND.findall(text), "finish it, or say in an issue what is missing"


def is_pure(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return parts[:2] == ("src", "fencelog") and parts[2] in PURE_FILES + PURE_PACKAGES


@pytest.mark.parametrize("path", [path for path in WRITTEN if is_pure(path)], ids=name)
def test_a_pure_package_awaits_nothing(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    waits = [each.name for each in functions(tree) if isinstance(each, ast.AsyncFunctionDef)]
    assert not waits, "decide here, wait in the shell"
    opens = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"open", "print", "input"}
    ]
    assert not opens, "a pure package opens no file and prints nothing"


def test_the_package_is_light_to_import() -> None:
    tree = ast.parse((ROOT / "src/fencelog/__init__.py").read_text(encoding="utf-8"))
    heavy = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    assert not heavy, "`import fencelog` loads nothing; heavy parts load when they are used"


def test_the_lock_pins_every_package_by_hash_and_names_no_registry() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in lock
    blocks = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    unpinned = [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block]
    assert not unpinned
    assert len(blocks) > 20


DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "tests/README.md",
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_link_of_a_document_leads_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", text)
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert not missing
    assert text.startswith("# "), "a document begins with its title"


def test_the_diagram_of_the_architecture_shows_the_contracts() -> None:
    (shown,) = DIAGRAM.findall(PAGE.read_text(encoding="utf-8"))
    assert shown == draw(), "run `python -m tools.draw_architecture`"
