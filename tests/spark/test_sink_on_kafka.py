"""The driver's transaction on Apache Kafka itself: its fences, its markers, its refusals."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelog.client.blocking import Client
from fencelog.client.driver_transaction import DriverTransaction
from fencelog.errors import ErrorCode, RequestError
from fencelog.spark import writing
from fencelog.spark.driver_commit import encode
from fencelog.spark.driver_commit.ledger import LEDGER
from fencelog.spark.driver_commit.staged import Staged
from tests.support.apache_kafka import ApacheKafka
from tests.support.spark.committing import Sink, interrupted, zombie_interrupts, zombie_was_stopped


@pytest.fixture
def sink(kafka: ApacheKafka, topic: str, tmp_path: Path) -> Iterator[Sink]:
    with Client(kafka.address) as client:
        yield Sink(client, kafka.address, topic, tmp_path)


def test_a_batch_is_written_once_and_as_a_whole(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "INLINE_BYTES_MAX", 100_000)
    writing.check(sink.options, (), streaming=True)
    values = [f"{number:06d}" for number in range(50_000)]
    for run in ("1", "2"):
        staged = sink.stage(sink.batch(0, run), *values)
        small = sink.stage(sink.batch(0, run), "small")
        assert staged.file is not None
        sink.commit(staged, small)
    assert sink.values == [*values, "small"]
    assert sink.files == []
    topic = sink.client.describe_topic(LEDGER.topic)
    assert topic.configs["cleanup.policy"] == "compact"


def test_the_broker_is_found_to_have_no_versioned_transactions(sink: Sink) -> None:
    written = writing.write(sink.options, sink.batch(0), (("value", "value"),), iter([]))
    assert isinstance(written, Staged)
    writing.commit(sink.options, [written], fingerprint=b"")
    writing.abort(sink.options, sink.batch(0), ends_run=True)


@pytest.mark.parametrize("step", ["add", "send", "commit"])
def test_a_zombie_stops_and_the_driver_that_it_interrupted_goes_on(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:  # V2
    zombie_interrupts(sink, monkeypatch, step)


@pytest.mark.parametrize("step", ["begin", "add", "send", "commit"])
def test_a_driver_that_was_stopped_in_its_transaction_writes_nothing_afterwards(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:  # V2
    zombie_was_stopped(sink, monkeypatch, step)


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_driver_that_dies_at_its_end_request_leaves_a_whole_batch_or_nothing(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool
) -> None:  # E7, V3
    real = DriverTransaction.commit

    async def dies(self: DriverTransaction) -> None:
        if is_sent:
            await real(self)
        raise RequestError(ErrorCode.NETWORK_EXCEPTION, "died")

    sink.write(sink.batch(0), "a")
    with monkeypatch.context() as patch:
        patch.setattr(DriverTransaction, "commit", dies)
        with pytest.raises(RequestError, match="died"):
            sink.write(sink.batch(1), "b")
    sink.write(sink.batch(1, run="2"), "b")
    assert sink.values == ["a", "b"]


def test_a_broker_that_is_killed_meanwhile_delays_a_commit_only(
    sink: Sink, kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.write(sink.batch(0), "a")
    interrupted(monkeypatch, "commit", lambda: kafka.restart() and None)
    sink.write(sink.batch(1), "b")
    assert sink.values == ["a", "b"]
