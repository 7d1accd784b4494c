"""Write the tables of the guide's migration page from the connector's options.

Run from the repository's root: ``.venv/bin/python -m tools.migration_page``. What stands between
the two marks of ``docs/guide/spark-migration.md`` is written anew.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from fencelog.spark.connector_options import CONNECTOR_OPTIONS, ConnectorOption, Verdict

PAGE = Path("docs/guide/spark-migration.md")
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"
COMMAND = "python -m tools.migration_page"

HEADINGS: dict[Verdict, str] = {
    "works": "Works",
    "differs": "Works differently",
    "meaningless": "Meaningless here: accepted on both sides, without effect",
    "refused": "Refused: an error that names the reason",
}


def tables() -> str:
    """One table for each verdict."""
    return "\n\n".join(
        f"### {heading}\n\n" + _table(row for row in CONNECTOR_OPTIONS if row.verdict == verdict)
        for verdict, heading in HEADINGS.items()
    )


def _table(rows: Iterable[ConnectorOption]) -> str:
    lines = ["| option | of | |", "|---|---|---|"]
    for (side, note), group in groupby(rows, lambda row: (row.side, row.note)):
        names = ", ".join(f"`{row.name}`" for row in group)
        lines.append(f"| {names} | {side} | {note} |".replace("|  |", "| |"))
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with its tables written anew."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} has lost its marks {BEGIN.strip()} and {END.strip()}"
    return f"{before}{BEGIN}\n{tables()}\n\n{END}{after}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
