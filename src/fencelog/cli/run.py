"""``fencelog run PIPELINE.py``: run a Spark pipeline and show its progress.

Ctrl-C ends each query after its running batch; a second one ends them at once. In both cases
nothing is lost or duplicated: the next run continues from the checkpoint.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from fencelog.cli.options import key_values
from fencelog.cli.output import ExitStatus, fail, reported_errors, say

if TYPE_CHECKING:
    from types import FrameType

    from rich.table import Table

    from fencelog.spark.pipeline import Pipeline, RunSettings
    from fencelog.spark.progress import QueryTotals


def run(
    pipeline: Annotated[
        Path,
        typer.Argument(help="A Python file with a function pipeline(spark).", show_default=False),
    ],
    master: Annotated[
        str, typer.Option(help="Spark's master URL; local[*,4] retries a failed task.")
    ] = "local[*,4]",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="The checkpoint directory.", show_default="checkpoints/NAME"
        ),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "-b",
            "--bootstrap-server",
            envvar="FENCELOG_BOOTSTRAP_SERVERS",
            metavar="HOST:PORT",
            help="The default broker of sources and sinks.",
        ),
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the records that exist now, then end.")
    ] = False,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "-X",
            metavar="KEY=VALUE",
            help="A Spark property, as spark.sql.shuffle.partitions=8; repeatable.",
        ),
    ] = None,
) -> None:
    """Run a Spark pipeline exactly once and show progress, until it ends or Ctrl-C."""
    with reported_errors():
        from fencelog.spark.pipeline import RunSettings, load

        function = load(pipeline)
        with NamedTemporaryFile(
            prefix=f"fencelog-{pipeline.stem}-", suffix=".log", delete=False
        ) as log:
            log_file = Path(log.name)
        settings = RunSettings(
            file=pipeline,
            master=master,
            checkpoint=checkpoint or "",
            bootstrap_servers=bootstrap,
            available_now=available_now,
            settings=key_values(properties or (), "-X"),
            log_file=log_file,
        )
        _run(function, settings)


def _run(function: "Pipeline", settings: "RunSettings") -> None:
    """Run the queries until they end or Ctrl-C, and exit with the status."""
    from fencelog.spark.pipeline import finish, start, watch

    say(
        f"starting {settings.file} on {settings.master}, checkpoints in {settings.checkpoint_root},"
        f" Spark's log in {settings.log_file}"
    )
    stop, hurry = Event(), Event()
    running = start(function, settings)
    with _interrupts(stop, hurry), _display() as show:
        totals = watch(running, stop, show)
        if stop.is_set():
            say("stopping after the running batch; Ctrl-C again stops at once")
        failed = running.failed
        totals = finish(running, totals, hurry, show)
    for each in totals.values():
        say(each.line())
    running.spark.stop()
    if failed is not None:
        fail(
            ExitStatus.FAILED,
            failed,
            "nothing is lost: the same command goes on from the checkpoint",
        )
    if stop.is_set():
        raise SystemExit(int(ExitStatus.INTERRUPTED))


@contextmanager
def _interrupts(stop: Event, hurry: Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets ``stop``, the second sets ``hurry``."""

    def handle(_number: int, _frame: "FrameType | None") -> None:
        (hurry if stop.is_set() else stop).set()

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _display() -> "Iterator[Callable[[Mapping[str, QueryTotals]], None]]":
    """A live table on a terminal; else one line for each finished batch."""
    if not sys.stderr.isatty():
        shown: dict[str, int] = {}

        def show_lines(totals: "Mapping[str, QueryTotals]") -> None:
            for name, each in totals.items():
                if each.batches and shown.get(name) != each.last_batch:
                    shown[name] = each.last_batch
                    say(each.line())

        yield show_lines
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, no_color="NO_COLOR" in os.environ)
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def show_table(totals: "Mapping[str, QueryTotals]") -> None:
            live.update(_table(totals))

        yield show_table


def _table(totals: "Mapping[str, QueryTotals]") -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("query")
    for column in ("batch", "rows in", "rows out", "rows/s", "lag", "batch time"):
        table.add_column(column, justify="right")
    for each in totals.values():
        table.add_row(
            each.name,
            str(each.last_batch) if each.batches else "-",
            f"{each.rows_in:,}",
            f"{each.rows_out:,}",
            f"{each.rows_per_s:,.0f}",
            "-" if each.lag is None else f"{each.lag:,}",
            f"{each.batch_s:.1f} s",
        )
    return table
