"""Batches with records taken out: what they still say, and what malformed ones can never do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.errors import WireError
from fencelog.wire.batch import Compression, check_crc, read_header
from fencelog.wire.filtering import delete_horizon, emptied, scan, with_records
from fencelog.wire.records import RecordToWrite, build_batch, read_records

BASE_MS = 1_700_000_000_000
RECORDS = st.lists(
    st.builds(
        RecordToWrite,
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.integers(BASE_MS - 10_000_000, BASE_MS + 10_000_000),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=20,
)


@given(
    records=RECORDS,
    keep=st.sets(st.integers(0, 19)),
    codec=st.sampled_from(list(Compression)),
    horizon=st.none() | st.integers(0, 1 << 42),
)
@settings(deadline=None)
def test_the_records_that_stay_are_what_they_were(records, keep, codec, horizon) -> None:
    batch = build_batch(
        records,
        base_offset=1000,
        leader_epoch=3,
        compression=codec,
        producer_id=7,
        producer_epoch=1,
        base_sequence=9,
    )
    header = read_header(batch)
    plain, scanned = scan(header, batch)
    originals = read_records(batch)
    assert [(s.offset_delta + 1000, s.key, s.has_value) for s in scanned] == [
        (r.offset, r.key, r.value is not None) for r in originals
    ]
    left = with_records(header, plain, [s for n, s in enumerate(scanned) if n in keep], horizon)
    expected = [r for n, r in enumerate(originals) if n in keep]
    assert read_records(left) == expected
    after = read_header(left)
    assert check_crc(left)
    assert after.record_count == len(expected)
    unchanged = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id")
    for name in (*unchanged, "producer_epoch", "base_sequence"):
        assert getattr(after, name) == getattr(header, name), name
    if expected:
        assert after.max_timestamp == max(r.timestamp for r in expected)
        assert (delete_horizon(after), after.compression) == (horizon, codec)


def test_an_empty_batch_keeps_only_its_offsets_and_its_producer() -> None:
    batch = build_batch(
        [RecordToWrite(b"k", b"v", BASE_MS)] * 3, producer_id=7, producer_epoch=2, base_sequence=5
    )
    left = emptied(read_header(batch))
    header = read_header(left)
    assert (header.record_count, header.last_offset_delta, len(left)) == (0, 2, 61)
    assert header.max_timestamp == BASE_MS
    assert read_records(left) == []
    assert scan(header, left) == (b"", [])


@given(st.binary(max_size=60), st.integers(1, 1 << 30))
def test_any_bytes_end_in_records_or_a_wire_error(data: bytes, count: int) -> None:
    header = read_header(build_batch([RecordToWrite(b"k", b"v", BASE_MS)]))
    header = header._replace(record_count=count)
    try:
        _, records = scan(header, bytes(61) + data)
    except WireError:
        return
    assert len(records) == count


def test_every_truncation_is_a_wire_error() -> None:
    batch = build_batch([RecordToWrite(b"key" * 30, b"value" * 30, BASE_MS)] * 2)
    header = read_header(batch)
    for size in range(61, len(batch)):
        with pytest.raises(WireError):
            scan(header, batch[:size])
