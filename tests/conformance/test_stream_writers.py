"""Our writers against a broker process whose stream splits and merges while they write."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import fencelog
import fencelog.aio
from fencelog.client.blocking import Client
from fencelog.client.model import Isolation, Joined
from fencelog.client.records_buffer import key_hash
from fencelog.client.streams.known import ExplicitPartitionError
from fencelog.coordination.streams.model import SegmentState
from fencelog.types import TopicPartition
from tests.support.broker import BrokerProcess
from tests.support.waiting import wait_until

KEYS = [b"key-%d" % number for number in range(40)]


@pytest.fixture
def log(shared_broker: BrokerProcess) -> Iterator[Client]:
    with fencelog.connect(shared_broker.address) as client:
        yield client


@pytest.fixture
def stream(log: Client, topic: str) -> str:
    log.create_stream(topic, 2)
    return topic


def orders(
    log: Client, stream: str, isolation: Isolation = "transactional"
) -> dict[bytes | None, list[int]]:
    """Per key what a reader sees who reads each segment after its predecessors."""
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for segment in log.describe_stream(stream).segments:
        place = TopicPartition(stream, segment.index)
        (end,) = log.offsets([place], "latest", isolation).values()
        for record in log.fetch(place, 0, end, isolation=isolation) if end else ():
            assert record.key is None or segment.low <= key_hash(record.key) < segment.high
            found[record.key].append(int(record.value or b""))
    return found


def resize(log: Client, stream: str, number: int) -> None:
    """Split a segment, or merge two."""
    opened = [
        each
        for each in log.describe_stream(stream).stream.covering
        if each.state is SegmentState.OPEN
    ]
    if number % 3 == 2:
        log.merge_segments(stream, [each.index for each in opened[:2]])
    else:
        log.split_segment(stream, opened[number % len(opened)].index)


def while_resizing(log: Client, stream: str, resizes: int, write: Callable[[int], None]) -> int:
    """Write batch after batch until so many resizes are done; return how many were written."""
    failures: list[BaseException] = []

    def all_resizes() -> None:
        try:
            for number in range(resizes):
                resize(log, stream, number)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=all_resizes)
    thread.start()
    written = 0
    while thread.is_alive() or written < 5:
        write(written)
        written += 1
    thread.join()
    if failures:
        raise failures[0]
    return written


def test_a_blocking_producer_keeps_each_key_in_order(log: Client, stream: str) -> None:  # R2
    with log.producer(batch_bytes=2_000, compression="lz4") as producer:

        def write(number: int) -> None:
            for key in KEYS:
                producer.send(stream, b"%d" % number, key=key)

        written = while_resizing(log, stream, 9, write)
        producer.flush()
    assert orders(log, stream) == {key: list(range(written)) for key in KEYS}


def test_an_asynchronous_producer_keeps_each_key_in_order(  # R2
    log: Client, stream: str, shared_broker: BrokerProcess
) -> None:
    async def main() -> int:
        async with (
            await fencelog.aio.connect(shared_broker.address) as client,
            await client.producer(batch_bytes=2_000) as producer,
        ):
            resizing = asyncio.create_task(
                asyncio.to_thread(lambda: [resize(log, stream, each) for each in range(9)])
            )
            number = 0
            while not resizing.done() or number < 5:
                for key in KEYS:
                    await producer.send(stream, b"%d" % number, key=key)
                number += 1
                await asyncio.sleep(0)
            await resizing
            await producer.flush()
            return number

    written = asyncio.run(main())
    assert orders(log, stream) == {key: list(range(written)) for key in KEYS}


def rows(number: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(KEYS), "value": [b"%d" % number] * len(KEYS)})


def test_an_arrow_writer_keeps_each_key_in_order(  # R2
    log: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencelog.client.blocking_writers.ENCODE_BYTES", 1)
    with log.arrow_writer(topic=stream, compression="zstd") as writer:
        written = while_resizing(log, stream, 9, lambda number: writer.write(rows(number)))
        assert writer.flush() == written * len(KEYS)
    assert orders(log, stream) == {key: list(range(written)) for key in KEYS}


def test_a_transaction_over_resizes_is_visible_as_a_whole_or_not_at_all(  # R2, E10
    log: Client, stream: str, topic: str
) -> None:
    with log.producer(transactional_id=f"{topic}-writer", batch_bytes=2_000) as producer:

        def write(number: int) -> None:
            for key in KEYS:
                producer.send(stream, b"%d" % number, key=key)

        producer.begin()
        aborted = while_resizing(log, stream, 4, write)
        producer.abort()
        assert orders(log, stream) == {}
        producer.begin()
        written = while_resizing(log, stream, 4, write)
        producer.flush()
        assert orders(log, stream) == {}
        producer.commit()
    wait_until(
        lambda: sum(map(len, orders(log, stream).values())) == written * len(KEYS),
        what="the markers",
    )
    assert orders(log, stream) == {key: list(range(written)) for key in KEYS}
    assert aborted >= 5


def test_attempts_of_a_versioned_transaction_are_committed_over_resizes(  # R2, S3, S4
    log: Client, stream: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencelog.client.blocking_writers.ENCODE_BYTES", 1)
    app = f"{topic}-app"
    joined: list[Joined] = []
    for _ in range(2):
        attempt = log.join_transaction(app, "q", "r", 0)
        assert isinstance(attempt, Joined)
        joined.append(attempt)
    writers: list[Any] = [log.versioned_writer(each, topic=stream) for each in joined]

    def write(number: int) -> None:
        for writer in writers:
            writer.write(rows(number))

    written = while_resizing(log, stream, 6, write)
    for writer in writers:
        writer.flush()
        writer.close()
    assert orders(log, stream) == {}
    log.commit_transaction(app, "q", "r", 0, b"f", [joined[0].producer_id])
    wait_until(
        lambda: sum(map(len, orders(log, stream).values())) == written * len(KEYS),
        what="the markers",
    )
    assert orders(log, stream) == {key: list(range(written)) for key in KEYS}


def test_a_segment_cannot_be_named_by_a_writer(log: Client, stream: str) -> None:  # R1
    with (
        log.producer() as producer,
        pytest.raises(ExplicitPartitionError, match="is a stream"),
    ):
        producer.send(stream, b"v", partition=0)


def test_a_topic_that_was_deleted_and_made_again_as_the_other_kind_is_written_to(
    log: Client, stream: str
) -> None:
    with log.producer() as producer:
        for key in KEYS:
            producer.send(stream, b"0", key=key)
        producer.flush()
        log.delete_topic(stream)
        log.create_topic(stream, 3)
        for key in KEYS:
            producer.send(stream, b"1", key=key)
        producer.flush()
        places = [TopicPartition(stream, index) for index in range(3)]
        assert sum(log.offsets(places, "latest").values()) == len(KEYS)
        log.delete_topic(stream)
        log.create_stream(stream, 2)
        for key in KEYS:
            producer.send(stream, b"2", key=key)
        producer.flush()
    assert orders(log, stream) == {key: [2] for key in KEYS}
