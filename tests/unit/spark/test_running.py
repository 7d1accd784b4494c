"""A run: what its session, its queries and their checkpoints are, and how it ends."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from fencelog.client.blocking import Client
from fencelog.spark import pipeline
from fencelog.spark.options import BOOTSTRAP_VARIABLE
from fencelog.spark.pipeline import PipelineError, Running, RunSettings, finish, start, watch
from fencelog.spark.progress import QueryTotals
from fencelog.spark.restarts import Restarts
from fencelog.testing.broker import LocalBroker


class Query:
    """A started query, with what a test says of it."""

    id = runId = "of-a-test"  # noqa: N815  (Spark's names)

    def __init__(self, *, active: bool = True, triggered: bool = False, cause: str = "") -> None:
        self.isActive = active
        self.status = {"isTriggerActive": triggered, "message": "Waiting for data to arrive"}
        self.recentProgress: list[SimpleNamespace] = []
        self.cause = cause
        self.stopped = 0

    @property
    def lastProgress(self) -> SimpleNamespace | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> str | None:
        return self.cause or None

    def stop(self) -> None:
        self.stopped += 1
        self.isActive = False

    def report(self, batch: int, rows: int) -> None:
        said = {"batchId": batch, "numInputRows": rows, "durationMs": {"addBatch": 1}}
        self.recentProgress.append(SimpleNamespace(json=json.dumps(said)))


class Writer:
    """A writer that starts one query, or raises; it keeps what it was told."""

    def __init__(self, started: "Query | Exception") -> None:
        self.started = started
        self.told: dict[str, object] = {}

    def queryName(self, name: str) -> "Writer":  # noqa: N802
        self.told["name"] = name
        return self

    def option(self, name: str, value: str) -> "Writer":
        self.told[name] = value
        return self

    def trigger(self, **kind: object) -> "Writer":
        self.told |= kind
        return self

    def start(self) -> Query:
        if isinstance(self.started, Exception):
            raise self.started
        return self.started


class Session:
    """A session that knows how it was made and whether it was stopped."""

    def __init__(self, ui: str | None = None, **made: object) -> None:
        self.sparkContext = SimpleNamespace(uiWebUrl=ui)
        self.made = made
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "restored after a run that sets it")
    monkeypatch.delenv(BOOTSTRAP_VARIABLE)
    monkeypatch.setattr(pipeline, "build_session", Session)


def begun(
    returned: object, settings: RunSettings, stop: Event | None = None
) -> tuple[Running, list[str]]:
    """What is started where the file's function returns this, and what is told."""
    told: list[str] = []

    def function(spark: object) -> object:
        assert isinstance(spark, Session)
        return returned

    running = start(function, settings, stop or Event(), Event(), told.append)
    return running, told


def test_a_run_without_a_checkpoint_keeps_it_beside_where_it_was_started(tmp_path: Path) -> None:
    file = tmp_path / "delays.py"
    assert RunSettings(file=file).checkpoint_root == str(Path("checkpoints/delays").absolute())
    assert RunSettings(file=file, checkpoint="s3a://b").checkpoint_root == "s3a://b"


def test_each_query_has_a_name_a_checkpoint_and_the_servers() -> None:
    settings = RunSettings(
        file=Path("delays.py"),
        master="local[1]",
        checkpoint="/c",
        bootstrap_servers="h:1",
        settings={"spark.x": "1"},
        log_file=Path("spark.log"),
    )
    writers = {"a": Writer(Query()), "b": Writer(Query())}
    running, told = begun(writers, settings)
    assert os.environ[BOOTSTRAP_VARIABLE] == "h:1"
    assert running.spark.made == {
        "name": "delays",
        "master": "local[1]",
        "settings": {"spark.x": "1"},
        "log_file": Path("spark.log"),
    }
    assert {name: writer.told for name, writer in writers.items()} == {
        name: {"name": name, "checkpointLocation": f"/c/{name}"} for name in ("a", "b")
    }
    assert told == [f"query '{name}' has started, checkpoint /c/{name}" for name in ("a", "b")]
    assert running.queries == {name: writer.started for name, writer in writers.items()}


def test_available_now_ends_with_what_is_there() -> None:
    writer = Writer(Query())
    begun(writer, RunSettings(file=Path("q.py"), checkpoint="/c", available_now=True))
    assert writer.told == {"name": "q", "checkpointLocation": "/c/q", "availableNow": True}


def test_a_query_that_the_file_started_is_left_as_it_is() -> None:
    query = Query()
    running, _ = begun({"mine": query}, RunSettings(file=Path("q.py"), checkpoint="/c"))
    assert running.queries == {"mine": query}


def test_spark_s_page_is_told_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "build_session", lambda **_: Session("http://h:4040"))
    _, told = begun(Writer(Query()), RunSettings(file=Path("q.py"), checkpoint="/c"))
    assert told[0] == "Spark's UI is at http://h:4040"


def test_a_query_that_failed_at_once_is_not_said_to_have_started() -> None:
    _, told = begun(Writer(Query(active=False, cause="no")), RunSettings(file=Path("q.py")))
    assert told == []


def test_all_queries_are_started_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Session()
    monkeypatch.setattr(pipeline, "build_session", lambda **_: made)
    first = Query()
    broken = Writer(RuntimeError("[NO] such sink\nat java"))
    with pytest.raises(PipelineError, match=r"^q\.py: \[NO\] such sink$"):
        begun({"a": Writer(first), "b": broken}, RunSettings(file=Path("q.py")))
    assert (first.stopped, made.stopped) == (1, True)
    with pytest.raises(PipelineError, match=r"^q\.py: pipeline\(spark\) returned no query"):
        begun({}, RunSettings(file=Path("q.py")))


def test_a_stop_before_the_queries_start_keeps_them_from_it() -> None:
    stop = Event()
    stop.set()
    running, told = begun(Writer(Query()), RunSettings(file=Path("q.py")), stop)
    assert (running.queries, told) == ({}, [])


def test_a_failure_is_told_in_one_line_and_only_of_queries_that_ended() -> None:
    failed = Query(active=False, cause="x\nfencelog.errors.FencedError: a newer run\n")
    queries = {"failed": failed, "ended": Query(active=False), "runs": Query(cause="later")}
    running = Running(Session(), queries, {})
    assert running.failures == {"failed": "fencelog.errors.FencedError: a newer run"}
    assert running.active
    assert not Running(Session(), {"failed": failed}, {}).active


def test_a_query_that_cannot_start_again_ends_the_run() -> None:
    writer = Writer(RuntimeError("[GONE] no more\nat java"))
    with pytest.raises(PipelineError, match=r"^query 'q': \[GONE\] no more$"):
        Running(Session(), {}, {"q": writer}).restart("q")


def test_a_run_whose_queries_ended_returns_what_they_did() -> None:
    query = Query(active=False)
    query.report(0, 5)
    query.report(1, 2)
    shown: list[object] = []
    running = Running(Session(), {"q": query}, {})
    totals = watch(running, Event(), shown.append, Restarts(enabled=True), shown.append)
    assert (totals["q"].batches, totals["q"].rows_in) == (2, 7)
    assert shown == [totals]


class Hurry(Event):
    """What happens while a stop waits; the last of it is the user's second Ctrl-C."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens = list(happens)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout == pipeline.POLL_S
        assert self.happens, "nothing to wait for"
        self.happens.pop(0)()
        return self.is_set()


def ended(hurry: Event, **queries: Query) -> dict[str, Any]:
    totals = {name: QueryTotals(name=name) for name in queries}
    shown: list[Any] = []
    found = finish(Running(Session(), dict(queries), {}), totals, hurry, shown.append)
    assert shown == [found]
    assert not any(query.isActive for query in queries.values())
    return {name: each.batches for name, each in found.items()}


def test_a_query_without_a_batch_is_stopped_at_once() -> None:
    assert ended(Hurry(), idle=Query(), over=Query(active=False, triggered=True)) == {
        "idle": 0,
        "over": 0,
    }


def test_a_running_batch_is_finished_before_its_query_is_stopped() -> None:  # S3
    busy, idle = Query(triggered=True), Query()
    busy.report(0, 1)

    def done() -> None:
        assert (busy.stopped, idle.stopped) == (0, 1)
        busy.report(1, 1)

    assert ended(Hurry(lambda: None, done), busy=busy, idle=idle) == {"busy": 2, "idle": 0}


def test_a_second_interrupt_does_not_wait_for_the_batch() -> None:
    hurry, busy = Hurry(), Query(triggered=True)
    hurry.happens = [hurry.set]
    assert ended(hurry, busy=busy) == {"busy": 0}


def test_a_stop_waits_for_a_batch_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "STOP_S", 3 * pipeline.POLL_S)
    hurry = Hurry(*[lambda: None] * 3)
    ended(hurry, busy=Query(triggered=True))
    assert hurry.happens == []


def test_the_open_batch_of_a_stopped_run_is_rolled_back_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalBroker(tmp_path) as broker, Client(broker.bootstrap) as client:
        monkeypatch.setenv(BOOTSTRAP_VARIABLE, broker.bootstrap)
        mine, newer = Query(), Query()
        mine.id, mine.runId = "mine", "1"
        newer.id, newer.runId = "continued", "1"
        client.join_transaction("mine", "mine", "1", 0, 60_000, False)
        client.join_transaction("continued", "continued", "2", 0, 60_000, False)
        ended(Hurry(), mine=mine, newer=newer, never=Query())
        assert client.describe_app("mine").open_version == -1
        assert client.describe_app("continued").open_version == 0
