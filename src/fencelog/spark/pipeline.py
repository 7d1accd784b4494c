"""The runner of pipelines: ``fencelog run PIPELINE.py``.

A pipeline is a Python file with a function ``pipeline(spark)`` that returns a streaming writer (not
started), or a dict of them by name. The runner gives it a session, servers, a checkpoint and a name
for each query; it shows progress, stops cleanly, and says what went wrong in one line.
"""

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final, TypeAlias

from fencelog.adapters.system_clock import system_stopwatch
from fencelog.errors import ErrorCode, FencelogError
from fencelog.spark.options import BOOTSTRAP_VARIABLE
from fencelog.spark.progress import QueryTotals
from fencelog.spark.restarts import Restarts
from fencelog.spark.session import DEFAULT_MASTER, build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

FUNCTION: Final = "pipeline"
POLL_S: Final = 0.5
STOP_S: Final = 60.0
"""How long a clean stop waits for the running batch."""
PYTHON_ERROR: Final = re.compile(
    r"(?<![\w.])(?!java\.|org\.apache\.|py4j\.)((?:\w+\.)*\w*(?:Error|Exception): .+)$",
    re.MULTILINE,
)
"""Where a line of Spark's text names a Python exception."""


class PipelineError(FencelogError):
    """The file is not a pipeline, or one of its queries failed."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The options of the command line."""

    file: Path
    master: str = DEFAULT_MASTER
    checkpoint: str = ""
    bootstrap_servers: str | None = None
    available_now: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    log_file: Path | None = None
    own: str | None = None
    """The name under which only one driver runs at a time; None: any number do."""

    @property
    def checkpoint_root(self) -> str:
        """The folder of the queries' checkpoints; default: ``checkpoints/NAME``."""
        return self.checkpoint or str(Path("checkpoints", self.file.stem).absolute())


@dataclass(frozen=True)
class Running:
    """The started queries, by name, what starts each again, and the session that they run in."""

    spark: "SparkSession"
    queries: "dict[str, StreamingQuery]"
    writers: "Mapping[str, DataStreamWriter | StreamingQuery]"

    @property
    def active(self) -> bool:
        """Whether any query is running."""
        return any(query.isActive for query in self.queries.values())

    @property
    def failures(self) -> Mapping[str, str]:
        """What each failed query failed with, in one line."""
        return {
            name: one_line(str(error))
            for name, query in self.queries.items()
            if not query.isActive and (error := query.exception()) is not None
        }

    def restart(self, name: str) -> None:
        """Start a query again, from its checkpoint. Raises PipelineError."""
        try:
            self.queries[name] = self.writers[name].start()
        except Exception as error:
            raise PipelineError(f"query '{name}': {one_line(str(error))}") from error


Watcher = Callable[[Mapping[str, QueryTotals]], None]
Pipeline: TypeAlias = "Callable[[SparkSession], object]"


def load(file: Path) -> "Pipeline":
    """The file's ``pipeline`` function. Raises PipelineError."""
    if not file.is_file():
        raise PipelineError(f"file {file} does not exist")
    if importlib.util.find_spec("pyspark") is None:
        raise PipelineError("Spark is not installed; run: pip install 'fencelog[spark]'")
    spec = importlib.util.spec_from_file_location(f"pipeline_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # The file may import modules of its folder. Its functions are pickled by value, because no
    # worker can import a file by this path.
    sys.path.insert(0, str(file.parent.absolute()))
    sys.modules[spec.name] = module
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PipelineError(f"{file}: {type(error).__name__}: {error}") from error
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise PipelineError(f"{file} has no function {FUNCTION}(spark)")
    return function  # type: ignore[no-any-return]


def start(
    function: "Pipeline",
    settings: RunSettings,
    stop: Event,
    begun: Event,
    tell: Callable[[str], None],
    acquire: Callable[[], None] | None = None,
) -> Running:
    """Build the session and start all queries of the file's function, or none.

    Returns when each has the offsets of its first batch, or has failed. ``acquire`` returns once
    the file's function may be called. ``begun`` is set before the first query is started; if
    ``stop`` is set by then, the others are not.
    """
    if settings.bootstrap_servers is not None:
        os.environ[BOOTSTRAP_VARIABLE] = settings.bootstrap_servers
    spark = build_session(
        name=settings.file.stem,
        master=settings.master,
        settings=settings.settings,
        log_file=settings.log_file,
    )
    if spark.sparkContext.uiWebUrl is not None:
        tell(f"Spark's UI is at {spark.sparkContext.uiWebUrl}")
    queries: dict[str, StreamingQuery] = {}
    writers: dict[str, DataStreamWriter | StreamingQuery] = {}
    try:
        if acquire is not None:
            acquire()
        for name, writer in _named(function(spark), settings.file).items():
            begun.set()
            if stop.is_set():
                break
            writers[name] = _prepared(writer, name, settings)
            queries[name] = writer if hasattr(writer, "lastProgress") else writers[name].start()
    except Exception as error:
        for query in queries.values():
            query.stop()
        spark.stop()
        if isinstance(error, FencelogError):
            raise
        raise PipelineError(f"{settings.file}: {one_line(str(error))}") from error
    _tell_of_starts(queries, settings, stop, tell)
    return Running(spark, queries, writers)


def _tell_of_starts(
    queries: "Mapping[str, StreamingQuery]",
    settings: RunSettings,
    stop: Event,
    tell: Callable[[str], None],
) -> None:
    """Say of each query that it has started, once it has; nothing of one that failed."""
    for name, query in queries.items():
        while not _is_set_up(query) and not stop.wait(POLL_S / 5):
            pass
        if _is_set_up(query) and query.exception() is None:
            tell(f"query '{name}' has started, checkpoint {settings.checkpoint_root}/{name}")


def watch(
    running: Running, stop: Event, show: Watcher, restarts: Restarts, tell: Callable[[str], None]
) -> Mapping[str, QueryTotals]:
    """Show progress until all queries ended, one failed for good, or ``stop`` is set.

    Returns the totals. A failed query that may be started again is, after a wait.
    """
    totals = {name: QueryTotals(name=name) for name in running.queries}
    while True:
        # Checked before the reports are read, so that an ended query's last report counts.
        active, failures = running.active, running.failures
        totals = {name: _updated(totals[name], query) for name, query in running.queries.items()}
        show(totals)
        now_s = system_stopwatch()
        for name, cause in failures.items():
            if restarts.waits(name):
                continue
            delay_s = restarts.after(name, cause, totals[name].batches, now_s)
            if delay_s is None or not hasattr(running.writers[name], "trigger"):
                return totals
            tell(f"query '{name}' failed: {cause}; it is started again in {delay_s:.0f} s")
        due = restarts.take_due(now_s)
        for name in due:
            running.restart(name)
        if not (active or due or restarts.waits()) or stop.wait(POLL_S):
            return totals


def finish(
    running: Running, totals: Mapping[str, QueryTotals], hurry: Event, show: Watcher
) -> Mapping[str, QueryTotals]:
    """Stop the queries, each at the end of its running batch, or at once when ``hurry`` is set.

    A batch that is cut short is rolled back on the server, so that readers need not wait for its
    timeout.
    """
    waiting = {name: _progress_mark(query) for name, query in running.queries.items()}
    for _ in range(int(STOP_S / POLL_S)):
        for name in list(waiting):
            query = running.queries[name]
            idle = not query.isActive or not query.status["isTriggerActive"]
            if idle or _progress_mark(query) != waiting[name]:
                del waiting[name]
                query.stop()
        if not waiting or hurry.wait(POLL_S):
            break
    for query in running.queries.values():
        query.stop()
        _abort_open_batch(query)
    totals = {name: _updated(totals[name], query) for name, query in running.queries.items()}
    show(totals)
    return totals


def error_code(cause: str) -> ErrorCode | None:
    """The broker's error code that a cause ends with, if it does."""
    found = re.search(r"\(([A-Z_]+)\)$", cause)
    return ErrorCode.__members__.get(found[1]) if found else None


def one_line(text: str) -> str:
    """The cause in a Spark error: the innermost Python exception's line, or the first line."""
    causes = PYTHON_ERROR.findall(text)
    first, _, rest = text.strip().partition("\n")
    if first.startswith("An error occurred while calling"):  # py4j; Spark's own error follows
        first = rest.partition("\n")[0].removeprefix(": ")
    line = str(causes[-1] if causes else first)
    if line.startswith("pyspark.errors."):  # in a batch function, around the write's own error
        line = (PYTHON_ERROR.findall(line.partition(": ")[2]) or [line])[0]
    return line.strip()


def _named(returned: object, file: Path) -> "Mapping[str, DataStreamWriter | StreamingQuery]":
    named = returned if isinstance(returned, dict) else {file.stem: returned}
    for name, value in named.items():
        started = hasattr(value, "lastProgress")
        if not started and not hasattr(value, "trigger"):
            raise PipelineError(
                f"{file}: {FUNCTION}(spark) returned {type(value).__name__} for '{name}':"
                " return df.writeStream..., or a dict of such writers by name"
            )
        if not re.fullmatch(r"[\w.-]+", str(name)):
            raise PipelineError(
                f"{file}: '{name}' is not a valid query name: use letters, digits, -_."
            )
    if not named:
        raise PipelineError(f"{file}: {FUNCTION}(spark) returned no query")
    return named


def _prepared(
    writer: "DataStreamWriter | StreamingQuery", name: str, settings: RunSettings
) -> "DataStreamWriter | StreamingQuery":
    """The writer with name, checkpoint and trigger; a query that runs already is left as it is."""
    if hasattr(writer, "lastProgress"):
        return writer
    writer = writer.queryName(name).option(
        "checkpointLocation", f"{settings.checkpoint_root}/{name}"
    )
    return writer.trigger(availableNow=True) if settings.available_now else writer


def _is_set_up(query: "StreamingQuery") -> bool:
    """Whether the query knows what its first batch reads, or waits for records, or has ended."""
    doing = str(query.status["message"])
    return not query.isActive or not doing.startswith(("Initializing", "Getting offsets"))


def _updated(totals: QueryTotals, query: "StreamingQuery") -> QueryTotals:
    return totals.absorb(json.loads(report.json) for report in query.recentProgress)


def _progress_mark(query: "StreamingQuery") -> str | None:
    report = query.lastProgress
    return None if report is None else str(report.json)


def _abort_open_batch(query: "StreamingQuery") -> None:
    """Abort open batches of a stopped run. Spark does not tell its sink about a stop."""
    servers = os.environ.get(BOOTSTRAP_VARIABLE)
    if servers is None:
        return
    from fencelog.client.blocking import Client

    query_id, run_id = str(query.id), str(query.runId)
    try:
        client = Client.shared(servers, request_timeout_s=5.0)
        app = client.describe_app(query_id)
        if app.open_version >= 0 and app.run_id == run_id:
            client.abort_transaction(query_id, query_id, run_id, app.open_version, ends_run=True)
    except (FencelogError, OSError):
        # The timeout aborts it later; a stop must not fail because of it.
        return
