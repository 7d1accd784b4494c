"""``fencelog run PIPELINE.py``: run a Spark pipeline and show its progress.

Ctrl-C ends each query after its running batch; a second one ends them at once. In both cases
nothing is lost or duplicated: the next run continues from the checkpoint.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from fencelog.cli.options import key_values
from fencelog.cli.output import (
    HINTS,
    ExitStatus,
    UsageError,
    fail,
    reported_errors,
    say,
    status_of,
)

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql.streaming import StreamingQuery
    from rich.table import Table

    from fencelog.errors import OwnershipLostError
    from fencelog.spark.driver_claim import DriverClaim
    from fencelog.spark.lookout import Lookout
    from fencelog.spark.pipeline import Pipeline, RunSettings
    from fencelog.spark.progress import QueryTotals
    from fencelog.spark.restarts import Restarts

SIGNAL_POLL_S = 0.1

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap-server",
        envvar="FENCELOG_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT",
        help="The default broker of sources and sinks.",
    ),
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="A Spark property, as spark.sql.shuffle.partitions=8; repeatable.",
    ),
]


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
    bootstrap: BootstrapOption = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the records that exist now, then end.")
    ] = False,
    restart_on_failure: Annotated[
        bool,
        typer.Option(
            "--restart-on-failure",
            help="Start a failed query again, after 1 s, then 2 s, up to 60 s.",
        ),
    ] = False,
    own: Annotated[
        bool,
        typer.Option("--own", help="Stand by as long as another driver owns the pipeline."),
    ] = False,
    own_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name that is owned; implies --own.",
            show_default="the file's name",
        ),
    ] = None,
    ui: Annotated[bool, typer.Option("--ui", help="Serve Spark's web UI.")] = False,
    properties: PropertyOption = None,
) -> None:
    """Run a Spark pipeline exactly once and show progress, until it ends or Ctrl-C."""
    with reported_errors():
        from fencelog.spark.pipeline import RunSettings, load
        from fencelog.spark.restarts import Restarts

        owned = own_name or (pipeline.stem if own else None)
        if owned is not None and bootstrap is None:
            raise UsageError("--own needs a broker: -b HOST:PORT")
        function = load(pipeline)
        with _spark_log(pipeline.stem) as log_file:
            settings = RunSettings(
                file=pipeline,
                master=master,
                checkpoint=checkpoint or "",
                bootstrap_servers=bootstrap,
                available_now=available_now,
                settings=({"spark.ui.enabled": "true"} if ui else {})
                | key_values(properties or (), "-X"),
                log_file=log_file,
                own=owned,
            )
            _run(function, settings, Restarts(enabled=restart_on_failure))


@contextmanager
def _spark_log(pipeline: str) -> Iterator[Path]:
    """Where Spark's log goes. It is removed at the end, unless the run has failed: then named."""
    with NamedTemporaryFile(prefix=f"fencelog-{pipeline}-", suffix=".log", delete=False) as log:
        path = Path(log.name)
    try:
        yield path
    except BaseException as error:
        is_interrupt = isinstance(error, SystemExit) and error.code == ExitStatus.INTERRUPTED
        if is_interrupt or not path.stat().st_size:
            path.unlink()
        else:
            say(f"Spark's log is in {path}")
        raise
    path.unlink()


def _run(function: "Pipeline", settings: "RunSettings", restarts: "Restarts") -> None:
    """Run the queries until they end or Ctrl-C, and exit with the status.

    All calls of Spark are made in one thread, which no signal interrupts. Spark finds the data
    source only in the thread that made the session.
    """
    phases = _Phases()
    outcome: Future[Mapping[str, str]] = Future()

    def work() -> None:
        try:
            outcome.set_result(_work(function, settings, restarts, phases))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the main thread
            outcome.set_exception(error)

    with _interrupts(phases.stop, phases.hurry):
        thread = Thread(target=work, name="spark", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(SIGNAL_POLL_S)
            if phases.may_leave:
                # Spark's JVM ends with this process.
                say("interrupted before all queries were started")
                if settings.log_file is not None:
                    settings.log_file.unlink(missing_ok=True)
                sys.stderr.flush()
                os._exit(int(ExitStatus.INTERRUPTED))
        if phases.loss:
            failures = {} if outcome.exception() else outcome.result()
            _leave_lost(settings.own or "", str(phases.loss[0]), failures)
        _leave(outcome.result(), interrupted=phases.stop.is_set())


@dataclass(frozen=True)
class _Phases:
    """How far the start has come, and what signals have asked for."""

    stop: Event = field(default_factory=Event)
    hurry: Event = field(default_factory=Event)
    begun: Event = field(default_factory=Event)
    started: Event = field(default_factory=Event)
    loss: "list[OwnershipLostError]" = field(default_factory=list)
    """What ended the claim of ``--own``, if it was lost."""

    def lose(self, error: "OwnershipLostError") -> None:
        """Stop the queries at once: another driver may run them."""
        self.loss.append(error)
        self.hurry.set()
        self.stop.set()

    @property
    def may_leave(self) -> bool:
        """Whether the process can end at once: nothing runs yet, or a second signal says so."""
        if self.loss:
            return False
        first = self.stop.is_set() and not self.begun.is_set()
        return first or (self.hurry.is_set() and not self.started.is_set())


def _work(
    function: "Pipeline", settings: "RunSettings", restarts: "Restarts", phases: _Phases
) -> Mapping[str, str]:
    """Start Spark and the queries, watch them and stop them; returns what failed."""
    from fencelog.spark.lookout import Lookout
    from fencelog.spark.pipeline import finish, start, watch
    from fencelog.spark.session import defaults

    chosen = {**defaults(settings.master), **settings.settings}
    say(f"starting Spark on {settings.master}, its log is in {settings.log_file}")
    say(f"with {' '.join(f'{key}={value}' for key, value in chosen.items())} (-X sets others)")
    with _claim(settings, phases) as claim:
        acquire = None if claim is None else claim.acquire
        running = start(function, settings, phases.stop, phases.begun, say, acquire)
        phases.started.set()
        with _display(Lookout(running.spark), running.queries) as show:
            totals = watch(running, phases.stop, show, restarts, say)
            failures = running.failures
            if failures and claim is not None:
                claim.settle()
            if phases.stop.is_set() and not phases.loss:
                say("stopping after the running batch; Ctrl-C again stops at once")
            totals = finish(running, totals, phases.hurry, show)
    for each in totals.values():
        if each.batches or each.name not in failures:
            say(each.line())
    running.spark.stop()
    return failures


def _claim(settings: "RunSettings", phases: _Phases) -> "DriverClaim | nullcontext[None]":
    """The claim of ``--own``, None without it."""
    if settings.own is None:
        return nullcontext()
    from fencelog.spark.driver_claim import DriverClaim

    assert settings.bootstrap_servers is not None, "it was asked for"
    return DriverClaim(settings.bootstrap_servers, settings.own, say, phases.lose)


def _leave_lost(pipeline: str, loss: str, failures: Mapping[str, str]) -> None:
    """Exit with the status of a driver that was taken over."""
    for name, cause in failures.items():
        say(f"query '{name}' failed: {cause}")
    fail(
        ExitStatus.OWNERSHIP_LOST,
        f"pipeline '{pipeline}' is no longer owned: {loss}",
        "nothing is lost: its next owner goes on from the checkpoint; the same command stands by",
    )


def _leave(failures: Mapping[str, str], *, interrupted: bool) -> None:
    """Exit with the status of the first failed query, or of the interrupt."""
    from fencelog.spark.pipeline import error_code

    for name, cause in failures.items():
        code = error_code(cause)
        hint = HINTS.get(code) if code is not None else None
        fail(
            ExitStatus.FAILED if code is None else status_of(code),
            f"query '{name}' failed: {cause}",
            hint or "nothing is lost: the same command goes on from the checkpoint",
        )
    if interrupted:
        raise SystemExit(int(ExitStatus.INTERRUPTED))


@contextmanager
def _interrupts(stop: Event, hurry: Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets ``stop``, the second sets ``hurry``.

    They stay ignored afterwards: the process is about to end, with its status.
    """

    def handle(_number: int, _frame: "FrameType | None") -> None:
        (hurry if stop.is_set() else stop).set()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)


@contextmanager
def _display(
    lookout: "Lookout", queries: "Mapping[str, StreamingQuery]"
) -> "Iterator[Callable[[Mapping[str, QueryTotals]], None]]":
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
            live.update(
                _table(totals, {name: lookout.waits_for(query) for name, query in queries.items()})
            )

        yield show_table


def _table(totals: "Mapping[str, QueryTotals]", waits_for: Mapping[str, str]) -> "Table":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("query")
    for column in ("batch", "rows in", "rows out", "rows/s", "lag", "batch time"):
        table.add_column(column, justify="right")
    table.add_column("waits for")
    for each in totals.values():
        table.add_row(
            each.name,
            str(each.last_batch) if each.batches else "-",
            f"{each.rows_in:,}",
            f"{each.rows_out:,}",
            f"{each.rows_per_s:,.0f}",
            "-" if each.lag is None else f"{each.lag:,}",
            f"{each.batch_s:.1f} s",
            escape(waits_for.get(each.name, "")),
        )
    return table
