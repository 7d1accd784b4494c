"""Produce and Fetch by hand, held against the generated messages (and so against kafka-python)."""

import contextlib
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelog.errors import ErrorCode, WireError
from fencelog.types import Buffer
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.hot import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionResult,
    fetch,
    read_fetch_request,
    read_fetch_response,
    read_produce_request,
    read_produce_response,
    write_fetch_request,
    write_fetch_response,
    write_produce_request,
    write_produce_response,
)
from fencelog.wire.hot import produce as produce_codec
from tests.unit.wire.message_values import Kind, generated

fetch_messages = generated["Fetch"]
produce_messages = generated["Produce"]

PRODUCE_VERSIONS = pytest.mark.parametrize("version", range(3, 13))
FETCH_VERSIONS = pytest.mark.parametrize("version", range(4, 17))
EXAMPLES = 20
TOPIC_ID = bytes(range(16))


def joined(buffers: Sequence[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


@PRODUCE_VERSIONS
def test_a_produce_request_is_read_as_the_generated_message_reads_it(version: int) -> None:
    for example in Kind("ProduceRequest").examples(version, EXAMPLES):
        assert isinstance(example, produce_messages.ProduceRequest)
        read = read_produce_request(example.write(version), version)
        assert read.transactional_id == example.transactional_id
        assert (read.acks, read.timeout_ms) == (example.acks, example.timeout_ms)
        assert read.topics == [
            (topic.name, [(one.index, one.records) for one in topic.partition_data])
            for topic in example.topic_data
        ]


def _outcome(body: Buffer) -> object:
    try:
        return read_produce_request(body, 9)
    except WireError as error:
        return str(error)


@pytest.mark.parametrize("size", [0, 126, 127, 16_382, 16_383, 2_097_150, 2_097_151])
@pytest.mark.parametrize("name", ["", "ö", "n" * 126, "n" * 127])
@pytest.mark.parametrize("transactional_id", [None, "", "i" * 126, "i" * 127])
def test_the_common_request_is_read_in_one_pass_as_any_other(
    size: int, name: str, transactional_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [(name, [(7, bytes(size))])]
    body = joined(write_produce_request(9, transactional_id, -1, 30_000, topics))
    read = read_produce_request(body, 9)
    assert read == (transactional_id, -1, 30_000, topics, {})
    is_common = produce_codec._read_common(memoryview(body)) is not None
    assert is_common == (len(name.encode()) < 127 and len(transactional_id or "") < 127)
    monkeypatch.setattr(produce_codec, "_read_common", lambda _: None)
    assert read_produce_request(body, 9) == read


def test_whatever_changes_in_the_common_request_it_is_read_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, long_record = (bytes([byte]) * size for byte, size in ((1, 5), (2, 130)))
    bodies = [
        joined(write_produce_request(9, transactional_id, 1, 2, topics))
        for transactional_id, topics in (
            (None, [("t", [(0, record)])]),
            ("id", [("tö", [(0, long_record)])]),
            (None, [("t", [(0, record), (1, record)])]),
            (None, [("t", [(0, record)]), ("u", [(0, record)])]),
            (None, []),
            (None, [("t", [])]),
        )
    ]
    changed = [body[:size] for body in bodies for size in range(len(body))]
    for body in bodies:
        for position, byte in product(range(len(body)), (0, 1, 2, 3, 0x7F, 0x80, 0x82, 0xFF)):
            changed.append(body[:position] + bytes([byte]) + body[position + 1 :])
            changed.append(body[:position] + bytes([byte]) + body[position:])
    outcomes = [_outcome(body) for body in changed]
    monkeypatch.setattr(produce_codec, "_read_common", lambda _: None)
    assert outcomes == [_outcome(body) for body in changed]


@PRODUCE_VERSIONS
def test_a_produce_request_is_written_as_the_generated_message_writes_it(version: int) -> None:
    message = produce_messages.ProduceRequest(
        transactional_id="id",
        acks=-1,
        timeout_ms=30000,
        topic_data=[
            produce_messages.TopicProduceData(
                name=name,
                partition_data=[
                    produce_messages.PartitionProduceData(index=0, records=b"abc"),
                    produce_messages.PartitionProduceData(index=9, records=b"x" * 300),
                ],
            )
            for name in ("a", "b")
        ],
    )
    parts: list[tuple[int, Buffer]] = [(0, b"abc"), (9, b"x" * 300)]
    topics = [("a", parts), ("b", parts)]
    written = write_produce_request(version, "id", -1, 30000, topics)
    assert joined(written) == message.write(version)


@pytest.mark.parametrize("version", range(3))
def test_an_ancient_produce_request_is_read_so_that_it_can_be_refused(version: int) -> None:
    body = joined(write_produce_request(version, None, 1, 500, [("t", [(0, b"message set")])]))
    read = read_produce_request(body, version)
    assert (read.acks, read.topics) == (1, [("t", [(0, b"message set")])])
    results = [("t", [PartitionResult(0, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)])]
    response = write_produce_response(version, results)
    assert read_produce_response(response, version) == (results, 0, ())


@pytest.mark.parametrize("version", range(13))
def test_a_produce_response_is_read_back(version: int) -> None:
    result = PartitionResult(
        3,
        ErrorCode.INVALID_RECORD,
        17,
        log_append_time_ms=5000 if version >= 2 else -1,
        log_start_offset=4 if version >= 5 else -1,
        error_message="batch without records" if version >= 8 else None,
    )
    results = [("orders", [result, PartitionResult(4, ErrorCode.NONE, 8)]), ("other", [])]
    throttle_time_ms = 12 if version >= 1 else 0
    written = write_produce_response(version, results, throttle_time_ms)
    assert read_produce_response(written, version) == (results, throttle_time_ms, ())


@PRODUCE_VERSIONS
def test_a_produce_response_is_written_as_the_generated_message_writes_it(version: int) -> None:
    message = produce_messages.ProduceResponse(
        throttle_time_ms=9,
        responses=[
            produce_messages.TopicProduceResponse(
                name="orders",
                partition_responses=[
                    produce_messages.PartitionProduceResponse(
                        index=1,
                        error_code=ErrorCode.INVALID_PRODUCER_EPOCH,
                        base_offset=5,
                        log_append_time_ms=6,
                        log_start_offset=7,
                        error_message="fenced",
                    )
                ],
            )
        ],
    )
    result = PartitionResult(1, ErrorCode.INVALID_PRODUCER_EPOCH, 5, 6, 7, "fenced")
    written = write_produce_response(version, [("orders", [result])], 9)
    assert written == message.write(version)


@PRODUCE_VERSIONS
def test_any_produce_response_is_read(version: int) -> None:
    for example in Kind("ProduceResponse").examples(version, EXAMPLES):
        assert isinstance(example, produce_messages.ProduceResponse)
        topics, throttle_time_ms, _ = read_produce_response(example.write(version), version)
        assert throttle_time_ms == example.throttle_time_ms
        assert [
            (name, [(one.partition, one.base_offset, one.error_message) for one in results])
            for name, results in topics
        ] == [
            (
                topic.name,
                [
                    (one.index, one.base_offset, one.error_message)
                    for one in topic.partition_responses
                ],
            )
            for topic in example.responses
        ]


@FETCH_VERSIONS
def test_a_fetch_request_is_read_as_the_generated_message_reads_it(version: int) -> None:
    by_id = version >= fetch.TOPIC_IDS_FROM
    for example in Kind("FetchRequest").examples(version, EXAMPLES):
        assert isinstance(example, fetch_messages.FetchRequest)
        replica = example.replica_state if version >= 15 else example
        assert read_fetch_request(example.write(version), version) == FetchRequest(
            replica.replica_id,
            example.max_wait_ms,
            example.min_bytes,
            example.max_bytes,
            example.isolation_level,
            example.session_id,
            example.session_epoch,
            [
                FetchTopic(
                    None if by_id else topic.topic,
                    topic.topic_id if by_id else None,
                    [
                        FetchPartition(
                            one.partition,
                            one.current_leader_epoch,
                            one.fetch_offset,
                            one.log_start_offset,
                            one.partition_max_bytes,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in example.topics
            ],
            tuple(
                ForgottenTopic(
                    None if by_id else topic.topic,
                    topic.topic_id if by_id else None,
                    tuple(topic.partitions),
                )
                for topic in (example.forgotten_topics_data if version >= 7 else ())
            ),
        )


@FETCH_VERSIONS
def test_a_fetch_request_is_written_as_the_generated_message_writes_it(version: int) -> None:
    asked = fetch_messages.FetchPartition(
        partition=2, current_leader_epoch=3, fetch_offset=40, partition_max_bytes=1000
    )
    message = fetch_messages.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=2,
        session_id=9 if version >= 7 else 0,
        session_epoch=4 if version >= 7 else -1,
        topics=[
            fetch_messages.FetchTopic(topic="orders", topic_id=TOPIC_ID, partitions=[asked] * 2)
        ],
        forgotten_topics_data=[
            fetch_messages.ForgottenTopic(topic="old", topic_id=TOPIC_ID, partitions=[1, 5])
        ]
        if version >= 7
        else [],
    )
    topic = FetchTopic("orders", TOPIC_ID, [FetchPartition(2, 3, 40, -1, 1000)] * 2)
    forgotten = (ForgottenTopic("old", TOPIC_ID, (1, 5)),) if version >= 7 else ()
    session = (9, 4) if version >= 7 else (0, -1)
    request = FetchRequest(-1, 500, 1, 1 << 20, 2, *session, [topic], forgotten)
    assert write_fetch_request(version, request) == message.write(version)


RECORDS = (b"first batch", memoryview(b"second batch"))


@FETCH_VERSIONS
def test_a_fetch_response_is_written_as_the_generated_message_writes_it(version: int) -> None:
    message = fetch_messages.FetchResponse(
        throttle_time_ms=9,
        error_code=ErrorCode.NONE,
        session_id=77,
        responses=[
            fetch_messages.FetchableTopicResponse(
                topic="orders",
                topic_id=TOPIC_ID,
                partitions=[
                    fetch_messages.PartitionData(
                        partition_index=1,
                        high_watermark=10,
                        last_stable_offset=8,
                        log_start_offset=2,
                        aborted_transactions=[
                            fetch_messages.AbortedTransaction(producer_id=5, first_offset=6)
                        ],
                        records=joined(RECORDS),
                    ),
                    fetch_messages.PartitionData(
                        partition_index=2,
                        error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
                        high_watermark=-1,
                        aborted_transactions=None,
                    ),
                ],
            )
        ],
    )
    partitions = [
        FetchedPartition(1, ErrorCode.NONE, 10, 8, 2, [(5, 6)], RECORDS),
        FetchedPartition(2, ErrorCode.OFFSET_OUT_OF_RANGE),
    ]
    topics = [FetchedTopic("orders", TOPIC_ID, partitions)]
    written = write_fetch_response(version, ErrorCode.NONE, 77, topics, 9)
    assert joined(written) == message.write(version)


@FETCH_VERSIONS
def test_any_fetch_response_is_read(version: int) -> None:
    for example in Kind("FetchResponse").examples(version, EXAMPLES):
        assert isinstance(example, fetch_messages.FetchResponse)
        read = read_fetch_response(example.write(version), version)
        assert read.session_id == example.session_id
        assert [
            (
                one.partition,
                one.high_watermark,
                one.log_start_offset,
                one.aborted,
                joined(one.records),
            )
            for topic in read.topics
            for one in topic.partitions
        ] == [
            (
                one.partition_index,
                one.high_watermark,
                one.log_start_offset,
                None
                if one.aborted_transactions is None
                else [(each.producer_id, each.first_offset) for each in one.aborted_transactions],
                bytes(one.records or b""),
            )
            for topic in example.responses
            for one in topic.partitions
        ]


def test_records_pass_through_a_fetch_response_uncopied() -> None:
    batch = bytearray(b"records")
    topic = FetchedTopic("t", None, [FetchedPartition(0, ErrorCode.NONE, records=(batch,))])
    parts = write_fetch_response(12, ErrorCode.NONE, 0, [topic])
    assert any(part is batch for part in parts)


def test_records_are_views_of_the_frame_they_came_in() -> None:
    body = bytearray(joined(write_produce_request(9, None, -1, 1, [("t", [(0, b"records")])])))
    (_, [(_, records)]) = read_produce_request(body, 9).topics[0]
    assert isinstance(records, memoryview)
    assert records.obj is body


@FETCH_VERSIONS
def test_a_partition_without_records_is_answered_with_empty_records_not_with_null(
    version: int,
) -> None:
    topic = FetchedTopic("t", TOPIC_ID, [FetchedPartition(0, ErrorCode.NONE)])
    written = joined(write_fetch_response(version, ErrorCode.NONE, 0, [topic]))
    message = fetch_messages.FetchResponse.read(written, version)
    assert message.responses[0].partitions[0].records == b""


READERS: list[tuple[str, Callable[[Buffer, int], object], int]] = [
    *(("ProduceRequest", read_produce_request, version) for version in range(3, 13)),
    *(("ProduceResponse", read_produce_response, version) for version in range(3, 13)),
    *(("FetchRequest", read_fetch_request, version) for version in range(4, 17)),
    *(("FetchResponse", read_fetch_response, version) for version in range(4, 17)),
]


@pytest.mark.parametrize(("name", "read", "version"), READERS)
def test_every_truncation_is_a_wire_error_and_surplus_bytes_are_ignored(
    name: str, read: Callable[[Buffer, int], object], version: int
) -> None:
    for example in Kind(name).examples(version, 3):
        data = example.write(version)
        for size in range(len(data)):
            with pytest.raises(WireError):
                read(data[:size], version)
        assert read(data + b"\1\0", version) == read(data, version)


@pytest.mark.parametrize(("name", "read", "version"), READERS)
def test_any_changed_byte_gives_a_message_or_a_wire_error(
    name: str, read: Callable[[Buffer, int], object], version: int
) -> None:
    data = Kind(name).examples(version, 2)[1].write(version)
    for position, byte in product(range(min(len(data), 300)), (0x00, 0x7F, 0x80, 0xFF)):
        with contextlib.suppress(WireError):
            read(data[:position] + bytes([byte]) + data[position + 1 :], version)


@settings(deadline=None)
@given(st.binary(max_size=100), st.sampled_from(READERS))
def test_any_bytes_give_a_message_or_a_wire_error(
    data: bytes, reader: tuple[str, Callable[[Buffer, int], object], int]
) -> None:
    _, read, version = reader
    with contextlib.suppress(WireError):
        read(data, version)


@pytest.mark.parametrize(
    ("read", "version", "data"),
    [
        (read_produce_request, 3, b"\xff\xff" + bytes(6) + b"\x7f\xff\xff\xff"),
        (read_produce_request, 9, b"\x00" + bytes(6) + b"\xff\xff\xff\xff\x0f"),
        (read_fetch_request, 4, bytes(17) + b"\x7f\xff\xff\xff"),
        (read_fetch_request, 12, bytes(25) + b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_two_billion_topics_in_a_small_frame_allocate_nothing(
    read: Callable[[Buffer, int], object],
    version: int,
    data: bytes,
    peak_of: Callable[[Callable[[], object]], int],
) -> None:
    def refused() -> None:
        with pytest.raises(WireError):
            read(data, version)

    assert peak_of(refused) < 100_000


def test_the_versions_by_hand_are_those_advertised() -> None:
    assert SUPPORTED[ApiKey.PRODUCE].maximum <= 12
    assert SUPPORTED[ApiKey.FETCH].minimum >= 4
    assert SUPPORTED[ApiKey.FETCH].maximum <= 16
