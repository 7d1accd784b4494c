"""Records are collected for batches: where each one goes, and what it keeps."""

import time

import numpy as np
import pytest

from fencelog.client import records_buffer
from fencelog.client.records_buffer import RecordsBuffer, checked_partition
from fencelog.wire.batch import read_header
from fencelog.wire.records import read_records

TOPIC, PARTITIONS = "t", 3


@pytest.fixture
def buffer() -> RecordsBuffer:
    return RecordsBuffer(batch_bytes=1000, compression="none")


def test_records_without_a_key_go_to_each_partition_in_turn_one_for_a_batch(
    buffer: RecordsBuffer,
) -> None:
    chosen = []
    for _ in range(2 * PARTITIONS):
        for value in (b"a", b"b"):
            buffer.add(TOPIC, PARTITIONS, None, value, None, (), None)
        (batch,) = buffer.take()
        assert batch.count == 2
        chosen.append(batch.partition.partition)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_record_keeps_its_headers_and_without_a_timestamp_gets_the_time(
    buffer: RecordsBuffer,
) -> None:
    headers = (("trace", b"1"), ("empty", None))
    before_ms = time.time_ns() // 1_000_000
    buffer.add(TOPIC, PARTITIONS, b"k", b"v", 1, headers, None)
    buffer.add(TOPIC, PARTITIONS, b"k", b"v", 2, (), 17)
    stamped, given = buffer.take()
    after_ms = time.time_ns() // 1_000_000
    assert before_ms <= stamped.base_timestamp <= after_ms
    assert given.max_timestamp == 17
    assert read_header(stamped.buffer).record_count == 1
    (record,) = read_records(stamped.buffer)
    assert (record.key, record.value, tuple(record.headers)) == (b"k", b"v", headers)


def test_what_cannot_be_encoded_stays_in_the_buffer(
    buffer: RecordsBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> bytearray:
        raise MemoryError

    for value in (b"a", b"b"):
        buffer.add(TOPIC, PARTITIONS, None, value, 0, (), None)
    with monkeypatch.context() as patched:
        patched.setattr(records_buffer, "build_batch", fails)
        with pytest.raises(MemoryError):
            buffer.take()
    (batch,) = buffer.take()
    assert [each.value for each in read_records(batch.buffer)] == [b"a", b"b"]
    assert buffer.take() == []


WRONG: dict[str, tuple[dict[str, object], type[Exception], str]] = {
    "value": ({"value": "v"}, TypeError, r"value is 'v' \(str\): expected bytes"),
    "value of a number": ({"value": 5}, TypeError, r"value is 5 \(int\)"),
    "key": ({"key": "k"}, TypeError, r"key is 'k' \(str\): expected bytes"),
    "timestamp": (
        {"timestamp_ms": 1.5},
        TypeError,
        r"timestamp_ms is 1.5 \(float\): expected mill",
    ),
    "late timestamp": (
        {"timestamp_ms": 1 << 63},
        ValueError,
        "timestamp_ms is 9223372036854775808",
    ),
    "early timestamp": ({"timestamp_ms": -2}, ValueError, r"timestamp_ms is -2 .* 0 to .* or -1"),
    "no headers": ({"headers": None}, TypeError, r"headers is None .*: expected a tuple of pairs"),
    "a dict of headers": ({"headers": {"a": b"b"}}, TypeError, "headers is"),
    "header": ({"headers": (("a",),)}, TypeError, r"headers has \('a',\) \(tuple\): expected"),
    "name of a header": ({"headers": ((b"a", b"b"),)}, TypeError, "headers has"),
    "surrogate": ({"headers": (("\ud800", b"b"),)}, ValueError, "UTF-8 cannot encode"),
    "value of a header": ({"headers": (("a", "b"),)}, TypeError, "the value of header 'a' is 'b'"),
}
GOOD: dict[str, object] = {
    "topic": TOPIC,
    "places": PARTITIONS,
    "key": None,
    "value": b"v",
    "partition": 0,
    "headers": (),
    "timestamp_ms": 1,
}


@pytest.mark.parametrize(("change", "error", "text"), WRONG.values(), ids=WRONG)
def test_what_is_no_record_is_refused_and_the_others_stay(
    buffer: RecordsBuffer, change: dict[str, object], error: type[Exception], text: str
) -> None:
    buffer.add(**GOOD)  # type: ignore[arg-type]
    with pytest.raises(error, match=text):
        buffer.add(**GOOD | change)  # type: ignore[arg-type]
    buffer.add(**GOOD)  # type: ignore[arg-type]
    (batch,) = buffer.take()
    assert [each.value for each in read_records(batch.buffer)] == [b"v", b"v"]


@pytest.mark.parametrize("timestamp_ms", [-1, 0, (1 << 63) - 1])
def test_every_timestamp_that_kafka_has_is_taken(buffer: RecordsBuffer, timestamp_ms: int) -> None:
    buffer.add(**GOOD | {"timestamp_ms": timestamp_ms})  # type: ignore[arg-type]
    (batch,) = buffer.take()
    assert [each.timestamp for each in read_records(batch.buffer)] == [timestamp_ms]


def test_what_stands_for_bytes_and_numbers_is_taken_as_it_is_at_the_call(
    buffer: RecordsBuffer,
) -> None:
    value, headers = bytearray(b"v"), [["a", memoryview(b"b")]]
    given = {"value": value, "headers": headers, "timestamp_ms": np.int64(7)}
    buffer.add(**GOOD | given)  # type: ignore[arg-type]
    value[:] = b"later"
    headers.clear()
    (batch,) = buffer.take()
    (record,) = read_records(batch.buffer)
    assert (record.value, record.headers, record.timestamp) == (b"v", (("a", b"b"),), 7)


def test_a_partition_is_a_whole_number() -> None:
    assert [checked_partition(each) for each in (None, 3, np.int32(3))] == [None, 3, 3]
    for wrong in ("0", 0.0):
        with pytest.raises(TypeError, match=r"partition is .*: expected a partition's number"):
            checked_partition(wrong)  # type: ignore[arg-type]
