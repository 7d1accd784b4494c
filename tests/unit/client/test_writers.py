"""When a writer sends what it was given, and what it says once it is closed."""

from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from fencelog.client import blocking_writers
from fencelog.client.blocking import Client
from fencelog.client.blocking_writers import ArrowWriter, Producer
from fencelog.client.loop_thread import LoopThread
from fencelog.client.records_buffer import RECORD_OVERHEAD
from fencelog.errors import FencelogError
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import read_header
from fencelog.wire.hot import write_produce_response
from fencelog.wire.messages.end_txn import EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdResponse
from tests.support.waiting import wait_until
from tests.unit.client.batches_of import table
from tests.unit.client.fake_broker import FakeBroker

PRODUCER = InitProducerIdResponse(producer_id=5, producer_epoch=1)


@cache
def rows() -> pa.RecordBatch:
    """Ten records. Made when they are needed, because pyarrow imports pandas for them."""
    return table([{"value": b"%d" % n} for n in range(10)], value=pa.binary())


def counts(broker: FakeBroker) -> list[int]:
    """The records of each batch that was sent."""
    return [
        read_header(records).record_count
        for request in broker.produced
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None
    ]


def test_small_arrow_batches_are_sent_together_once_they_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking_writers, "ENCODE_BYTES", 3 * rows().nbytes)
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        with client.arrow_writer(topic="t") as writer:
            for _ in range(2):
                writer.write(rows())
            writer._loop.run(writer._sender.flush())
            assert broker.produced == []
            writer.write(rows())
            wait_until(lambda: broker.produced, what="the three batches")
            writer.write(rows())
            assert writer.records == 40
            assert writer.flush() == 40
        assert counts(broker) == [30, 10]


def test_what_waits_is_sent_at_the_end_of_a_block_and_dropped_after_an_error() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, *[PRODUCER] * 4)
        for make in (client.producer, lambda: client.arrow_writer(topic="t")):
            with make() as writer:
                give(writer)
            with pytest.raises(KeyError), make() as writer:
                give_and_fail(writer)
        assert counts(broker) == [1, 10]


def give(writer: Producer | ArrowWriter) -> None:
    if isinstance(writer, ArrowWriter):
        writer.write(rows())
    else:
        writer.send("t", b"v")


def give_and_fail(writer: Producer | ArrowWriter) -> None:
    give(writer)
    raise KeyError


def interrupted(_: LoopThread, work: Coroutine[Any, Any, object]) -> object:
    """As where the caller is interrupted before the loop has begun the work."""
    work.close()
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["send", "flush"])
def test_what_was_collected_is_sent_though_a_call_was_interrupted(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # E13
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        with client.producer(batch_bytes=3 * RECORD_OVERHEAD) as writer:
            for _ in range(2):
                writer.send("t", b"v")
            with monkeypatch.context() as patched:
                patched.setattr(LoopThread, "run", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    CALLS[call](writer)
            assert sum(each.count for each in writer.flush()) == 2 + (call == "send")


def test_a_writer_whose_rows_were_dropped_says_so() -> None:
    """Of what an encoder refuses, or an interrupt cuts off, some may be sent and some not."""
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        nowhere = table([{"value": b"v", "topic": None}], value=pa.binary(), topic=pa.utf8())
        writer = client.arrow_writer()
        writer.write(nowhere)
        with pytest.raises(ValueError, match="null topic"):
            writer.flush()
        for call in (lambda: writer.write(rows()), writer.flush):
            with pytest.raises(FencelogError, match=r"dropped, .*null topic"):
                call()
        writer.close()
        assert counts(broker) == []


def test_a_record_that_cannot_be_written_leaves_the_others_in_the_transaction() -> None:  # E10
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        broker.next(ApiKey.END_TXN, EndTxnResponse(producer_id=5, producer_epoch=2))
        with client.producer(transactional_id="x") as writer:
            writer.begin()
            writer.send("t", b"first")
            for wrong in ({"value": "v"}, {"value": b"v", "partition": "0"}):
                with pytest.raises(TypeError, match="expected"):
                    writer.send("t", **wrong)  # type: ignore[arg-type]
            writer.send("t", b"second")
            writer.commit()
        assert counts(broker) == [2]


CALLS: dict[str, Callable[[Producer], object]] = {
    "send": lambda writer: writer.send("t", b"v"),
    "flush": lambda writer: writer.flush(),
    "begin": lambda writer: writer.begin(),
    "commit": lambda writer: writer.commit(),
    "abort": lambda writer: writer.abort(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_closed_producer_says_so(call: Callable[[Producer], object]) -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        with client.producer() as writer:
            writer.close()
            writer.close()
            with pytest.raises(FencelogError, match="this writer is closed"):
                call(writer)


def test_a_closed_arrow_writer_says_so() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        with client.arrow_writer(topic="t") as writer:
            writer.close()
            for call in (lambda: writer.write(rows()), writer.flush):
                with pytest.raises(FencelogError, match="this writer is closed"):
                    call()


def test_an_answer_without_the_partition_breaks_the_connection_and_is_asked_for_again() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.INIT_PRODUCER_ID, PRODUCER)
        with client.producer() as writer:
            broker.script[ApiKey.PRODUCE].append(
                lambda version, body: write_produce_response(version, [("other", [])])
            )
            before = broker.asked.count(ApiKey.API_VERSIONS)
            writer.send("t", b"v")
            (delivery,) = writer.flush()
        assert (delivery.base_offset, delivery.count) == (0, 1)
        assert broker.asked.count(ApiKey.API_VERSIONS) > before
