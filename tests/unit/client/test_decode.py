"""Record batches to Arrow: what a reader gets, and what malformed bytes can never do."""

import struct
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.client import arrow
from fencelog.client.arrow import decode, schema_of
from fencelog.client.batches import scan
from fencelog.errors import WireError
from fencelog.wire.batch import Compression, assign, read_header
from fencelog.wire.control import marker_batch
from fencelog.wire.records import read_records
from tests.unit.client.batches_of import (
    EVERY_COLUMN,
    FOR_EVER,
    PLACE,
    Fenced,
    batch,
    before_a_wall,
    decoded,
    record,
    values,
    with_crc,
)

RECORDS = st.lists(
    st.builds(
        record,
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=20),
        headers=st.lists(
            st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3
        ).map(tuple),
        timestamp_ms=st.integers(0, 1 << 42),
    ),
    min_size=1,
    max_size=30,
)


@given(RECORDS, st.sampled_from(list(Compression)), st.integers(0, 1 << 40))
@settings(deadline=None, max_examples=60)
def test_decoding_gives_what_the_wire_package_reads(
    records: list, codec: Compression, base_offset: int
) -> None:
    data = batch(records, compression=codec, base_offset=base_offset)
    rows = decoded(data)
    assert [(row["offset"], row["key"], row["value"], row["timestamp"]) for row in rows] == [
        (r.offset, r.key, r.value, r.timestamp * 1000) for r in read_records(data)
    ]
    assert [tuple((h["key"], h["value"]) for h in row["headers"] or ()) for row in rows] == [
        r.headers for r in read_records(data)
    ]


def test_columns_come_as_spark_expects_them() -> None:
    (found,) = decode(
        memoryview(data := batch([record()])),
        scan(memoryview(data), (), transactional=True).batches,
        PLACE,
        columns=EVERY_COLUMN,
        start=0,
        end=FOR_EVER,
    )
    assert found.schema == schema_of(EVERY_COLUMN)
    assert found.schema.field("value").type == pa.binary()
    assert found.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    row = found.to_pylist()[0]
    assert (row["topic"], row["partition"], row["timestampType"]) == ("t", 3, 0)


def test_only_the_chosen_columns_are_made() -> None:
    rows = decoded(batch([record(), record()]), columns=frozenset(("offset", "key")))
    assert rows == [{"key": b"k", "offset": 0}, {"key": b"k", "offset": 1}]


def test_a_column_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="colour"):
        schema_of(frozenset(("colour",)))


def test_a_record_without_headers_has_null_headers_as_in_sparks_kafka_connector() -> None:
    rows = decoded(batch([record(), record(headers=(("a", None),))]))
    assert [row["headers"] for row in rows] == [None, [{"key": "a", "value": None}]]


def test_log_append_time_replaces_every_records_own_time() -> None:
    data = bytearray(batch([record(timestamp_ms=5), record(timestamp_ms=6)]))
    assign(memoryview(data), 0, 0, max_timestamp=9_000)
    rows = decoded(bytes(data))
    assert [(row["timestamp"], row["timestampType"]) for row in rows] == [(9_000_000, 1)] * 2


def test_a_timestamp_that_no_column_can_hold_is_its_last() -> None:
    nanoseconds = 1_700_000_000_000_000_000  # of a client that took them for milliseconds
    (row,) = decoded(batch([record(timestamp_ms=nanoseconds)]))
    assert row["timestamp"] == (2**63 - 1) // 1000 * 1000


def test_rows_outside_the_asked_offsets_are_left_out() -> None:
    data = batch([record(b"%d" % n) for n in range(10)], base_offset=100)
    assert values(decoded(data, start=103, end=106)) == [b"3", b"4", b"5"]


def test_gaps_that_compaction_left_are_kept() -> None:
    first = batch([record(b"0")], base_offset=10)
    second = batch([record(b"1")], base_offset=20)
    assert [row["offset"] for row in decoded(first + second)] == [10, 20]


def test_a_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    whole, partial = batch([record(b"0")]), batch([record(b"1")], base_offset=1)[:-3]
    assert values(decoded(whole + partial)) == [b"0"]
    assert scan(memoryview(whole + partial), (), transactional=True).next_offset == 1
    assert scan(memoryview(partial), (), transactional=True).next_offset is None


def transactional(value: bytes, producer_id: int, offset: int) -> bytes:
    return batch(
        [record(value)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
        base_offset=offset,
    )


def marker(producer_id: int, offset: int, *, commit: bool) -> bytes:
    made = marker_batch(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp_ms=0)
    assign(memoryview(made), offset, 0)
    return bytes(made)


def test_aborted_data_and_markers_are_left_out_of_a_transactional_read() -> None:  # E10
    log = b"".join(
        (
            transactional(b"aborted", 7, 0),
            transactional(b"other", 8, 1),
            marker(7, 2, commit=False),
            transactional(b"again", 7, 3),
            marker(7, 4, commit=True),
            marker(8, 5, commit=True),
        )
    )
    assert values(decoded(log, aborted=[(7, 0)])) == [b"other", b"again"]
    everything = decoded(log, aborted=[(7, 0)], transactional=False)
    assert values(everything) == [b"aborted", b"other", b"again"]
    assert scan(memoryview(log), [(7, 0)], transactional=True).next_offset == 6


def test_an_abort_begins_at_its_own_first_offset_and_not_earlier() -> None:  # E10
    log = b"".join(
        (
            transactional(b"committed", 7, 0),
            marker(7, 1, commit=True),
            transactional(b"aborted", 7, 2),
            marker(7, 3, commit=False),
        )
    )
    assert values(decoded(log, aborted=[(7, 2)])) == [b"committed"]


@pytest.mark.parametrize("aborted", list(permutations([(9, 0), (8, 2), (7, 4)])))
def test_aborts_may_be_listed_in_any_order(aborted: tuple[tuple[int, int], ...]) -> None:  # E10
    log = b"".join(
        (
            transactional(b"a", 9, 0),
            transactional(b"committed", 8, 1),
            transactional(b"b", 8, 2),
            marker(9, 3, commit=False),
            transactional(b"c", 7, 4),
            transactional(b"open", 9, 5),
            marker(8, 6, commit=False),
            marker(7, 7, commit=False),
        )
    )
    assert values(decoded(log, aborted=aborted)) == [b"committed", b"open"]


def test_a_wrong_checksum_is_refused_and_says_where() -> None:  # D3
    data = bytearray(batch([record()], base_offset=77))
    data[-2] ^= 1  # the value's last byte
    with pytest.raises(WireError, match="offset 77 has a wrong CRC"):
        decoded(bytes(data))


def test_an_error_in_a_later_batch_names_its_own_offset() -> None:
    bad = bytearray(batch([record()], base_offset=5))
    bad[61] = 3
    with pytest.raises(WireError, match=r"t-3 at offset 5"):
        decoded(batch([record()] * 5) + with_crc(bad))


@pytest.mark.parametrize(
    ("at", "form", "number"),
    [(57, ">i", -1), (57, ">i", 1 << 30), (23, ">i", -1), (57, ">i", 3), (57, ">i", 1)],
)
def test_a_header_that_does_not_match_its_records_is_refused(
    at: int, form: str, number: int
) -> None:
    data = bytearray(batch([record(), record()]))
    struct.pack_into(form, data, at, number)
    with pytest.raises(WireError):
        decoded(with_crc(data))


def test_more_than_the_limit_out_of_a_compressed_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fencelog.client.batches.DECOMPRESSED_BYTES_MAX", 1_000)
    data = batch([record(bytes(100_000))], compression=Compression.ZSTD)
    with pytest.raises(WireError, match="1000 bytes"):
        decoded(data)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=8),
    RECORDS,
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_any_bytes_end_in_rows_or_a_wire_error_and_never_outside_a_buffer(
    changes: list[tuple[int, int]], records: list, cut: bool
) -> None:
    data = bytearray(batch(records) + batch(records, base_offset=len(records)))
    first = read_header(data).size
    for where, byte in changes:
        # The header's own fields are checked elsewhere; here the checksum must pass.
        body = 61 + where % (first - 61)
        data[body] = byte
    struct.pack_into(">i", data, 57, (1 if cut else 0) + read_header(data).record_count)
    whole = with_crc(data[:first]) + bytes(data[first:])
    fenced = Fenced()
    numpy = SimpleNamespace(**{name: getattr(np, name) for name in dir(np)})
    numpy.empty, numpy.zeros = fenced.empty, fenced.zeros
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "np", numpy)
        try:
            rows = decoded(before_a_wall(whole))
        except WireError:
            rows = []
    assert fenced.intact
    assert len(rows) in (0, 2 * len(records))


@given(st.binary(min_size=1, max_size=300))
@settings(deadline=None, max_examples=100)
def test_random_records_are_read_as_by_the_wire_package_or_refused_by_both(
    body: bytes,
) -> None:
    data = bytearray(batch([record()]))[:61] + body
    struct.pack_into(">i", data, 8, len(data) - 12)
    whole = with_crc(data)
    try:
        (expected,) = read_records(whole)
        sound = expected.offset == 0  # only the kernel looks at this
    except WireError:
        sound = False
    if sound:
        assert values(decoded(before_a_wall(whole))) == [expected.value]
    else:
        with pytest.raises(WireError):
            decoded(before_a_wall(whole))
