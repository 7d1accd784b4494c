"""The tagged fields that fencelog adds to Produce: read as written, skipped by others (R2, R4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.errors import ErrorCode, WireError
from fencelog.types import TopicId
from fencelog.wire.hot import (
    AppendTags,
    PartitionResult,
    Revision,
    SealedSegment,
    Successor,
    read_produce_request,
    read_produce_response,
    write_produce_request,
    write_produce_response,
)
from fencelog.wire.hot.append_tags import read_append_tags, read_sealed, write_append_tags
from fencelog.wire.hot.append_tags import write_sealed as write_sealed_tags
from fencelog.wire.hot.produce import CurrentLeader
from fencelog.wire.primitives import Reader, write_tags
from tests.unit.wire.message_values import generated

FLEXIBLE = pytest.mark.parametrize("version", range(9, 13))
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TAGS = st.builds(
    AppendTags,
    st.none() | st.integers(-1, (1 << 31) - 1),
    st.none() | st.builds(Revision, INT32, INT64),
    st.none() | st.binary(min_size=16, max_size=16).map(TopicId),
)
SEALED = st.builds(
    SealedSegment,
    INT64,
    INT32,
    st.lists(st.builds(Successor, INT32, INT64, INT64), max_size=5).map(tuple),
)
BOTH = AppendTags(5, Revision(3, 1 << 40))


def request_of(version: int, tags: dict[tuple[str, int], AppendTags]) -> bytes:
    topics = [("a", [(0, b"x"), (1, b"yy")]), ("b", [(0, b"")])]
    return b"".join(map(bytes, write_produce_request(version, "id", -1, 5, topics, tags)))


@given(st.dictionaries(st.sampled_from([("a", 0), ("a", 1), ("b", 0)]), TAGS))
def test_what_a_client_says_of_each_batch_is_read_as_it_was_written(
    tags: dict[tuple[str, int], AppendTags],
) -> None:  # R1, R4
    read = read_produce_request(request_of(9, tags), 9)
    assert dict(read.tags) == {key: each for key, each in tags.items() if each != AppendTags()}
    assert [(name, [index for index, _ in each]) for name, each in read.topics] == [
        ("a", [0, 1]),
        ("b", [0]),
    ]


@FLEXIBLE
def test_kafkas_own_messages_skip_the_tags(version: int) -> None:
    request = request_of(version, {("a", 1): BOTH})
    read = generated["Produce"].ProduceRequest.read(request, version)
    assert [[bytes(one.records) for one in topic.partition_data] for topic in read.topic_data] == [
        [b"x", b"yy"],
        [b""],
    ]
    sealed = SealedSegment(7, 3, (Successor(1, 0, 5),))
    result = PartitionResult(4, ErrorCode.SEGMENT_SEALED, error_message="m", sealed=sealed)
    response = write_produce_response(version, [("a", [result])])
    answer = generated["Produce"].ProduceResponse.read(response, version)
    partition = answer.responses[0].partition_responses[0]
    assert (partition.index, partition.error_message) == (4, "m")


@pytest.mark.parametrize("version", range(3, 9))
def test_versions_without_tags_carry_none(version: int) -> None:
    assert request_of(version, {("a", 1): BOTH}) == request_of(version, {})
    assert not read_produce_request(request_of(version, {}), version).tags
    sealed = SealedSegment(7, 3, ())
    for each in (sealed, None):
        result = PartitionResult(4, ErrorCode.SEGMENT_SEALED, sealed=each)
        response = write_produce_response(version, [("a", [result])])
        assert read_produce_response(response, version).topics[0][1][0].sealed is None


@FLEXIBLE
@given(sealed=SEALED)
def test_a_refusal_of_a_sealed_segment_is_read_as_it_was_written(
    version: int, sealed: SealedSegment
) -> None:  # R2
    others = [PartitionResult(index, ErrorCode.NONE) for index in (0, 2)]
    result = PartitionResult(1, ErrorCode.SEGMENT_SEALED, error_message="é", sealed=sealed)
    response = write_produce_response(version, [("a", [others[0], result, others[1]])])
    assert read_produce_response(response, version).topics == [
        ("a", [others[0], result, others[1]])
    ]


def test_a_leader_is_still_named_beside_sealed_segments() -> None:
    leader = PartitionResult(
        0, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=CurrentLeader(1, 2)
    )
    sealed = PartitionResult(1, ErrorCode.SEGMENT_SEALED, sealed=SealedSegment(7, 3, ()))
    response = write_produce_response(10, [("a", [leader, sealed])])
    assert read_produce_response(response, 10).topics == [("a", [leader, sealed])]


@pytest.mark.parametrize("number", [10_000, 10_001])
def test_a_tag_that_is_too_short_is_refused(number: int) -> None:  # D3
    for size in range(4 if number == 10_000 else 12):
        out = bytearray()
        write_tags(out, [(number, bytearray(size))])
        with pytest.raises(WireError):
            read_append_tags(Reader(out))


def test_a_tag_of_a_later_version_may_be_longer_and_unknown_tags_are_skipped() -> None:
    out = bytearray()
    write_tags(
        out,
        [(3, bytearray(b"?")), (10_000, bytearray(b"\0\0\0\5more")), (20_000, bytearray(b"!"))],
    )
    assert read_append_tags(Reader(out)) == AppendTags(5)


def test_no_cut_of_the_tags_raises_anything_but_wire_errors() -> None:  # D3
    out = bytearray()
    write_append_tags(out, BOTH)
    for size in range(len(out)):
        with pytest.raises(WireError):
            read_append_tags(Reader(out[:size]))
    sealed = bytearray()
    write_sealed_tags(sealed, SealedSegment(7, 3, (Successor(1, 0, 5), Successor(2, 5, 9))))
    ((_, field),) = Reader(sealed).tags()
    content = bytes(field.data)
    assert read_sealed(Reader(content)).end_offset == 7
    for size in range(len(content)):
        with pytest.raises(WireError):
            read_sealed(Reader(content[:size]))


@given(st.binary(max_size=40))
def test_garbage_in_place_of_the_tags_raises_nothing_but_wire_errors(data: bytes) -> None:
    for read in (read_append_tags, read_sealed):
        try:
            read(Reader(data))
        except WireError:
            continue


def test_more_successors_than_there_are_bytes_are_refused() -> None:  # bounded
    field = bytearray(12) + b"\xff\xff\xff\xff\x07"
    with pytest.raises(WireError):
        read_sealed(Reader(field))
