"""What a writer knows of ranges: never older than it was, and each hash has one segment."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.client import arrow_encode
from fencelog.client.arrow_encode import Encoder
from fencelog.client.batches import EncodedBatch
from fencelog.client.records_buffer import key_hash
from fencelog.client.streams.division import divided
from fencelog.client.streams.known import ExplicitPartitionError, KnownStreams, Places
from fencelog.client.streams.ranges import NO_KEYS, Ranges, median, ranges_of, successors
from fencelog.coordination.streams import rules
from fencelog.coordination.streams.model import HASH_SPACE, Stream
from fencelog.types import Offset, TopicId
from fencelog.wire.hot import Successor
from fencelog.wire.records import read_records
from tests.unit.client.batches_of import decoded, log_of, table
from tests.unit.client.stream_world import played

ID = TopicId(b"s" * 16)
RESIZES = st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 16)), max_size=12)
HASHES = st.lists(st.integers(0, HASH_SPACE - 1), min_size=1, max_size=20)


def made(change: Stream | rules.Refused) -> Stream:
    assert isinstance(change, Stream), change
    return change


def resized(stream: Stream, resizes: list[tuple[bool, int]]) -> list[Stream]:
    """The stream after each of these resizes."""
    history = [stream]
    for merges, number in resizes:
        covering = stream.covering
        place = number % len(covering)
        if merges and place + 1 < len(covering):
            indexes = [each.index for each in covering[place : place + 2]]
            stream = made(rules.merge(stream, indexes))
        else:
            indexes = [covering[place].index]
            stream = made(rules.split(stream, indexes[0]))
        for index in indexes:
            stream = rules.sealed(stream, index, Offset(number))
        history.append(stream)
    return history


def named(stream: Stream, index: int) -> list[Successor]:
    """What a sealed segment answers."""
    return [Successor(each.index, each.low, each.high) for each in stream.successors(index)]


@given(RESIZES, st.lists(st.integers(0, 1 << 16), max_size=20), HASHES, st.integers(0, 12))
@settings(deadline=None)
def test_each_hash_has_a_segment_with_its_range_and_never_an_older_one(  # R1
    resizes: list[tuple[bool, int]], asked: list[int], hashes: list[int], described: int
) -> None:
    history = resized(made(rules.created(2)), resizes)
    known = ranges_of(ID, history[min(described, len(history) - 1)])
    for number in asked:
        before = [known.segment_of(each) for each in hashes]
        index = known.covering[number % len(known.covering)].segment
        if history[-1].successors(index):
            known = known.with_newer(named(history[-1], index))
        after = [known.segment_of(each) for each in hashes]
        assert all(new >= old for new, old in zip(after, before, strict=True))
        assert known.covers(0, HASH_SPACE)
        for key_hash_, segment in zip(hashes, after, strict=True):
            assert known.known[segment].low <= key_hash_ < known.known[segment].high


@given(RESIZES, HASHES)
def test_asking_until_none_is_sealed_leads_to_the_segments_that_are_open(  # R1
    resizes: list[tuple[bool, int]], hashes: list[int]
) -> None:
    history = resized(made(rules.created(3)), resizes)
    known = ranges_of(ID, history[0])
    while sealed := [e for e in known.covering if history[-1].successors(e.segment)]:
        known = known.with_newer(named(history[-1], sealed[0].segment))
    assert [known.segment_of(each) for each in hashes] == [
        history[-1].segment_of(each).index for each in hashes
    ]


def test_where_a_part_of_a_segment_is_known_to_be_replaced_it_has_the_rest() -> None:  # R1
    quarter, half = HASH_SPACE // 4, HASH_SPACE // 2
    first, rest = Successor(0, 0, quarter), Successor(1, quarter, HASH_SPACE)
    known = Ranges(ID, (first, rest), {0: first, 1: rest})
    # Segment 1 was split at the half meanwhile, and its first part merged with segment 0.
    merged = Successor(4, 0, half)
    learned = known.with_newer([merged])
    assert learned.covering == (merged, Successor(1, half, HASH_SPACE))
    assert (learned.known[4], learned.known[1]) == (merged, rest)
    parts = [Successor(2, quarter, half), Successor(3, half, HASH_SPACE)]
    assert learned.with_newer(parts).covering == (merged, parts[1])


def test_a_description_from_behind_takes_nothing_back() -> None:
    history = resized(made(rules.created(1)), [(False, 0), (False, 0), (True, 1)])
    streams = KnownStreams()
    streams.learn("s", ID, ranges_of(ID, history[-1]))
    newest = streams.ranges("s", ID)
    streams.learn("s", ID, ranges_of(ID, history[1]))
    assert newest is not None
    assert streams.ranges("s", ID) == newest
    assert streams.range_of("s", ID, 3) == newest.known[3]
    streams.learn("s", TopicId(b"n" * 16), None)  # created anew, as no stream
    assert streams.ranges("s", ID) is None
    assert streams.range_of("s", ID, 3) == Successor(3, 0, HASH_SPACE)


@pytest.mark.parametrize(
    ("hashes", "middle"), [([], NO_KEYS), ([5], 5), ([9, 1], 1), ([3, 1, 2], 2)]
)
def test_the_median_is_one_of_the_hashes(hashes: list[int], middle: int) -> None:  # R3
    assert median(hashes) == middle


@pytest.mark.parametrize(
    ("low", "high", "covers"), [(0, 10, True), (0, 11, False), (2, 7, True), (-1, 3, False)]
)
def test_successors_cover_a_range_without_a_gap(low: int, high: int, covers: bool) -> None:
    assert successors(ID, [Successor(4, 5, 10), Successor(3, 0, 5)]).covers(low, high) is covers
    assert not successors(ID, [Successor(4, 6, 10), Successor(3, 0, 5)]).covers(0, 10)


# --- Arrow

KEYS = st.lists(st.none() | st.binary(max_size=12), min_size=1, max_size=60)
SPLITS = [(False, 0), (False, 1), (True, 0), (False, 2)]


def encoded(rows: list[bytes | None], places: Places, **options: int) -> list[EncodedBatch]:
    batch = table(
        [{"key": key, "value": b"%d" % n} for n, key in enumerate(rows)],
        key=pa.binary(),
        value=pa.binary(),
    )
    encoder = Encoder(topic="s", batch_bytes=options.get("batch_bytes", 1000))
    return [each for made in encoder.encode([batch], {"s": places}) for each in made]


@given(KEYS, RESIZES, st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_arrow_rows_go_to_the_segment_of_their_key_in_order(  # R1
    rows: list[bytes | None], resizes: list[tuple[bool, int]], segments: int
) -> None:
    stream = resized(made(rules.created(segments)), resizes)[-1]
    batches = encoded(rows, ranges_of(ID, stream), batch_bytes=200)
    read: dict[int, list[tuple[bytes | None, int]]] = {}
    for each in batches:
        assert each.topic_id == ID
        found = [(row["key"], int(row["value"])) for row in decoded(log_of([each]))]
        read.setdefault(each.partition.partition, []).extend(found)
        hashes = [key_hash(key) for key, _ in found if key is not None]
        assert each.median_hash == median(hashes)
    keyless = {index for index, found in read.items() if any(key is None for key, _ in found)}
    assert len(keyless) <= 1
    for index, found in read.items():
        segment = stream.segments[index]
        keyed = [(key, n) for key, n in found if key is not None]
        assert keyed == [
            (key, n)
            for n, key in enumerate(rows)
            if key is not None and segment.low <= key_hash(key) < segment.high
        ]
    assert sorted(n for found in read.values() for _, n in found) == list(range(len(rows)))


def test_the_median_of_a_large_batch_is_that_of_a_part_of_its_rows() -> None:  # R3
    rows: list[bytes | None] = [b"%d" % n for n in range(5_000)]
    (batch,) = encoded(rows, ranges_of(ID, made(rules.created(1))), batch_bytes=1 << 20)
    ordered = sorted(key_hash(key) for key in rows if key is not None)
    place = np.searchsorted(ordered, batch.median_hash) / len(ordered)
    assert 0.4 < place < 0.6
    assert len(rows) > arrow_encode.HASHES_MAX


def test_streams_and_ordinary_topics_are_written_together() -> None:
    stream = ranges_of(ID, resized(made(rules.created(2)), SPLITS)[-1])
    batch = table(
        [{"topic": name, "key": b"%d" % n, "value": b"v"} for n in range(40) for name in "ab"],
        topic=pa.string(),
        key=pa.binary(),
        value=pa.binary(),
    )
    encoder = Encoder(topic=None, batch_bytes=1000)
    places: dict[str, Places] = {"a": stream, "b": 3}
    batches = [each for made in encoder.encode([batch], places) for each in made]
    for each in batches:
        topic, index = each.partition
        keys = [row["key"] for row in decoded(log_of([each]))]
        if topic == "b":
            assert (each.topic_id, {key_hash(key) % 3 for key in keys}) == (None, {index})
        else:
            assert {stream.segment_of(key_hash(key)) for key in keys} == {index}
    assert sum(each.count for each in batches) == 80


def test_an_arrow_row_cannot_name_a_segment() -> None:  # R1
    batch = table(
        [{"value": b"v", "partition": None}, {"value": b"v", "partition": 1}],
        value=pa.binary(),
        partition=pa.int32(),
    )
    encoder = Encoder(topic="s", batch_bytes=1000)
    ranges = ranges_of(ID, made(rules.created(2)))
    with pytest.raises(ExplicitPartitionError, match=r"topic s is a stream.*it was 1"):
        list(encoder.encode([batch], {"s": ranges}))


@given(KEYS, st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]), st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_a_batch_of_any_codec_is_divided_anew_with_all_that_its_records_have(  # R2
    rows: list[bytes | None], codec: str, segments: int
) -> None:
    batch = table(
        [
            {
                "key": key,
                "value": b"%d" % n,
                "timestamp": n,
                "headers": [{"key": "h", "value": b"x"}],
            }
            for n, key in enumerate(rows)
        ],
        key=pa.binary(),
        value=pa.binary(),
        timestamp=pa.int64(),
        headers=pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    encoder = Encoder(topic="s", batch_bytes=1 << 20, compression=codec)  # type: ignore[arg-type]
    one, several = made(rules.created(1)), ranges_of(ID, made(rules.created(segments)))
    ((made_batch,),) = encoder.encode([batch], {"s": ranges_of(ID, one)})
    parts: list[EncodedBatch] = []

    async def divide() -> None:
        parts.extend(await divided(made_batch, several, turn=1))

    played(divide())
    found = {}
    for part in parts:
        part.finish(1, 0, 0, transactional=True)
        for record in read_records(part.buffer):
            found[record.timestamp] = record.key, record.value, record.headers
            if record.key is not None:
                assert several.segment_of(key_hash(record.key)) == part.partition.partition
    headers = (("h", b"x"),)
    assert found == {n: (key, b"%d" % n, headers) for n, key in enumerate(rows)}
    assert isinstance(several, Ranges)
    assert all(part.compression == made_batch.compression for part in parts)
