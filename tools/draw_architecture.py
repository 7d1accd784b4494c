"""Draws the diagram of ARCHITECTURE.md: packages by layer, and a produced record's path.

The layers are read from the import-linter contracts in ``pyproject.toml``, so the diagram shows
the dependencies that are checked. ``python -m tools.draw_architecture`` writes it into the page;
``tests/test_tidy.py`` compares.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
DIAGRAM = re.compile(r"(?<=<!-- diagram: begin -->\n\n```text\n).*?(?=```\n)", re.DOTALL)
WIDTH = 50
"""Columns between the outer borders."""
PATH = {
    "fencelog.broker.handlers": "3 produce: each partition's batch in one step",
    "fencelog.broker.dispatch": "2 read the header, find the handler",
    "fencelog.broker.partitions": "6 write and sync, 7 wait for the high watermark",
    "fencelog.broker.network": "1 read the frame, 8 send the response",
    "fencelog.storage": "6 segment files",
    "fencelog.log": "5 check epoch and sequence, assign offsets",
    "fencelog.wire": "2 decode, 4 check the batch and its CRC",
}
"""What happens to a produced record in which package; the numbers are the order."""


def read_layers(package: str) -> list[list[str]]:
    """The packages of each layer of a package, highest first, as its contract lists them."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = (
        contract["layers"]
        for contract in linter["contracts"]
        if contract.get("containers") == [package]
    )
    names = [[f"{package}.{name.strip()}" for name in layer.split("|")] for layer in layers]
    return [kept for layer in names if (kept := [name for name in layer if _is_there(name)])]


def _is_there(name: str) -> bool:
    """False for a package that the contract names and that is not built yet."""
    path = ROOT / "src" / name.replace(".", "/")
    return path.is_dir() or (path.with_suffix(".py").is_file() and path.name != "__main__")


def draw() -> str:
    """The diagram as text. Raises AssertionError if the path names a package that is not drawn."""
    border = "+" + "-" * WIDTH + "+\n"
    text = border + "".join(_draw_layer(layer) + border for layer in read_layers("fencelog"))
    missing = [step for step in PATH.values() if step not in text]
    assert not missing, f"PATH names packages that are not in the contracts: {missing}"
    return text


def _draw_layer(layer: list[str]) -> str:
    rows = [layer]
    if "fencelog.broker" in layer:
        column = layer.index("fencelog.broker")
        inside = [_join(names) for names in read_layers("fencelog.broker")]
        rows += [["" if each != column else name for each in range(len(layer))] for name in inside]
    return "".join(_draw_row(row) for row in rows)


def _join(names: list[str]) -> str:
    """One row for packages of one layer."""
    return ", ".join([names[0], *(name.split(".")[-1] for name in names[1:])])


def _draw_row(names: list[str]) -> str:
    width = (WIDTH - len(names) + 1) // len(names)
    labels = ["  " * max(name.count(".") - 1, 0) + name.split(".")[-1] for name in names]
    cells = "|".join(f" {label}".ljust(width) for label in labels)
    steps = "; ".join(PATH[name] for name in names if name in PATH)
    return f"|{cells.ljust(WIDTH)}|  {steps}".rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(DIAGRAM.sub(lambda _: draw(), PAGE.read_text("utf-8")), "utf-8")
