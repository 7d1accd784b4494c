"""Arrow to record batches: partitions, order, sizes, and columns that cannot be written."""

from collections import defaultdict
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.client import arrow_encode
from fencelog.client.arrow import HEADERS_TYPE
from fencelog.client.arrow_encode import Encoder
from fencelog.client.batches import EncodedBatch
from fencelog.client.records_buffer import partition_of
from fencelog.wire.batch import BatchHeader, validate_produced
from tests.unit.client.batches_of import Fenced, decoded, log_of, table, values

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS_AND_VALUES = st.lists(
    st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=300)),
    min_size=1,
    max_size=60,
)


def encoded(
    *batches: pa.RecordBatch,
    partitions: int = 1,
    topic: str | None = "t",
    batch_bytes: int = 1_000_000,
    compression: str = "none",
) -> list[EncodedBatch]:
    encoder = Encoder(topic=topic, batch_bytes=batch_bytes, compression=compression)  # type: ignore[arg-type]
    for each in batches:
        encoder.check(each.schema)
    counts = dict.fromkeys(encoder.topics(batches), partitions)
    return [batch for made in encoder.encode(batches, counts) for batch in made]


def by_partition(batches: list[EncodedBatch]) -> dict[tuple[str, int], list[EncodedBatch]]:
    found = defaultdict(list)
    for each in batches:
        found[tuple(each.partition)].append(each)
    return dict(found)


@given(KEYS_AND_VALUES, st.sampled_from(CODECS), st.integers(1, 5), st.integers(100, 2_000))
@settings(deadline=None, max_examples=80)
def test_what_is_encoded_is_read_back_in_order_from_the_partition_of_its_key(
    rows: list, codec: str, partitions: int, batch_bytes: int
) -> None:
    batch = table(
        [{"key": key, "value": value} for key, value in rows], key=pa.binary(), value=pa.binary()
    )
    made = by_partition(
        encoded(batch, partitions=partitions, batch_bytes=batch_bytes, compression=codec)
    )
    read = {
        number: [(row["key"], row["value"]) for row in decoded(log_of(batches))]
        for (_, number), batches in made.items()
    }
    keyed = {
        number: [
            row for row in rows if row[0] is not None and partition_of(row[0], partitions) == number
        ]
        for number in read
    }
    assert {n: [row for row in found if row[0] is not None] for n, found in read.items()} == keyed
    keyless = [row for found in read.values() for row in found if row[0] is None]
    assert keyless == [row for row in rows if row[0] is None]


@given(KEYS_AND_VALUES, st.integers(100, 5_000))
@settings(deadline=None, max_examples=40)
def test_a_batch_is_one_that_a_broker_accepts_and_holds_no_more_than_allowed(
    rows: list, batch_bytes: int
) -> None:
    batch = table([{"value": value} for _, value in rows], value=pa.binary())
    for made in encoded(batch, batch_bytes=batch_bytes):
        made.finish(4, 0, 9, transactional=True)
        header = validate_produced(made.buffer)
        assert isinstance(header, BatchHeader)
        assert (header.producer_id, header.base_sequence) == (4, 9)
        assert header.is_transactional
        assert len(made.buffer) <= batch_bytes or header.record_count == 1


@given(KEYS_AND_VALUES, st.integers(1, 3_000), st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_nothing_is_written_outside_the_rooms_that_were_made(
    rows: list, batch_bytes: int, partitions: int
) -> None:
    batch = table(
        [{"key": key, "value": value} for key, value in rows], key=pa.binary(), value=pa.binary()
    )
    fenced = Fenced()
    numpy = SimpleNamespace(**{name: getattr(np, name) for name in dir(np)})
    numpy.empty = lambda shape, kind: fenced.empty(int(np.prod(shape)), kind).reshape(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_encode, "np", numpy)
        encoded(batch, batch_bytes=batch_bytes, partitions=partitions)
    assert fenced.intact


def test_a_named_partition_wins_over_the_key_and_null_means_the_key() -> None:
    batch = table(
        [{"key": b"k", "value": b"named", "partition": 5}, {"key": b"k", "value": b"hashed"}],
        key=pa.binary(),
        value=pa.binary(),
        partition=pa.int32(),
    )
    made = by_partition(encoded(batch, partitions=7))
    assert set(made) == {("t", 5), ("t", partition_of(b"k", 7))}


@pytest.mark.parametrize("asked", [-1, 2, 1 << 30])
def test_a_partition_that_the_topic_does_not_have_is_refused_with_its_number(asked: int) -> None:
    batch = table([{"value": b"v", "partition": asked}], value=pa.binary(), partition=pa.int32())
    with pytest.raises(ValueError, match=f"partition {asked}, but topic t has 2"):
        encoded(batch, partitions=2)


def test_rows_go_to_the_topics_of_their_column() -> None:
    batch = table(
        [
            {"topic": "a", "value": b"1"},
            {"topic": "b", "value": b"2"},
            {"topic": "a", "value": b"3"},
        ],
        topic=pa.string(),
        value=pa.binary(),
    )
    made = by_partition(encoded(batch, topic=None))
    assert {topic: values(decoded(log_of(batches))) for (topic, _), batches in made.items()} == {
        "a": [b"1", b"3"],
        "b": [b"2"],
    }


def test_the_topic_option_wins_over_the_column() -> None:
    batch = table([{"topic": "a", "value": b"1"}], topic=pa.string(), value=pa.binary())
    assert set(by_partition(encoded(batch, topic="option"))) == {("option", 0)}


def test_keyless_rows_move_on_to_another_partition_with_the_next_batch() -> None:
    encoder = Encoder(topic="t", batch_bytes=1_000)
    batch = table([{"value": b"v"}] * 5, value=pa.binary())
    used = [
        {made.partition.partition for some in encoder.encode([batch], {"t": 3}) for made in some}
        for _ in range(3)
    ]
    assert [len(numbers) for numbers in used] == [1, 1, 1]
    assert set().union(*used) == {0, 1, 2}


def test_headers_and_timestamps_are_written_and_null_ones_are_none_and_now() -> None:
    moment = datetime(2013, 1, 1, tzinfo=UTC)
    batch = table(
        [
            {"value": b"1", "headers": [{"key": "a", "value": b"x"}, {"key": "é", "value": None}],
             "timestamp": moment},
            {"value": b"2", "headers": None, "timestamp": None},
            {"value": b"3", "headers": [], "timestamp": moment},
        ],
        value=pa.binary(),
        headers=HEADERS_TYPE,
        timestamp=pa.timestamp("us", tz="UTC"),
    )  # fmt: skip
    rows = decoded(log_of(encoded(batch)))
    assert [row["headers"] for row in rows] == [
        [{"key": "a", "value": b"x"}, {"key": "é", "value": None}],
        None,
        None,
    ]
    assert [rows[0]["timestamp"], rows[2]["timestamp"]] == [moment.timestamp() * 1e6] * 2
    assert abs(rows[1]["timestamp"] / 1e6 - datetime.now(UTC).timestamp()) < 60


def test_a_slice_of_a_larger_batch_is_written_alone() -> None:
    batch = table(
        [
            {"key": b"%d" % n, "value": b"%d" % n, "headers": [{"key": str(n), "value": b""}]}
            for n in range(20)
        ],
        key=pa.binary(),
        value=pa.binary(),
        headers=HEADERS_TYPE,
    ).slice(5, 3)
    rows = decoded(log_of(encoded(batch)))
    assert [(row["key"], row["headers"][0]["key"]) for row in rows] == [
        (b"5", "5"),
        (b"6", "6"),
        (b"7", "7"),
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary()])
def test_text_and_large_columns_are_taken(kind: pa.DataType) -> None:
    column = pa.array(["a", None, "ü"], pa.string()).cast(kind)
    batch = pa.RecordBatch.from_arrays([column], names=["value"])
    assert values(decoded(log_of(encoded(batch)))) == [b"a", None, "ü".encode()]


def test_an_empty_batch_makes_nothing() -> None:
    assert encoded(table([], value=pa.binary())) == []


@pytest.mark.parametrize(
    ("types", "complaint"),
    [
        ({"key": pa.binary()}, "value"),
        ({"value": pa.int64()}, "column value is int64"),
        ({"value": pa.binary(), "colour": pa.binary()}, "colour"),
        (
            {"value": pa.binary(), "partition": pa.float64()},
            "partition is double; cast it to int32",
        ),
        ({"value": pa.binary(), "timestamp": pa.string()}, "timestamp is string; cast it to"),
        ({"value": pa.binary(), "headers": pa.string()}, "headers is string; cast it to list"),
    ],
)
def test_columns_that_cannot_be_written_are_named(types: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Encoder(topic="t", batch_bytes=10).check(pa.schema(list(types.items())))


def test_a_row_without_a_topic_is_refused() -> None:
    encoder = Encoder(topic=None, batch_bytes=10)
    with pytest.raises(ValueError, match="topic"):
        encoder.check(pa.schema([("value", pa.binary())]))
    batch = table([{"value": b"v", "topic": None}], value=pa.binary(), topic=pa.string())
    with pytest.raises(ValueError, match="null topic"):
        encoder.topics([batch])


def test_a_header_without_a_key_is_refused() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = table([{"value": b"v", "headers": [{"key": None}]}], value=pa.binary(), headers=kind)
    with pytest.raises(ValueError, match="null key"):
        encoded(batch)


@given(st.binary(max_size=60))
def test_kafkas_hash_is_the_same_compiled_and_in_python(key: bytes) -> None:
    batch = table([{"key": key, "value": b""}], key=pa.binary(), value=pa.binary())
    (made,) = encoded(batch, partitions=1009)
    assert made.partition.partition == partition_of(key, 1009)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_kafkas_hash_of_the_keys_in_kafkas_own_tests(key: bytes, hashed: int) -> None:
    assert partition_of(key, 1 << 31) == hashed & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("kind", "wrong"), [(pa.int64(), -1 << 63), (pa.int64(), -2), (pa.timestamp("us"), -2_000)]
)
def test_a_timestamp_before_1970_is_refused(kind: pa.DataType, wrong: int) -> None:
    times = [{"value": b"v", "timestamp": each} for each in (0, wrong)]
    batch = table(times, value=pa.binary(), timestamp=kind)
    with pytest.raises(ValueError, match=r"column timestamp has -.* ms: expected 1970 or later"):
        encoded(batch)
