"""Records inside batches, and their codecs, held against aiokafka's and kafka-python's."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.errors import WireError
from fencelog.wire.batch import HEADER_BYTES, Compression, check_crc, read_header, seal
from fencelog.wire.compression import compress, decompress
from fencelog.wire.primitives import write_uvarint
from fencelog.wire.records import Record, RecordToWrite, build_batch, read_records

NULLABLE_BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), NULLABLE_BYTES), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(
        RecordToWrite, NULLABLE_BYTES, NULLABLE_BYTES, st.integers(0, (1 << 62) - 1), HEADERS
    ),
    min_size=1,
    max_size=20,
)
CODECS = pytest.mark.parametrize("codec", Compression)
COMPRESSED = pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
SOME = [
    RecordToWrite(b"key", b"value", 1000, (("h", b"x"), ("h", None))),
    RecordToWrite(None, None, 990),
    RecordToWrite(b"", b"", 2000),
]


def content(records: Sequence[Record]) -> list[RecordToWrite]:
    return [RecordToWrite(one.key, one.value, one.timestamp, one.headers) for one in records]


@settings(deadline=None)
@given(RECORDS, st.sampled_from(Compression), st.integers(0, 1 << 60))
def test_records_are_read_back_at_their_offsets(
    records: list[RecordToWrite], codec: Compression, base_offset: int
) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    read = read_records(memoryview(batch))
    assert content(read) == records
    assert [one.offset - base_offset for one in read] == list(range(len(records)))
    assert check_crc(batch)


SIZES = st.sampled_from([0, 1, 40, 55, 56, 57, 58, 62, 63, 64, 65, 127, 128])
TIMES = st.sampled_from([0, 1, 62, 63, 64, 65, 127, 128, 9_000])


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            RecordToWrite,
            st.none() | SIZES.map(bytes),
            st.none() | SIZES.map(bytes),
            TIMES,
            st.sampled_from([(), (("h", b"v"),)]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([1, 13, 14, 2_000]),
)
def test_records_whose_numbers_just_fit_into_a_byte_or_not_are_read_back(
    records: list[RecordToWrite], times: int
) -> None:
    many = records * times
    read = read_records(build_batch(many))
    assert content(read) == many
    assert [one.offset for one in read] == list(range(len(many)))


def test_a_batch_carries_the_largest_timestamp_even_where_it_is_not_the_last() -> None:
    header = read_header(build_batch([RecordToWrite(None, b"", at) for at in (5, 9, 7)]))
    assert (header.base_timestamp, header.max_timestamp) == (5, 9)


@CODECS
def test_aiokafka_reads_what_we_write(codec: Compression) -> None:
    batch = build_batch(SOME, base_offset=7, producer_id=3, compression=codec)
    read = DefaultRecordBatch(bytes(batch))
    assert read.validate_crc()
    assert read.producer_id == 3
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read] == [
        (7, 1000, b"key", b"value", [("h", b"x"), ("h", None)]),
        (8, 990, None, None, []),
        (9, 2000, b"", b"", []),
    ]


@CODECS
def test_we_read_what_aiokafka_writes(codec: Compression) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 1, 7, 2, 40, 1 << 20)
    for delta, record in enumerate(SOME):
        builder.append(delta, record.timestamp_ms, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    assert check_crc(batch)
    assert content(read_records(batch)) == SOME
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    assert (header.compression, header.is_transactional) == (codec, True)


def test_what_we_write_is_aiokafkas_batch_byte_by_byte() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 1, 7, 2, 40, 1 << 20)
    for delta, record in enumerate(SOME):
        builder.append(delta, record.timestamp_ms, record.key, record.value, list(record.headers))
    ours = build_batch(
        SOME,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
        transactional=True,
    )
    assert bytes(ours) == bytes(builder.build())


def with_body(body: bytes, record_count: int, **changes: Any) -> bytearray:
    """A batch around any bytes, with a header and a checksum that are right."""
    header = read_header(build_batch([SOME[0]] * 2))
    changes |= {"record_count": record_count, "last_offset_delta": record_count - 1}
    return seal(header._replace(**changes), body)


BODY = bytes(build_batch(SOME)[HEADER_BYTES:])


@pytest.mark.parametrize("size", range(len(BODY)))
def test_records_cut_short_are_a_wire_error(size: int) -> None:
    with pytest.raises(WireError):
        read_records(with_body(BODY[:size], len(SOME)))


@pytest.mark.parametrize("count", [-1, 2, 4, 1 << 30])
def test_a_count_that_is_not_the_number_of_records_is_a_wire_error(count: int) -> None:
    with pytest.raises(WireError):
        read_records(with_body(BODY, count))


@pytest.mark.parametrize(
    "body",
    [
        bytes.fromhex("0c 00 00 00 01 01 01"),
        bytes.fromhex("0c 00 00 00 01 01 02"),
        bytes.fromhex("0e 00 00 00 01 01 00 00"),
        bytes.fromhex("0c 00 00 00 03 01 00"),
        bytes.fromhex("10 00 00 00 01 01 02 01 01"),
        bytes.fromhex("14 00 00 00 01 01 02 04 c3 28 01"),
        bytes.fromhex("01 00 00 00 01 01 00"),
    ],
    ids=[
        "negative header count", "missing header", "byte after the record", "negative key length",
        "null header key", "header key not UTF-8", "negative record length",
    ],
)  # fmt: skip
def test_a_malformed_record_is_a_wire_error(body: bytes) -> None:
    with pytest.raises(WireError):
        read_records(with_body(body, 1))


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, 10), st.sampled_from(Compression))
def test_any_bytes_are_records_or_a_wire_error(body: bytes, count: int, codec: Compression) -> None:
    try:
        read = read_records(with_body(body, count, attributes=int(codec)))
    except WireError:
        return
    assert len(read) == count


def test_a_batch_in_a_buffer_of_another_size_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="in a buffer of"):
        read_records(build_batch(SOME) + b"\0")


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 400_000])
@CODECS
def test_a_codec_gives_back_what_it_was_given(codec: Compression, size: int) -> None:
    data = (b"fencelog" * (size // 8 + 1))[:size]
    assert bytes(decompress(codec, compress(codec, data))) == data


@COMPRESSED
def test_what_would_come_out_larger_than_the_limit_is_a_wire_error(codec: Compression) -> None:
    bomb = compress(codec, bytes(1_000_000))
    assert len(bomb) < 100_000
    assert len(decompress(codec, bomb, 1_000_000)) == 1_000_000
    with pytest.raises(WireError, match="more than 999999 bytes"):
        decompress(codec, bomb, 999_999)


@COMPRESSED
def test_a_small_limit_keeps_allocations_small(
    codec: Compression, peak_of: Callable[[Callable[[], object]], int]
) -> None:
    bomb = compress(codec, bytes(20_000_000))

    def refused() -> None:
        with pytest.raises(WireError):
            decompress(codec, bomb, 1000)

    refused()  # loads the library
    assert peak_of(refused) < 3 * len(bomb) + 200_000


@COMPRESSED
def test_a_stream_cut_short_is_a_wire_error(codec: Compression) -> None:
    stream = bytes(compress(codec, b"fencelog" * 100))
    for size in range(len(stream)):
        if codec is Compression.SNAPPY and size == 16:
            continue  # the header of snappy-java's stream alone is an empty stream
        with pytest.raises(WireError):
            decompress(codec, stream[:size])


def test_a_raw_snappy_block_is_read_as_librdkafka_writes_it() -> None:
    import cramjam

    raw = bytes(cramjam.snappy.compress_raw(b"fencelog" * 100))
    assert decompress(Compression.SNAPPY, raw) == b"fencelog" * 100


def test_a_snappy_block_that_claims_more_than_it_can_hold_costs_nothing(
    peak_of: Callable[[Callable[[], object]], int],
) -> None:
    claims = bytearray()
    write_uvarint(claims, 200 << 20)

    def refused() -> None:
        with pytest.raises(WireError, match="cannot decompress"):
            decompress(Compression.SNAPPY, bytes(claims) + bytes(20))

    refused()  # loads the library
    assert peak_of(refused) < 64 * 1024


def test_lz4_is_written_in_independent_blocks() -> None:
    # Kafka's Java reader refuses linked ones; bit 5 of the frame's flags says independent.
    assert compress(Compression.LZ4, b"x" * 1000)[4] & 0x20
