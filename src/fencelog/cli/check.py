"""``fencelog check HISTORY…``: check what clients of any Kafka-compatible cluster saw."""

import gc
import gzip
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from fencelog.cli.output import (
    ExitStatus,
    fail,
    reported_errors,
    say,
    show_json,
    status_follows,
)
from fencelog.errors import error_text

if TYPE_CHECKING:
    from fencelog.check.tables import History
    from fencelog.check.verdict import Verdict

GZIP_MAGIC = b"\x1f\x8b"


def check(
    history: Annotated[
        list[Path],
        typer.Argument(
            metavar="HISTORY",
            help="JSON lines, may be gzipped; several files are merged by time; - for stdin.",
            show_default=False,
        ),
    ],
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg", help="Write a chart of the operations of the worst finding."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Check a history for lost, duplicated, torn, aborted, reordered or skipped records.

    The exit status is 0 if it is valid, 1 if it is invalid, 2 if it cannot be checked.
    docs/guide/check.md has the format and the meaning of each finding.
    """
    with reported_errors():
        from fencelog.check import judge

        tables = _read(history)
        verdict = judge(tables)
        with status_follows():
            if as_json:
                show_json(verdict.as_json())
            else:
                sys.stdout.write(verdict.text())
        if chart is not None:
            _draw(tables, verdict, chart)
        _leave(verdict)


def _read(paths: list[Path]) -> "History":
    """The tables of the files; exits with status 2 if they cannot be read."""
    from fencelog.check import HistoryError, merge, parse

    # Reading creates and drops millions of small objects, none of them in a cycle.
    gc.disable()
    try:
        with ExitStack() as stack:
            files = {str(path): stack.enter_context(_opened(path)) for path in paths}
            return parse(files[str(paths[0])]) if len(paths) == 1 else merge(files)
    except HistoryError as error:
        where = f"{paths[0]} " if len(paths) == 1 else ""
        fail(ExitStatus.USAGE, f"{where}{error}", error.hint)
    except UnicodeDecodeError as error:
        fail(ExitStatus.USAGE, f"not UTF-8 ({error.reason})", "write the history as UTF-8")
    except (EOFError, OSError) as error:
        fail(ExitStatus.USAGE, error_text(error), "name readable files of JSON lines")
    finally:
        gc.enable()


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if str(path) == "-":
        yield sys.stdin
        return
    with path.open("rb") as file:
        is_gzip = file.read(2) == GZIP_MAGIC
    if is_gzip:
        with gzip.open(path, "rt", encoding="utf-8") as unzipped:
            yield unzipped
    else:
        with path.open(encoding="utf-8") as lines:
            yield lines


def _draw(tables: "History", verdict: "Verdict", path: Path) -> None:
    from fencelog.check.chart import draw

    try:
        path.write_text(draw(tables, verdict), encoding="utf-8")
    except OSError as error:
        fail(ExitStatus.USAGE, f"--chart: {error_text(error)}", "name a writable file")
    say(f"chart written to {path}")


def _leave(verdict: "Verdict") -> None:
    """Exit with the status of the outcome."""
    if verdict.outcome == "invalid":
        raise SystemExit(int(ExitStatus.FAILED))
    if verdict.outcome == "nothing-checked":
        fail(ExitStatus.USAGE, "there is nothing to check", verdict.remarks[0])
