"""Every test that the parity pages name exists, and every behaviour has one or a reason."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs/internals").glob("parity-*.md"))
NAMED = re.compile(r"`([\w/]+\.(?:py|txt))(?:::(\w+)(?:\[[^\]]*\])?)?`")


REASONS = ("none", "departs")
"""How a cell begins that names no test: we have no such thing, or do it otherwise."""


def rows(page: Path) -> list[tuple[str, str]]:
    """Behaviour and test of each line of its tables."""
    lines = page.read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and not line.startswith("| behaviour")
    ]
    assert all(len(row) == 2 for row in cells), [row for row in cells if len(row) != 2]
    return [(behaviour, test) for behaviour, test in cells]


def exists(file: str, test: str) -> bool:
    folder = "tests/scenarios" if file.endswith(".txt") else "tests"
    path = ROOT / folder / file
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    return not test or re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE) is not None


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/internals/parity.md").read_text(encoding="utf-8")
    assert len(PAGES) == 3
    assert all(f"({page.name})" in index for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_behaviour_has_a_test_that_exists_or_a_reason(page: Path) -> None:
    table = rows(page)
    assert len(table) > 20
    bare = [b for b, test in table if not NAMED.search(test) and not test.startswith(REASONS)]
    assert not bare, "name a test, or say why there is none"
    missing = [
        f"{file}::{test}"
        for _, cell in table
        for file, test in NAMED.findall(cell)
        if not exists(file, test)
    ]
    assert not missing
