"""Where a rule of the log begins to hold: times of 0, the ends of segments, what a refusal says."""

import pytest

from fencelog.log.config import LogConfig
from fencelog.log.index import OffsetIndex
from fencelog.log.retention import is_due
from fencelog.log.segment import Segment
from fencelog.log.values import Isolation, ReadPlan, Rejected
from fencelog.wire.batch import LOG_APPEND_TIME
from tests.support.log import NOW_MS, Driver, make_batch, marker

COMPACT = {"cleanup_policy": frozenset({"compact"})}


@pytest.mark.parametrize(
    ("config", "timestamp", "now_ms", "due"),
    [
        ({"retention_ms": 0}, 0, 0, False),
        ({"retention_ms": 0}, 0, 1, True),
        ({"retention_ms": 10}, 0, 11, True),
        ({"retention_ms": -1}, 0, 11, False),
        ({"retention_ms": 10}, -1, 11, False),
        ({"max_compaction_lag_ms": 10, **COMPACT}, 0, 10, False),
        ({"max_compaction_lag_ms": 10, **COMPACT}, 0, 11, True),
        ({"max_compaction_lag_ms": 10, **COMPACT}, -1, 11, False),
        ({"retention_bytes": 0}, -1, 0, True),
    ],
)
def test_a_segment_is_due_by_times_from_0_on(
    config: dict[str, object], timestamp: int, now_ms: int, due: bool
) -> None:
    segment = Segment(0)
    segment.append(61, 0, timestamp, 0, has_records=True)
    assert is_due(segment, LogConfig(**config), now_ms) is due


def test_a_plan_says_whether_its_segment_reaches_the_readers_end() -> None:
    partition = Driver(segment_bytes=200)
    for _ in range(3):
        partition.produce(payload=39)
    partition.flush()
    assert partition.log.segment_base_offsets == [0, 2]
    plans = [partition.log.read(offset, 1 << 20, Isolation.REPLICATED) for offset in (0, 2)]
    assert all(isinstance(each, ReadPlan) for each in plans)
    assert [each.reaches_upper for each in plans] == [False, True]
    only = Driver()
    only.produce(count=3)
    only.flush()
    assert only.log.read(0, 1 << 20, Isolation.REPLICATED).reaches_upper is True


@pytest.mark.parametrize(
    ("position", "offset", "found"),
    [(0, 99, 0), (99, 0, 0), (100, 99, 100), (250, 99, 200), (250, 20, 100), (250, 21, 200)],
)
def test_the_last_batch_of_an_index_within_a_position_and_below_an_offset(
    position: int, offset: int, found: int
) -> None:
    index = OffsetIndex()
    index.add(10, 100)
    index.add(20, 200)
    assert index.last_within(position, offset) == found
    assert OffsetIndex().last_within(position, offset) == 0


def text_of(outcome: object) -> str:
    assert isinstance(outcome, Rejected), outcome
    return outcome.message


def test_a_refusal_says_who_sent_what_and_what_was_expected() -> None:
    partition = Driver()
    partition.produce(7, 2, 0, 3)
    partition.log.begin_verification(8, 0, 0)
    assert [
        text_of(partition.produce(7, 1, 3)),
        text_of(partition.produce(7, 2, 5)),
        text_of(partition.produce(8, 0, 4)),
    ] == [
        "producer 7 is fenced by a newer epoch (epoch 1, sequence 3; expected epoch 2, sequence 3)",
        "producer 7 sent a sequence that is not the next one"
        " (epoch 2, sequence 5; expected epoch 2, sequence 3)",
        "producer 8 sent a sequence that is not the next one (epoch 0, sequence 4)",
    ]


def test_a_refusal_of_a_producer_that_only_a_marker_told_of_says_its_epoch() -> None:  # E13
    partition = Driver()
    partition.mark(marker(8, epoch=1))
    partition.log.begin_verification(8, 1, 0)
    assert text_of(partition.produce(8, 1, 4)) == (
        "producer 8 sent a sequence that is not the next one"
        " (epoch 1, sequence 4; expected epoch 1, sequence -1)"
    )


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (make_batch(control=True), "only the broker writes control batches"),
        (
            make_batch(flags=LOG_APPEND_TIME),
            "the batch has log append time, but the topic's message.timestamp.type is CreateTime",
        ),
    ],
    ids=["control", "log append time"],
)
def test_a_refusal_of_a_kind_of_batch_says_which(batch: memoryview, text: str) -> None:
    assert text_of(Driver().append(batch)) == text


def test_a_refusal_of_a_transaction_says_whose() -> None:
    partition = Driver()
    partition.produce_in_transaction(7, epoch=2)
    assert [
        text_of(partition.produce(7, 3, 0)),
        text_of(partition.append(make_batch(8, 1, 0, transactional=True))),
        text_of(partition.mark(marker(7, epoch=1))),
    ] == [
        "producer 7 has an open transaction of epoch 2 on this partition",
        "producer 8: no open transaction of epoch 1 is verified",
        "producer 7: a marker of epoch 1 cannot end a transaction of epoch 2",
    ]
    partition.mark(marker(7, epoch=2, coordinator_epoch=5))
    assert text_of(partition.mark(marker(7, epoch=2, coordinator_epoch=4))) == (
        "producer 7: the marker's coordinator epoch 4 is below 5, that of an earlier marker"
    )


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (NOW_MS + 3_600_001, f"is too far after the broker's clock, {NOW_MS}"),
        (1, f"timestamp 1 is too far before the broker's clock, {NOW_MS}"),
    ],
)
def test_a_refused_timestamp_is_named_beside_the_clock(timestamp: int, text: str) -> None:
    partition = Driver(message_timestamp_before_max_ms=1000)
    assert text in text_of(partition.produce(timestamp=timestamp))
