"""Streams that split and merge under a query: exactly once, and each key in order."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from fencelog.types import TopicPartition
from tests.spark.conftest import Log
from tests.support.spark.driver_process import DriverProcess
from tests.support.spark.faults import FORMAT, Announced, Fault, FaultySource, plan

KEYS = [f"key {number}" for number in range(12)]
END_S = 240.0


@pytest.fixture
def announced(tmp_path: Path) -> Announced:
    folder = tmp_path / "faults"
    folder.mkdir()
    return Announced(folder)


@pytest.fixture
def streams(log: Log, fresh_name: Callable[[str], str]) -> tuple[str, str]:
    """Source and sink, of one segment each."""
    names = fresh_name("in"), fresh_name("out")
    for name in names:
        log.client.create_stream(name, 1)
    return names


def produce(log: Log, stream: str, numbers: range) -> None:
    """Each number once for each key."""
    with log.client.producer() as producer:
        for number in numbers:
            for key in KEYS:
                producer.send(stream, f"{number:04}".encode(), key=key.encode())


def by_key(log: Log, stream: str) -> dict[str, list[str]]:
    """Each key's values in the order of its segments: a successor's number is the higher one."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in log.records(stream):
        found[record.key.decode()].append(record.value.decode())
    return found


def expected(count: int) -> dict[str, list[str]]:
    return {key: [f"{number:04}" for number in range(count)] for key in KEYS}


def last_offsets(checkpoint: Path) -> dict:
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return json.loads(newest.read_text().splitlines()[-1])


def open_segments(log: Log, stream: str) -> Sequence[int]:
    return sorted(each.index for each in log.client.describe_stream(stream).stream.covering)


def test_a_copy_of_a_stream_has_each_record_once_in_order_over_resizes_of_both(
    spark, log, streams, read_stream, write_stream, announced, tmp_path
) -> None:  # R2, R8, S2, S3
    source, sink = streams
    spark.dataSource.register(FaultySource)
    frame = read_stream(source, maxOffsetsPerTrigger="200").select("key", "value")
    produce(log, source, range(20))
    log.client.split_segment(source, 0)
    produce(log, source, range(20, 40))

    # Both split when a batch has rows that are written and not committed.
    query = write_stream(
        frame,
        sink,
        form=FORMAT,
        faultFolder=str(announced.folder),
        faults=plan(Fault(name="split", point="written", batch=1)),
        trigger={"processingTime": "0 seconds"},
    )
    announced.wait("split")
    log.client.split_segment(source, 1)
    log.client.split_segment(sink, 0)
    produce(log, source, range(40, 60))
    announced.release("split")
    query.processAllAvailable()
    query.stop()
    assert by_key(log, sink) == expected(60)

    # The next run begins from the checkpoint, which the merges and another split make old.
    log.client.merge_segments(source, [3, 4])
    log.client.merge_segments(source, [2, 5])
    log.client.split_segment(source, 6)
    log.client.merge_segments(sink, [1, 2])
    produce(log, source, range(60, 80))
    write_stream(frame, sink)
    assert by_key(log, sink) == expected(80)
    assert sorted(map(int, last_offsets(tmp_path / "checkpoint")[source])) == open_segments(
        log, source
    )


def test_segments_that_retention_emptied_end_a_query_only_if_they_were_not_read(
    log, streams, read_stream, write_stream, tmp_path
) -> None:  # S6
    source, sink = streams
    produce(log, source, range(5))
    log.client.split_segment(source, 0)
    produce(log, source, range(5, 10))
    frame = read_stream(source).select("key", "value")
    write_stream(frame, sink)
    unread = {TopicPartition(source, each): -1 for each in (0, 1)}
    log.client.delete_records(unread)
    produce(log, source, range(10, 15))
    write_stream(frame, sink)
    assert by_key(log, sink) == expected(15)

    first = {"startingOffsets": json.dumps({source: {"0": 0}})}
    with pytest.raises(StreamingQueryException, match=f"{source}-0: offsets 0 to 59 were deleted"):
        write_stream(read_stream(source, **first), sink, checkpoint=tmp_path / "another")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_after_a_split_is_continued_without_loss_or_duplicates(
    log, streams, announced, tmp_path
) -> None:  # R2, R8, S2
    source, sink = streams
    produce(log, source, range(20))
    job = {
        "master": "local[2,4]",
        "settings": {},
        "servers": log.servers,
        "source": source,
        "sink": sink,
        "checkpoint": str(tmp_path / "checkpoint"),
        "folder": str(announced.folder),
        "reader": {"maxOffsetsPerTrigger": "200"},
    }
    killed = DriverProcess(
        {**job, "faults": plan(Fault(name="kill", point="written", batch=1))}, tmp_path / "killed"
    )
    try:
        announced.wait("kill")
        log.client.split_segment(source, 0)
        log.client.split_segment(sink, 0)
        produce(log, source, range(20, 40))
    finally:
        killed.kill()
    log.client.merge_segments(sink, [1, 2])
    second = DriverProcess({**job, "faults": plan()}, tmp_path / "second")
    try:
        assert second.end(END_S) == 0, second.stderr
    finally:
        second.kill()
    assert by_key(log, sink) == expected(40)
