"""Every encoder and decoder of records where a number needs one byte more.

The numbers of a record are zigzag varints: 63 and -64 take one byte, 64 and -65 two, 8,191 and
-8,192 two, 8,192 and -8,193 three, and so on. What one of our encoders writes is read by all of our
decoders and by aiokafka's, and what aiokafka writes by ours.
"""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from fencelog.client.arrow import HEADERS_TYPE
from fencelog.client.arrow_encode import Encoder
from fencelog.wire.batch import read_header
from fencelog.wire.filtering import scan, timestamp_of, with_records
from fencelog.wire.primitives import Reader, write_varint
from fencelog.wire.records import RecordToWrite, build_batch, read_records
from tests.unit.client.batches_of import decoded, log_of, table

BASE_MS = 1_700_000_000_000
EDGES = [1 << bits for bits in (6, 13, 20)]
"""The first number that needs two, three and four bytes."""
NEAR = (-2, -1, 0, 1)
SIZES = [0, 1, *(edge + by for edge in EDGES[:2] for by in NEAR), 127, 128]
RECORD_OVERHEADS = range(12)
"""How much less than a record its value may be, so that the record's own size meets each edge."""
ROWS = [1, 2, *(edge + by for edge in EDGES[:2] for by in NEAR), 70]
DELTAS_MS = sorted(
    {sign * (edge + by) for edge in (*EDGES, 1 << 31, 1 << 40) for by in NEAR for sign in (1, -1)}
)
TIMESTAMP_MS_MAX = 9_223_372_036_854_775
"""The largest timestamp that Arrow's microseconds can hold."""


def a(value: bytes | None, at_ms: int = BASE_MS, key: bytes | None = None) -> RecordToWrite:
    return RecordToWrite(key, value, at_ms)


CASES = {
    "values": [a(bytes(size)) for size in SIZES],
    "keys": [a(b"v", key=bytes(size)) for size in SIZES],
    "nulls": [a(None), a(b""), a(None, key=b""), a(b"", key=b"k")],
    "records": [a(bytes(edge - less)) for edge in EDGES[:2] for less in RECORD_OVERHEADS],
    "a large value": [a(bytes(EDGES[2] + by)) for by in NEAR],
    "header keys": [RecordToWrite(None, b"", BASE_MS, (("h" * s, b"v"),)) for s in SIZES],
    "header values": [RecordToWrite(None, b"", BASE_MS, (("h", bytes(s)),)) for s in SIZES],
    "numbers of headers": [
        RecordToWrite(None, b"", BASE_MS, (("h", None),) * count) for count in SIZES if count < 200
    ],
    "timestamps": [a(b""), *(a(b"", BASE_MS + delta) for delta in DELTAS_MS)],
    "timestamps from 0 to the largest": [a(b"", 0), a(b"", TIMESTAMP_MS_MAX), a(b"", 1)],
    **{f"{rows} rows": [a(b"%d" % row) for row in range(rows)] for rows in ROWS},
}
EACH_CASE = pytest.mark.parametrize("records", CASES.values(), ids=CASES)


def as_aiokafka_reads(batch: bytes | bytearray) -> list[RecordToWrite]:
    """What an independent decoder finds, its offsets checked."""
    found = DefaultRecordBatch(bytes(batch))
    assert found.validate_crc()
    rows = list(found)
    assert [each.offset for each in rows] == list(range(len(rows)))
    return [RecordToWrite(r.key, r.value, r.timestamp, tuple(r.headers)) for r in rows]


def as_we_read(batch: bytes | bytearray) -> list[RecordToWrite]:
    rows = read_records(batch)
    assert [each.offset for each in rows] == list(range(len(rows)))
    return [RecordToWrite(r.key, r.value, r.timestamp, r.headers) for r in rows]


def as_arrow_reads(batch: bytes | bytearray) -> list[RecordToWrite]:
    rows = decoded(bytes(batch))
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    return [
        RecordToWrite(
            row["key"],  # type: ignore[arg-type]
            row["value"],  # type: ignore[arg-type]
            row["timestamp"] // 1000,  # type: ignore[operator]
            tuple((h["key"], h["value"]) for h in row["headers"] or ()),  # type: ignore[attr-defined]
        )
        for row in rows
    ]


def as_aiokafka_writes(records: Sequence[RecordToWrite]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for delta, each in enumerate(records):
        builder.append(delta, each.timestamp_ms, each.key, each.value, list(each.headers))
    return bytes(builder.build())


def as_arrow_writes(records: Sequence[RecordToWrite]) -> bytes:
    rows: list[dict[str, object]] = [
        {
            "key": each.key,
            "value": each.value,
            "timestamp": each.timestamp_ms,
            "headers": [{"key": key, "value": value} for key, value in each.headers],
        }
        for each in records
    ]
    columns = table(
        rows,
        key=pa.binary(),
        value=pa.binary(),
        timestamp=pa.timestamp("ms"),
        headers=HEADERS_TYPE,
    )
    encoder = Encoder(topic="t", batch_bytes=1 << 30)
    made = [batch for batches in encoder.encode([columns], {"t": 1}) for batch in batches]
    assert len(made) == 1, "all rows fit in one batch"
    return log_of(made)


FAR_APART = [
    [BASE_MS, -1 << 63],  # numpy's NaT
    [-1, (1 << 63) - 1],
    [-1 << 63, (1 << 63) - 1, 0],
    [(1 << 63) - 1, (1 << 63) - 1],
]


@pytest.mark.parametrize("times_ms", FAR_APART)
@pytest.mark.parametrize("by", [0, 1])
def test_timestamps_that_are_far_apart_wrap_around_as_in_kafka(
    times_ms: list[int], by: int
) -> None:
    """A delta may leave 64 bits, and its sum with the base timestamp too."""
    records = [a(b"%d" % row, at_ms) for row, at_ms in enumerate(times_ms)]
    batch = build_batch(records)
    assert as_we_read(batch) == records
    assert [row["value"] for row in decoded(bytes(batch))] == [each.value for each in records]
    header = read_header(batch)
    plain, scanned = scan(header, batch)
    assert [timestamp_of(header, each) for each in scanned] == times_ms
    kept = with_records(header, plain, scanned[by:], BASE_MS)  # type: ignore[arg-type]
    assert [each.timestamp for each in read_records(kept)] == times_ms[by:]
    assert read_header(kept).max_timestamp == max(times_ms[by:])


def test_a_short_delta_behind_the_last_timestamp_wraps_around_too() -> None:
    batch = build_batch([a(b"", (1 << 63) - 2), a(b"", -1 << 63)])
    assert [each.timestamp_ms for each in as_we_read(batch)] == [(1 << 63) - 2, -1 << 63]


@EACH_CASE
def test_what_the_wire_package_writes_is_read_by_every_decoder(
    records: list[RecordToWrite],
) -> None:
    batch = build_batch(records)
    assert as_aiokafka_reads(batch) == records
    assert as_we_read(batch) == records
    assert as_arrow_reads(batch) == records
    header = read_header(batch)
    assert header.max_timestamp == max(each.timestamp_ms for each in records)
    assert (header.record_count, header.last_offset_delta) == (len(records), len(records) - 1)


@EACH_CASE
def test_what_aiokafka_writes_is_read_by_our_decoders(records: list[RecordToWrite]) -> None:
    batch = as_aiokafka_writes(records)
    assert as_we_read(batch) == records
    assert as_arrow_reads(batch) == records


@EACH_CASE
def test_what_the_arrow_encoder_writes_is_read_by_every_decoder(
    records: list[RecordToWrite],
) -> None:
    batch = as_arrow_writes(records)
    assert as_aiokafka_reads(batch) == records
    assert as_we_read(batch) == records
    header = read_header(batch)
    assert header.max_timestamp == max(each.timestamp_ms for each in records)
    assert (header.record_count, header.last_offset_delta) == (len(records), len(records) - 1)


@EACH_CASE
@pytest.mark.parametrize("horizon_ms", [BASE_MS - 64, BASE_MS + 8_192, 1 << 40])
def test_what_compaction_writes_keeps_every_number(
    records: list[RecordToWrite], horizon_ms: int
) -> None:
    """A delete horizon takes the place of the base timestamp, so that every delta changes."""
    batch = build_batch(records)
    header = read_header(batch)
    plain, scanned = scan(header, batch)
    assert [(each.key, each.has_value) for each in scanned] == [
        (each.key, each.value is not None) for each in records
    ]
    kept = with_records(header, plain, scanned, horizon_ms)  # type: ignore[arg-type]
    assert as_aiokafka_reads(kept) == records
    assert as_we_read(kept) == records
    assert as_arrow_reads(kept) == records


@pytest.mark.parametrize("kept", [63, 64, 65, 69, 8_191, 8_192, 8_193])
def test_a_record_that_compaction_leaves_alone_keeps_its_offset(kept: int) -> None:
    batch = build_batch(CASES["8193 rows"] + [a(b"last")], base_offset=5)
    header = read_header(batch)
    plain, scanned = scan(header, batch)
    left = with_records(header, plain, [scanned[kept]])
    (ours,) = read_records(left)
    (theirs,) = DefaultRecordBatch(bytes(left))
    (arrows,) = decoded(bytes(left))
    assert ours.offset == theirs.offset == arrows["offset"] == 5 + kept


@pytest.mark.parametrize("bits", range(6, 63, 7))
@pytest.mark.parametrize("by", NEAR)
def test_a_varint_takes_another_byte_at_each_edge_and_not_before(bits: int, by: int) -> None:
    for value in ((1 << bits) + by, -(1 << bits) + by):
        out = bytearray()
        write_varint(out, value)
        zigzag = 2 * value if value >= 0 else -2 * value - 1
        assert len(out) == max(1, (zigzag.bit_length() + 6) // 7)
        reader = Reader(out)
        assert reader.varlong() == value
        reader.expect_end()
