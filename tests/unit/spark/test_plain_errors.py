"""An expected error is reported as its text; any other keeps its traceback."""

import inspect
import io
from collections.abc import Iterator

import pytest
from pyspark.util import handle_worker_exception

from fencelog.errors import FencelogError
from fencelog.spark.plain_errors import HIDE, plain_errors


@plain_errors
class Source:
    def latestOffset(self, start: dict, limit: object) -> dict:  # noqa: N802
        try:
            start["missing"]
        except KeyError as error:
            raise FencelogError("topic t does not exist: create it") from error

    def read(self) -> Iterator[int]:
        yield 1
        raise FencelogError("records are lost")

    def partitions(self) -> list[int]:
        raise TypeError("a defect")


def reported(call) -> str:
    """What Spark's worker sends to the JVM."""
    sent = io.BytesIO()
    try:
        call()
    except (FencelogError, TypeError) as error:
        handle_worker_exception(error, sent)
    return sent.getvalue()[8:].decode()


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE, "")


def test_an_expected_error_is_one_paragraph() -> None:
    text = reported(lambda: Source().latestOffset({}, None))
    assert text == "fencelog.errors.FencelogError: topic t does not exist: create it\n"


def test_an_expected_error_between_records_is_one_paragraph() -> None:
    assert reported(lambda: list(Source().read())) == (
        "fencelog.errors.FencelogError: records are lost\n"
    )


def test_a_defect_keeps_its_traceback() -> None:
    text = reported(Source().partitions)
    assert "Traceback" in text
    assert text.endswith("TypeError: a defect\n")


def test_spark_sees_the_parameters_of_a_method() -> None:
    assert list(inspect.signature(Source().latestOffset).parameters) == ["start", "limit"]
