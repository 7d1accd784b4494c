"""The pipeline file: what is accepted, and what is said about the rest."""

from pathlib import Path
from threading import Event

import pytest

from fencelog.errors import ErrorCode
from fencelog.spark.pipeline import (
    PipelineError,
    Running,
    _named,
    error_code,
    load,
    one_line,
    watch,
)
from fencelog.spark.restarts import DELAY_MIN_S, Restarts


class Writer:
    def trigger(self) -> None:
        """What distinguishes a writer from other values."""


def write(folder: Path, text: str) -> Path:
    file = folder / "my_pipeline.py"
    file.write_text(text)
    return file


def test_the_function_named_pipeline_is_found(tmp_path: Path) -> None:
    function = load(write(tmp_path, "def pipeline(spark):\n    return spark\n"))
    assert function(7) == 7


def test_a_helper_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "my_helper.py").write_text("VALUE = 5\n")
    file = write(tmp_path, "import my_helper\ndef pipeline(spark):\n    return my_helper.VALUE\n")
    assert load(file)(None) == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", r"has no function pipeline\(spark\)"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def pipeline(", "SyntaxError"),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        load(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"file .*gone.py does not exist"):
        load(tmp_path / "gone.py")


def test_one_writer_is_named_after_the_file_and_several_by_their_keys(tmp_path: Path) -> None:
    writer = Writer()
    assert _named(writer, tmp_path / "delays.py") == {"delays": writer}
    assert _named({"a": writer, "b": writer}, tmp_path / "delays.py") == {"a": writer, "b": writer}


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "returned NoneType for 'p'"),
        ({"a b": Writer()}, "'a b' is not a valid query name"),
        ({}, "returned no query"),
    ],
)
def test_another_answer_is_refused(returned: object, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        _named(returned, Path("p.py"))


def test_the_innermost_python_error_is_what_went_wrong() -> None:
    spark = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\n"
        "org.apache.spark.SparkException: Job aborted\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 5, in write\n'
        "fencelog.errors.FencedError: a newer run of this query has taken over\n"
        "\tat org.apache.spark.api.python.Base(Python.scala:5)\n"
        "java.lang.IllegalStateException: no\n"
    )
    assert (
        one_line(spark) == "fencelog.errors.FencedError: a newer run of this query has taken over"
    )
    assert one_line("[X] first line\nsecond") == "[X] first line"
    planned = "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: fencelog.errors.RequestError: no topic"
    in_a_batch_function = (
        "[STREAM_FAILED] Query [id = 1] terminated: Traceback (most recent call last):\n"
        '  File "captured.py", line 262, in deco\n'
        f"pyspark.errors.exceptions.captured.AnalysisException: {planned}\n SQLSTATE: 38000\n"
    )
    sparks = "pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN] no column"
    called = (
        "An error occurred while calling o57.start.\n: org.x.E: [NOT_FOUND] none\n\tat a.b(C)\n"
    )
    assert one_line(called) == "org.x.E: [NOT_FOUND] none"
    assert one_line(planned) == "fencelog.errors.RequestError: no topic"
    assert one_line(in_a_batch_function) == "fencelog.errors.RequestError: no topic"
    assert one_line(f"[STREAM_FAILED] x\n{sparks}\n") == sparks


def test_the_broker_s_error_code_ends_a_cause() -> None:
    missing = "fencelog.errors.RequestError: topic a does not exist (UNKNOWN_TOPIC_OR_PARTITION)"
    assert error_code(missing) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_code("ValueError: no (NOT_A_CODE)") is None
    assert error_code("ValueError: no") is None


class Query:
    """A query that fails with a cause, or runs until it is told to end."""

    recentProgress = ()  # noqa: N815  (Spark's names)

    def __init__(self, cause: str | None) -> None:
        self.cause = cause
        self.isActive = cause is None

    def exception(self) -> str | None:
        return self.cause


class Starts(Writer):
    """A writer whose starts fail with these causes, one after another; None runs."""

    def __init__(self, *causes: str | None) -> None:
        self._queries = [Query(cause) for cause in causes]
        self.started: list[Query] = []

    def start(self) -> Query:
        self.started.append(self._queries[len(self.started)])
        return self.started[-1]


def watched(writer: Starts, restarts: Restarts, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said while the writer's query is watched, until a started query runs."""
    told: list[str] = []
    stop = Event()
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr("fencelog.spark.pipeline.system_stopwatch", lambda: float(next(clock)))
    monkeypatch.setattr("fencelog.spark.pipeline.POLL_S", 0.0)
    running = Running(None, {"q": writer.start()}, {"q": writer})

    def show(_totals: object) -> None:
        if running.active:
            stop.set()

    watch(running, stop, show, restarts, told.append)
    return told


LOST = "fencelog.errors.RequestError: no answer (NETWORK_EXCEPTION)"


def test_a_failed_query_is_started_again_until_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Starts(LOST, LOST, None)
    told = watched(writer, Restarts(enabled=True), monkeypatch)
    assert len(writer.started) == 3
    assert told == [
        f"query 'q' failed: {LOST}; it is started again in {wait:.0f} s"
        for wait in (DELAY_MIN_S, 2 * DELAY_MIN_S)
    ]


def test_without_restarts_a_failure_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Starts(LOST, None)
    assert watched(writer, Restarts(enabled=False), monkeypatch) == []
    assert len(writer.started) == 1


def test_a_fenced_query_stays_down(monkeypatch: pytest.MonkeyPatch) -> None:  # S5
    writer = Starts("fencelog.errors.FencedError: a newer run has taken over", None)
    assert watched(writer, Restarts(enabled=True), monkeypatch) == []
    assert len(writer.started) == 1
