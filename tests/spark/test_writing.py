"""Attempts, decisions and fences against a real broker, without a Spark session around them."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from fencelog.errors import FencedError, FencelogError
from fencelog.spark import writing
from fencelog.spark.conflicts import BatchConflictError
from fencelog.spark.identity import NO_STREAM, BatchIdentity
from fencelog.spark.options import SinkOptions, sink_options
from fencelog.spark.stream_writer import StreamWriter
from fencelog.spark.writing import Written
from tests.spark.conftest import Log

ROLES = (("value", "value"),)


class Sink:
    """One topic, one app, and attempts at its batches."""

    def __init__(self, log: Log, topic: str) -> None:
        self.log = log
        self.topic = log.topic(topic, 1)
        self.options: SinkOptions = sink_options(
            {"kafka.bootstrap.servers": log.servers, "topic": topic}, {}, streaming=True
        )

    def batch(self, version: int, run: str = "run-1", query: str = "query") -> BatchIdentity:
        return BatchIdentity(app=f"app-{self.topic}", query_id=query, run_id=run, version=version)

    def write(self, identity: BatchIdentity, *values: str) -> Written:
        rows = pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["value"])
        return writing.write(self.options, identity, ROLES, iter([rows]))

    def commit(self, *written: Written, fingerprint: bytes = b"f") -> None:
        writing.commit(self.options, written, fingerprint=fingerprint)

    @property
    def values(self) -> list[str]:
        return self.log.values(self.topic)


@pytest.fixture
def sink(log: Log, topic: str) -> Sink:
    return Sink(log, topic)


def test_rows_are_visible_from_the_commit_on_and_all_at_once(sink: Sink) -> None:  # S3
    first, second = sink.write(sink.batch(0), "a"), sink.write(sink.batch(0), "b")
    assert sink.values == []
    sink.commit(first, second)
    assert sink.values == ["a", "b"]


def test_the_broker_is_asked_while_the_first_rows_are_waited_for(sink: Sink) -> None:
    batch = sink.batch(0)

    def rows() -> Iterator[pa.RecordBatch]:
        deadline = time.monotonic() + 10.0
        while sink.log.client.describe_app(batch.app).open_version != 0:
            assert time.monotonic() < deadline
        yield pa.RecordBatch.from_arrays([pa.array(["a"], pa.string())], names=["value"])

    sink.commit(writing.write(sink.options, batch, ROLES, rows()))
    assert sink.values == ["a"]


def test_an_attempt_that_the_commit_does_not_name_is_aborted(sink: Sink) -> None:  # S4
    sink.write(sink.batch(0), "loser")
    winner = sink.write(sink.batch(0), "winner")
    sink.commit(winner)
    assert sink.values == ["winner"]


def test_a_zombie_attempt_can_write_nothing_into_a_decided_batch(sink: Sink) -> None:  # S4, V5
    client = sink.log.client
    batch = sink.batch(0)
    winner = sink.write(batch, "winner")
    zombie = client.join_transaction(
        batch.app, batch.query_id, batch.run_id, batch.version, 60_000, False
    )
    sink.commit(winner)
    writer = client.versioned_writer(zombie, topic=sink.topic)
    writer.write(pa.RecordBatch.from_arrays([pa.array([b"late"])], names=["value"]))
    with pytest.raises(FencelogError):
        writer.flush()
    writer.close()
    assert sink.values == ["winner"]


def test_a_repeated_commit_does_nothing(sink: Sink) -> None:  # V3
    written = sink.write(sink.batch(0), "a")
    sink.commit(written)
    sink.commit(written)
    repeated = sink.write(sink.batch(0), "a")
    assert repeated.producer_id == writing.NO_PRODUCER
    sink.commit(repeated)
    assert sink.values == ["a"]


def test_another_fingerprint_is_no_repetition(sink: Sink) -> None:  # V3
    sink.commit(sink.write(sink.batch(0), "a"), fingerprint=b"f")
    with pytest.raises(BatchConflictError, match="the checkpoint does not match"):
        sink.commit(sink.write(sink.batch(0), "b"), fingerprint=b"g")
    assert sink.values == ["a"]


def test_a_gap_and_a_step_back_are_refused(sink: Sink) -> None:  # V3
    sink.commit(sink.write(sink.batch(3), "a"))
    with pytest.raises(BatchConflictError, match="VERSION_GAP"):
        sink.write(sink.batch(5), "b")
    with pytest.raises(BatchConflictError, match="STALE_VERSION"):
        sink.write(sink.batch(2), "b")


def test_an_abort_after_the_commit_undoes_nothing(sink: Sink) -> None:
    written = sink.write(sink.batch(0), "a")
    sink.commit(written)
    writing.abort(sink.options, written.identity, ends_run=True)
    assert sink.values == ["a"]


def test_an_aborted_batch_cannot_be_committed_and_is_written_again(sink: Sink) -> None:  # V1
    first = sink.write(sink.batch(0), "a")
    writing.abort(sink.options, first.identity, ends_run=False)
    with pytest.raises(BatchConflictError, match="was aborted"):
        sink.commit(first)
    sink.commit(sink.write(sink.batch(0), "a"))
    assert sink.values == ["a"]


@pytest.mark.parametrize("query", ["query", NO_STREAM, ""])
def test_a_task_that_comes_after_the_end_of_its_run_is_refused(sink: Sink, query: str) -> None:
    # V2: Spark gives a write up for good, and may start its last tasks then.
    batch = sink.batch(0, query=query)
    if query:
        sink.write(batch, "failed")
    writing.abort(sink.options, batch, ends_run=True)
    with pytest.raises(BatchConflictError, match="was aborted"):
        sink.write(batch, "late")
    sink.log.produce(sink.topic, ["after"])
    assert sink.values == ["after"]
    sink.commit(sink.write(sink.batch(0, query=query, run="next"), "again"))
    assert sink.values == ["after", "again"]


def test_a_newer_run_fences_writes_and_commits_of_the_older(sink: Sink) -> None:  # S5, V2
    old = sink.write(sink.batch(0, run="old"), "old")
    new = sink.write(sink.batch(0, run="new"), "new")
    with pytest.raises(FencedError, match="a newer run of this query has taken over"):
        sink.commit(old)
    with pytest.raises(FencedError):
        sink.write(sink.batch(0, run="old"), "old again")
    writing.abort(sink.options, old.identity, ends_run=True)
    sink.commit(new)
    assert sink.values == ["new"]


def test_spark_s_abort_without_messages_leaves_a_newer_run_alone(sink: Sink) -> None:
    # Spark calls it so after a stop, when no message says whose batch it was.
    written = sink.write(sink.batch(0), "a")
    writer = StreamWriter(sink.options, StructType([StructField("value", BinaryType())]))
    writer.abort([None, None], 0)
    sink.commit(written)
    assert sink.values == ["a"]


def test_an_unreachable_broker_never_hides_why_a_batch_was_given_up(
    sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = replace(sink.options.connection, bootstrap_servers="127.0.0.1:1", api_timeout_ms=300)
    writing.abort(replace(sink.options, connection=nowhere), sink.batch(0), ends_run=True)
    assert "not aborted" in capsys.readouterr().out
