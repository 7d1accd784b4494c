"""Records are collected for batches: where each one goes, and what it keeps."""

import time

import pytest

from fencelog.client import records_buffer
from fencelog.client.records_buffer import RecordsBuffer
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
