"""The driver's transaction against a broker: what each of two drivers writes, and what is left.

The broker is our own, which is asked for nothing here that a stock one does not have.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from fencelog.client.blocking import Client
from fencelog.client.driver_transaction import DriverTransaction
from fencelog.errors import ErrorCode, FencedError, FencelogError, RequestError
from fencelog.rpc.failures import failure
from fencelog.spark import writing
from fencelog.spark.conflicts import BatchConflictError
from fencelog.spark.driver_commit import commit as by_driver
from fencelog.spark.driver_commit import encode, ledger_topic, prepare, staged, staging
from fencelog.spark.driver_commit.encode import stage
from fencelog.spark.driver_commit.ledger import LEDGER
from fencelog.spark.driver_commit.staging import StagingError
from fencelog.spark.identity import BatchIdentity
from fencelog.spark.options import OptionError
from fencelog.spark.source import FencelogDataSource
from fencelog.testing.broker import LocalBroker
from fencelog.wire.records import RecordToWrite
from tests.support.spark.committing import (
    ROLES,
    Sink,
    interrupted,
    zombie_interrupts,
    zombie_was_stopped,
)


@pytest.fixture
def sink(local: LocalBroker, client: Client, topic: str, tmp_path: Path) -> Sink:
    return Sink(client, local.bootstrap, topic, tmp_path)


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand everything over in files."""
    monkeypatch.setattr(encode, "INLINE_BYTES_MAX", 0)


def test_a_batch_of_several_tasks_is_visible_once(sink: Sink) -> None:  # S3, V3
    batch = sink.batch(0)
    messages = [sink.stage(batch, "a"), sink.stage(batch), sink.stage(batch, "b", "c")]
    assert sink.values == []
    sink.commit(*messages)
    sink.commit(*messages)
    sink.write(sink.batch(0, run="2"), "a", "b", "c")
    assert sink.values == ["a", "b", "c"]


def test_a_batch_without_rows_is_a_batch(sink: Sink) -> None:  # V3
    for version in range(3):
        sink.write(sink.batch(version), *(["a"] if version == 1 else []))
    assert sink.values == ["a"]


def test_an_older_run_is_told_of_the_newer_one(sink: Sink) -> None:  # V2
    sink.write(sink.batch(0), "a")
    zombie = sink.stage(sink.batch(1), "zombie")
    sink.write(sink.batch(1, run="2"), "b")
    newer = r"taken over, run 2 since .* UTC on host h, last batch 1\. This run is 1\."
    with pytest.raises(FencedError, match=newer):
        sink.commit(zombie)
    sink.write(sink.batch(2, run="2"), "c")
    assert sink.values == ["a", "b", "c"]


def test_another_query_and_another_checkpoint_are_refused(sink: Sink) -> None:  # V3, V4
    sink.write(sink.batch(3), "a")
    for batch, fingerprint, text in [
        (sink.batch(4, run="9", query="other"), b"f", "belongs to another query than other"),
        (sink.batch(3), b"g", "checkpoint does not match what was written"),
        (sink.batch(2), b"f", "checkpoint does not match what was written"),
        (sink.batch(5), b"f", "checkpoint does not match what was written"),
    ]:
        with pytest.raises(BatchConflictError, match=text):
            sink.commit(sink.stage(batch, "b"), fingerprint=fingerprint)
    sink.options = sink.with_options(takeover="true")
    sink.write(sink.batch(0, run="9", query="other"), "c")
    assert sink.values == ["a", "c"]


@pytest.mark.parametrize("step", ["add", "send", "commit"])
def test_a_driver_that_a_zombie_interrupts_writes_its_batch_all_the_same(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:  # V2
    zombie_interrupts(sink, monkeypatch, step)


@pytest.mark.parametrize("step", ["begin", "add", "send", "commit"])
def test_a_driver_that_was_stopped_while_a_newer_one_wrote_writes_nothing(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:  # V2
    zombie_was_stopped(sink, monkeypatch, step)


def test_a_commit_whose_answer_was_lost_to_the_next_driver_is_found(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:  # V3
    real = DriverTransaction.commit

    async def fenced_after(self: DriverTransaction) -> None:
        await real(self)
        raise failure(ErrorCode.PRODUCER_FENCED, "end")

    monkeypatch.setattr(DriverTransaction, "commit", fenced_after)
    sink.write(sink.batch(0), "a")
    assert sink.values == ["a"]


def test_what_a_killed_driver_left_open_is_aborted_by_the_next(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:  # E7
    async def dies(_: DriverTransaction) -> None:
        raise RequestError(ErrorCode.NETWORK_EXCEPTION, "died")

    sink.write(sink.batch(0), "a")
    with monkeypatch.context() as patch:
        patch.setattr(DriverTransaction, "commit", dies)
        with pytest.raises(RequestError, match="died"):
            sink.write(sink.batch(1), "b")
    sink.write(sink.batch(1, run="2"), "b")
    assert sink.values == ["a", "b"]


def test_a_second_write_of_a_numbered_batch_by_one_run_is_an_error(sink: Sink) -> None:
    sink.options = sink.with_options(streaming=False, app="a", batch="0")
    sink.write(sink.batch(0), "a")
    with pytest.raises(BatchConflictError, match="written already, by this run"):
        sink.write(sink.batch(0), "b")
    assert sink.values == ["a"]


def test_a_write_without_a_number_leaves_nothing_in_the_ledger(sink: Sink) -> None:  # V4
    end = sink.client.offsets([LEDGER], "latest")
    once = BatchIdentity(app=sink.topic, query_id="", run_id="r", version=0)
    sink.write(once, "a")
    assert sink.values == ["a"]
    assert sink.client.offsets([LEDGER], "latest") == end


# --- files


@pytest.mark.usefixtures("in_files")
def test_staged_files_go_with_the_commit_and_those_of_a_killed_run_with_the_next(
    sink: Sink,
) -> None:
    killed = sink.stage(sink.batch(0, run="killed"), "x")
    messages = [sink.stage(sink.batch(0), "a"), sink.stage(sink.batch(0), "b")]
    sink.stage(sink.batch(0), "loser")
    assert len(sink.files) == 4
    assert killed.file is not None
    assert not killed.data
    sink.commit(*messages)
    assert sink.files == []
    assert sink.values == ["a", "b"]


@pytest.mark.usefixtures("in_files")
def test_staged_files_go_with_an_abort_and_a_task_that_fails_leaves_none(sink: Sink) -> None:
    sink.stage(sink.batch(0), "a")
    by_driver.abort(sink.options, sink.batch(0))
    assert sink.files == []
    rows = pa.RecordBatch.from_arrays([pa.array(["a" * 5_000_000])], names=["value"])

    def failing() -> Any:
        yield rows
        raise ValueError("broken")

    sink.client.configure_topic(sink.topic, {"max.message.bytes": "10000000"})
    with pytest.raises(ValueError, match="broken"):
        stage(sink.options, sink.batch(0), ROLES, failing())
    assert sink.files == []


@pytest.mark.usefixtures("in_files")
def test_a_damaged_or_missing_file_commits_nothing_and_blocks_no_reader(sink: Sink) -> None:
    messages = [sink.stage(sink.batch(0), "a"), sink.stage(sink.batch(0), "b")]
    second = Path(str(messages[1].file))
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(FencelogError, match=f"{sink.topic}-. is damaged or cut short"):
        sink.commit(*messages)
    second.unlink()
    with pytest.raises(StagingError, match="cannot be read where the driver runs"):
        sink.commit(*messages)
    assert sink.values == []
    sink.write(sink.batch(0, run="2"), "c")
    assert sink.values == ["c"]


@pytest.mark.usefixtures("in_files")
def test_a_zombie_whose_files_are_gone_is_told_of_the_newer_run(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.write(sink.batch(0), "a")
    interrupted(monkeypatch, "add", lambda: sink.write(sink.batch(1, run="2"), "b"))
    with pytest.raises(FencedError, match="taken over, run 2"):
        sink.write(sink.batch(1), "zombie")
    assert sink.values == ["a", "b"]


@pytest.mark.usefixtures("in_files")
def test_a_staged_file_is_synced_and_then_the_folders_that_name_it(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    file = Path(str(sink.stage(sink.batch(0), "a").file))
    assert synced == [str(file), *(str(each) for each in file.parents[:4])]
    assert file.parents[3] == sink.folder / "fencelog-staging"


@pytest.mark.usefixtures("in_files")
def test_files_of_killed_writes_without_a_number_go_after_a_week(sink: Sink) -> None:
    def once(name: str) -> BatchIdentity:
        return BatchIdentity(app=name, query_id="", run_id=name, version=0)

    old, new = (Path(str(sink.stage(once(name), "x").file)) for name in ("old", "new"))
    week_ago_s = new.stat().st_mtime - 8 * 86_400
    os.utime(old, (week_ago_s, week_ago_s))
    sink.write(once("third"), "a")
    assert sink.files == [new]
    assert sink.values == ["a"]


@pytest.mark.usefixtures("in_files")
def test_a_task_says_where_files_cannot_go(sink: Sink, tmp_path: Path) -> None:
    sink.options = sink.with_options(stagingLocation=str(tmp_path / "elsewhere"))
    with pytest.raises(StagingError, match="does not exist where this task runs"):
        sink.stage(sink.batch(0), "a")
    sink.options = replace(sink.options, staging_location=None, checkpoint_location=None)
    with pytest.raises(OptionError, match="set option 'stagingLocation'"):
        sink.stage(sink.batch(0), "a")


@pytest.mark.usefixtures("in_files")
@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_full_disk_is_an_error_that_names_the_location_and_leaves_no_file(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(staging._Synced if step == "write" else os, step, full)
    with pytest.raises(StagingError, match=r"staging in .* No space left.*'stagingLocation'"):
        sink.stage(sink.batch(0), "a")
    assert sink.files == []


# --- the ledger's topic


@pytest.mark.parametrize("value", [b"\xff", b"{}", b'{"query": "q", "runs": [1]}', b"[]"])
def test_a_record_that_nobody_of_us_wrote_is_named(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    monkeypatch.setattr(
        by_driver, "driver_record", lambda app, *_: RecordToWrite(_key("run", app), value, 0)
    )
    with pytest.raises(FencelogError, match=r"has a record of app .* that cannot be read"):
        sink.write(sink.batch(0), "a")


def _key(kind: str, app: str) -> bytes:
    return json.dumps([kind, app]).encode()


# --- limits


def test_a_record_that_the_topic_refuses_is_found_by_the_task(sink: Sink) -> None:
    sink.client.configure_topic(sink.topic, {"max.message.bytes": "1000"})
    messages = sink.stage(sink.batch(0), *["a" * 300] * 10)
    assert max(piece.size for piece in messages.pieces) <= 1000
    sink.commit(messages)
    assert len(sink.values) == 10
    with pytest.raises(FencelogError, match=r"max\.message\.bytes is 1000.*Nothing"):
        sink.stage(sink.batch(1), "a" * 1000)


def test_a_topic_s_limit_is_asked_for_once_a_minute(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    now_s = 1000.0

    def limit(_: Client, topic: str) -> int:
        asked.append(topic)
        return 1000

    monkeypatch.setattr(encode, "_max_message_bytes", limit)
    monkeypatch.setattr(encode, "system_stopwatch", lambda: now_s)
    for since_s in (0, 59, 2):
        now_s += since_s
        sink.stage(sink.batch(0), "a")
    assert asked == [sink.topic] * 2


def test_a_batch_that_takes_longer_than_the_timeout_is_given_up(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_driver, "GROUP_BYTES", 1)
    monkeypatch.setattr(by_driver, "WAITING_BYTES_MAX", 0)
    sink.write(sink.batch(0), "a")
    messages = [sink.stage(sink.batch(1), "b"), sink.stage(sink.batch(1), "c")]
    monkeypatch.setattr(DriverTransaction, "age_s", 100.0)
    for identity in (sink.batch(1), BatchIdentity(app="x", query_id="", run_id="x", version=0)):
        given = [replace(each, identity=identity) for each in messages]
        with pytest.raises(OptionError, match=r"too much to send.*'kafka\.transaction\.timeout\.m"):
            sink.commit(*given)
    assert sink.values == ["a"]
    monkeypatch.setattr(by_driver, "WAITING_BYTES_MAX", 100)
    interrupted(monkeypatch, "send", lambda: sink.write(sink.batch(1, run="2"), "b"))
    with pytest.raises(FencedError, match="taken over, run 2"):
        sink.commit(*messages)


@pytest.mark.parametrize("timeouts", [1, 2])
def test_a_transaction_that_timed_out_is_repeated_once(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, timeouts: int
) -> None:  # E12
    left = [failure(ErrorCode.PRODUCER_FENCED, "timed out")] * timeouts
    real = DriverTransaction.commit

    async def late(self: DriverTransaction) -> None:
        if left:
            raise left.pop()
        await real(self)

    sink.write(sink.batch(0), "a")
    monkeypatch.setattr(DriverTransaction, "commit", late)
    monkeypatch.setattr(DriverTransaction, "age_s", 200.0)
    if timeouts == 1:
        sink.write(sink.batch(1), "b")
        assert sink.values == ["a", "b"]
    else:
        with pytest.raises(OptionError, match="too much to send within"):
            sink.write(sink.batch(1), "b")


def test_a_write_without_a_number_that_timed_out_says_so(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:  # E12
    async def late(_: DriverTransaction) -> None:
        raise failure(ErrorCode.PRODUCER_FENCED, "timed out")

    monkeypatch.setattr(DriverTransaction, "commit", late)
    monkeypatch.setattr(DriverTransaction, "age_s", 200.0)
    with pytest.raises(OptionError, match="too much to send within"):
        sink.write(BatchIdentity(app=sink.topic, query_id="", run_id="r", version=0), "a")


@pytest.mark.parametrize("step", ["send", "commit"])
def test_a_driver_that_was_stopped_for_longer_than_the_timeout_is_told_of_the_newer_run(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:  # V2
    sink.write(sink.batch(0), "a")
    interrupted(monkeypatch, step, lambda: sink.write(sink.batch(1, run="2"), "b"))
    monkeypatch.setattr(DriverTransaction, "age_s", 200.0)
    with pytest.raises(FencedError, match="taken over, run 2"):
        sink.write(sink.batch(1), "zombie")
    assert sink.values == ["a", "b"]


def test_an_attempt_that_an_outage_made_late_is_made_again(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [True]
    monkeypatch.setattr(staged, "is_too_slow", lambda *_: bool(answers) and answers.pop())
    sink.write(sink.batch(0), "a")
    assert not answers
    assert sink.values == ["a"]


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the broker for one without versioned transactions."""
    monkeypatch.setattr(prepare, "through_driver", lambda *_, **__: True)
    monkeypatch.setattr(writing, "through_driver", lambda *_, **__: True)
    monkeypatch.setattr(prepare, "_prepared", set())


@pytest.mark.usefixtures("stock", "in_files")
def test_a_batch_function_s_write_and_a_stream_s_take_the_same_way(
    sink: Sink, source: Callable[..., FencelogDataSource], monkeypatch: pytest.MonkeyPatch
) -> None:  # S5
    options = {"topic": sink.topic, "checkpointLocation": str(sink.folder)}
    schema = StructType([StructField("value", StringType())])

    def rows() -> Iterator[pa.RecordBatch]:
        return iter([pa.RecordBatch.from_pydict({"value": ["a"]})])

    for run in ("1", "2"):
        properties = dict(zip(writing.STREAM_PROPERTIES, ("0", "query", run), strict=True))
        context = SimpleNamespace(getLocalProperty=properties.get)
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        stream = source(**options).streamWriter(schema, overwrite=False)
        stream.commit([stream.write(rows())], 0)
        written = source(**options, app=f"{sink.topic}/f", batch="0").writer(schema, False)
        messages = [written.write(rows())]
        written.commit(messages)
        written.abort(messages)
    assert sink.values == ["a", "a"]
    assert sink.files == []


@pytest.mark.usefixtures("stock")
def test_a_start_waits_for_no_broker_and_says_what_one_answers(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(code: ErrorCode) -> None:
        def ensure(_: Client) -> None:
            raise failure(code, "ledger")

        monkeypatch.setattr(ledger_topic, "ensure", ensure)

    answers(ErrorCode.NETWORK_EXCEPTION)
    writing.check(sink.options, (), streaming=True)
    answers(ErrorCode.INVALID_REPLICATION_FACTOR)
    with pytest.raises(RequestError, match="INVALID_REPLICATION_FACTOR"):
        writing.check(sink.options, (), streaming=True)
    answers(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(FencelogError, match="Create, Describe, DescribeConfigs, Read and Write"):
        writing.check(sink.options, (), streaming=True)


@pytest.mark.usefixtures("stock")
def test_what_would_fail_later_is_an_error_at_the_start(sink: Sink, tmp_path: Path) -> None:
    prepare.prepare(sink.options, streaming=True)
    assert (tmp_path / "fencelog-staging").is_dir()
    nowhere = replace(sink.options, checkpoint_location=None)
    with pytest.raises(OptionError, match="set option 'checkpointLocation'"):
        prepare.prepare(nowhere, streaming=True)
    with pytest.raises(OptionError, match="pyarrow does not open"):
        prepare.prepare(sink.with_options(stagingLocation="dbfs:/x"), streaming=True)
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be written"):
        prepare.prepare(sink.with_options(stagingLocation=str(tmp_path / "file")), streaming=True)
    slow = sink.with_options(**{"kafka.transaction.timeout.ms": "900001"})
    with pytest.raises(OptionError, match="the broker allows at most 900000"):
        prepare.prepare(slow, streaming=True)
    sink.client.configure_topic(LEDGER.topic, {"cleanup.policy": "delete"})
    with pytest.raises(FencelogError, match=r"Set its cleanup\.policy to compact"):
        prepare.prepare(replace(sink.options, takeover=True), streaming=True)
    sink.client.configure_topic(LEDGER.topic, {"cleanup.policy": "compact"})


@pytest.mark.usefixtures("stock")
def test_a_process_asks_once_however_many_batches_it_writes(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Client] = []
    monkeypatch.setattr(ledger_topic, "ensure", asked.append)
    for number in range(3):
        numbered = sink.with_options(streaming=False, app=f"a/{number}", batch=str(number))
        prepare.prepare(numbered, streaming=False)
    assert len(asked) == 1


def test_a_missing_right_is_named() -> None:
    error = RequestError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no")
    text = str(prepare.access_explained(error, "fencelog-spark-a"))
    assert "transactional id fencelog-spark-a" in text
    assert LEDGER.topic in text


def test_a_broker_older_than_kafka_2_5_is_refused() -> None:
    with pytest.raises(FencelogError, match=r"Kafka 2\.5 or later"):
        prepare._check_versions({22: (0, 1), 0: (0, 8)})


def test_the_broker_says_which_way_it_needs(client: Client) -> None:
    assert prepare.has_versioned_transactions(client)
