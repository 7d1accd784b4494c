"""The listener: a value for each batch and one at the end."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from fencelog.spark.progress_listener import ProgressListener

REPORT = {"id": "q", "runId": "r", "name": "copy", "batchId": 3, "numInputRows": 5}


def batch() -> Any:
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(REPORT)))


def test_each_batch_and_the_end_are_exported() -> None:
    values: list[dict[str, Any]] = []
    listener = ProgressListener(values.append)
    listener.onQueryStarted(SimpleNamespace())
    listener.onQueryIdle(SimpleNamespace())
    listener.onQueryProgress(batch())
    listener.onQueryTerminated(SimpleNamespace(id="q", runId="r", exception="no broker"))
    first, last = values
    assert (first["event"], first["query"], first["batch"], first["rows_in"]) == (
        "batch",
        "copy",
        3,
        5,
    )
    assert last == {"event": "ended", "query_id": "q", "run_id": "r", "error": "no broker"}


def test_without_a_function_it_is_a_line_of_json_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        ProgressListener().onQueryProgress(batch())
    assert json.loads(caplog.messages[-1])["batch"] == 3
