"""What a reader does with odd answers, and that the next fetch is under way while it decodes."""

import pytest

from fencelog.client import reader
from fencelog.client.blocking import Client
from fencelog.client.model import DataLossError
from fencelog.errors import ErrorCode, RequestError, WireError
from fencelog.types import NO_TOPIC_ID, TopicId, TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import (
    FetchedPartition,
    FetchedTopic,
    read_fetch_request,
    write_fetch_response,
)
from fencelog.wire.hot.fetch import TOPIC_IDS_FROM
from fencelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.support.waiting import wait_until
from tests.unit.client.batches_of import batch, record
from tests.unit.client.fake_broker import FakeBroker

PLACE = TopicPartition("t", 0)
FETCH_VERSION = 12
FAKE_ID = NO_TOPIC_ID
"""The id of the fake broker's topic."""


def fetched(
    *records: bytes,
    error: ErrorCode = ErrorCode.NONE,
    topic_id: TopicId | None = None,
    partition: int = 0,
) -> bytes:
    """A fetch response with these bytes."""
    found = FetchedPartition(partition, error, 100, 100, 0, [], records)
    topics = [FetchedTopic("t", topic_id, [found])]
    version = FETCH_VERSION if topic_id is None else TOPIC_IDS_FROM
    return b"".join(
        bytes(part) for part in write_fetch_response(version, ErrorCode.NONE, 0, topics)
    )


def offset_is(offset: int) -> ListOffsetsResponse:
    partitions = [ListOffsetsPartitionResponse(partition_index=0, offset=offset)]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])


def numbered(first: int, count: int) -> bytes:
    return batch([record(b"%d" % n) for n in range(first, first + count)], base_offset=first)


def test_the_next_fetch_is_under_way_while_a_chunk_is_used() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(numbered(0, 2)), fetched(numbered(2, 2)))
        batches = client.fetch_arrow(PLACE, 0, 4)
        assert next(batches).num_rows == 2
        wait_until(lambda: broker.asked.count(ApiKey.FETCH) == 2, what="the second fetch")
        assert [found.num_rows for found in batches] == [2]


def test_nothing_is_fetched_beyond_the_end() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(numbered(0, 5)))
        assert [r.value for r in client.fetch(PLACE, 1, 3)] == [b"1", b"2"]
        assert broker.asked.count(ApiKey.FETCH) == 1


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"\xff" * 30,
        fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        fetched(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        fetched(error=ErrorCode.OFFSET_NOT_AVAILABLE),
        fetched(),
    ],
)
def test_a_fetch_that_brought_nothing_is_repeated(answer: bytes | None) -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, answer, fetched(numbered(0, 2)))
        assert [r.value for r in client.fetch(PLACE, 0, 2)] == [b"0", b"1"]


@pytest.mark.parametrize(
    "error", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.NONE]
)
def test_a_topic_is_fetched_by_its_id_until_a_new_leader_knows_it(error: ErrorCode) -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        answers = [fetched(error=error, topic_id=FAKE_ID)] if error else []
        broker.next(ApiKey.FETCH, *answers, fetched(numbered(0, 2), topic_id=FAKE_ID))
        (batch,) = client.fetch_arrow(PLACE, 0, 2, topic_id=FAKE_ID)
        assert batch.num_rows == 2


def test_a_topic_with_another_id_is_a_loss() -> None:  # S9
    wanted = TopicId(bytes([1] * 16))
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(error=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=wanted))
        with pytest.raises(DataLossError, match="t-0: the topic was deleted and created again"):
            list(client.fetch_arrow(PLACE, 0, 2, topic_id=wanted))


def test_a_partition_that_was_added_is_found_with_fresh_metadata() -> None:
    added = TopicPartition("t", 1)
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(numbered(0, 1)), fetched(numbered(0, 2), partition=1))
        assert len(list(client.fetch(PLACE, 0, 1))) == 1
        broker.topics["t"] = 2
        assert len(list(client.fetch(added, 0, 2))) == 2
        with pytest.raises(RequestError, match="topic t has no partition 2"):
            list(client.fetch(TopicPartition("t", 2), 0, 2))


def test_a_leader_that_does_not_know_the_partition_is_asked_once_more() -> None:
    unknown = offset_is(-1)
    unknown.topics[0].partitions[0].error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.LIST_OFFSETS, unknown, offset_is(7), unknown, unknown)
        assert client.offsets([PLACE], "latest") == {PLACE: 7}
        with pytest.raises(RequestError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            client.offsets([PLACE], "latest")


def test_a_batch_larger_than_the_fetch_is_fetched_with_a_larger_limit() -> None:
    sizes: list[int] = []

    def answer(version: int, body: memoryview) -> bytes:
        asked = read_fetch_request(body, version).topics[0].partitions[0]
        sizes.append(asked.partition_max_bytes)
        return fetched(numbered(0, 3)[: asked.partition_max_bytes])

    with FakeBroker() as broker, Client(broker.address) as client:
        broker.script[ApiKey.FETCH] = [answer] * 10
        assert len(list(client.fetch(PLACE, 0, 3, max_bytes=20))) == 3
    assert sizes == [20, 40, 80, 160]


def test_a_batch_that_is_never_whole_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES_MAX", 64)
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, *[fetched(numbered(0, 3)[:30])] * 10)
        with pytest.raises(WireError, match="t-0: no whole record batch"):
            list(client.fetch(PLACE, 0, 3, max_bytes=20))


def test_damaged_records_are_named_by_partition_and_offset() -> None:
    damaged = bytearray(numbered(7, 1))
    damaged[-1] ^= 1
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(bytes(damaged)))
        with pytest.raises(WireError, match=r"t-0 .* offset 7 has a wrong CRC"):
            list(client.fetch_arrow(PLACE, 0, 10))


def test_records_before_the_requested_offset_cause_no_endless_fetch() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(numbered(0, 3)))
        with pytest.raises(WireError, match="only records below it, up to 3"):
            list(client.fetch(PLACE, 5, 10))


def test_an_offset_below_the_log_start_is_a_loss_that_says_where_the_log_begins() -> None:  # S6
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
        broker.next(ApiKey.LIST_OFFSETS, offset_is(30))
        with pytest.raises(DataLossError, match="now begins at offset 30; offset 5"):
            list(client.fetch(PLACE, 5, 40))


def test_a_gap_of_markers_and_aborted_records_is_no_loss() -> None:  # S6
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(numbered(20, 2)))
        assert [r.offset for r in client.fetch(PLACE, 0, 22)] == [20, 21]


def test_another_refusal_of_a_fetch_is_final_and_named() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, fetched(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(RequestError, match="fetch of t-0 at offset 0") as caught:
            list(client.fetch(PLACE, 0, 1))
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
