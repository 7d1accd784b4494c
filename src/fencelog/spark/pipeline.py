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

from fencelog.errors import FencelogError
from fencelog.spark.options import BOOTSTRAP_VARIABLE
from fencelog.spark.progress import QueryTotals
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

    @property
    def checkpoint_root(self) -> str:
        """The folder of the queries' checkpoints; default: ``checkpoints/NAME``."""
        return self.checkpoint or str(Path("checkpoints", self.file.stem).absolute())


@dataclass(frozen=True)
class Running:
    """The started queries, by name, and the session that they run in."""

    spark: "SparkSession"
    queries: "Mapping[str, StreamingQuery]"

    @property
    def active(self) -> bool:
        """Whether any query is running."""
        return any(query.isActive for query in self.queries.values())

    @property
    def failed(self) -> str | None:
        """The error of the first failed query, in one line; None without one."""
        for name, query in self.queries.items():
            if not query.isActive and (error := query.exception()) is not None:
                return f"query '{name}' failed: {one_line(str(error))}"
        return None


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


def start(function: "Pipeline", settings: RunSettings) -> Running:
    """Build the session and start all queries of the file's function, or none."""
    if settings.bootstrap_servers is not None:
        os.environ[BOOTSTRAP_VARIABLE] = settings.bootstrap_servers
    spark = build_session(
        name=settings.file.stem,
        master=settings.master,
        settings=settings.settings,
        log_file=settings.log_file,
    )
    queries: dict[str, StreamingQuery] = {}
    try:
        for name, writer in _named(function(spark), settings.file).items():
            queries[name] = _started(writer, name, settings)
    except Exception as error:
        for query in queries.values():
            query.stop()
        spark.stop()
        if isinstance(error, FencelogError):
            raise
        raise PipelineError(f"{settings.file}: {one_line(str(error))}") from error
    return Running(spark, queries)


def watch(running: Running, stop: Event, show: Watcher) -> Mapping[str, QueryTotals]:
    """Show progress until every query ended, one failed, or ``stop`` is set; return the totals."""
    totals = {name: QueryTotals(name=name) for name in running.queries}
    while True:
        # Checked before the reports are read, so that an ended query's last report counts.
        active, failed = running.active, running.failed
        totals = {name: _updated(totals[name], query) for name, query in running.queries.items()}
        show(totals)
        if failed is not None or not active or stop.wait(POLL_S):
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


def one_line(text: str) -> str:
    """The cause in a Spark error: the innermost Python exception's line, or the first line."""
    causes = PYTHON_ERROR.findall(text)
    line = (causes or [text.strip().partition("\n")[0]])[-1]
    return str(line).strip()


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


def _started(
    writer: "DataStreamWriter | StreamingQuery", name: str, settings: RunSettings
) -> "StreamingQuery":
    if hasattr(writer, "lastProgress"):
        return writer
    writer = writer.queryName(name).option(
        "checkpointLocation", f"{settings.checkpoint_root}/{name}"
    )
    if settings.available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start()


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
            client.abort_transaction(query_id, query_id, run_id, app.open_version)
    except (FencelogError, OSError):
        # The timeout aborts it later; a stop must not fail because of it.
        return
