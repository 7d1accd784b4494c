"""What a client makes of a Kafka broker that is old, or limits it: what ours never answers."""

import struct

import pytest

from fencelog.client.blocking import Client
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import OWN_FROM, SUPPORTED, ApiKey
from fencelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from fencelog.wire.messages.metadata import MetadataResponse
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.test_reading import PLACE, fetched, numbered

OLDEST_LIST = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
NOTHING = OLDEST_LIST + struct.pack(">i", 0)
ONLY_ITSELF = OLDEST_LIST + struct.pack(">ihhh", 1, ApiKey.API_VERSIONS, 0, 2)


def versions_of_kafka() -> ApiVersionsResponse:
    """What a broker answers that knows the requests of Kafka and none of ours."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in SUPPORTED.items()
            if key < OWN_FROM
        ]
    )


@pytest.mark.parametrize("refusal", [NOTHING, ONLY_ITSELF], ids=["before 2.4", "KIP-511"])
def test_an_older_broker_is_asked_once_more_for_what_it_speaks(refusal: bytes) -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.API_VERSIONS, refusal)
        assert client.partitions(["t"]) == {"t": [0]}
        assert broker.asked == [ApiKey.API_VERSIONS, ApiKey.API_VERSIONS, ApiKey.METADATA]


def test_a_request_is_of_the_newest_version_that_both_know() -> None:
    newest = SUPPORTED[ApiKey.METADATA][1]
    versions: list[int] = []
    with FakeBroker() as broker, Client(broker.address) as client:
        known = versions_of_kafka()
        for each in known.api_keys:
            each.max_version -= each.api_key == ApiKey.METADATA
        broker.next(ApiKey.API_VERSIONS, known)

        def answer(version: int, _: memoryview) -> MetadataResponse:
            versions.append(version)
            found = broker._metadata()
            found.brokers[0].rack = "r1"
            return found

        broker.script[ApiKey.METADATA] += [answer] * 9
        assert [each.rack for each in client.cluster().brokers] == ["r1"]
    assert set(versions) == {newest - 1}


def test_a_replica_that_is_not_found_says_why() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        (found,) = client.replica_ends(TopicPartition("t", 0), [7])
    assert (found.broker, found.log_end_offset) == (7, None)
    assert "broker 7 is not live" in str(found.problem)


def test_a_fetch_over_the_quota_is_repeated() -> None:
    throttled = b"".join([struct.pack(">i", 500), struct.pack(">hi", 0, 0), b"\x01\x00"])
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.FETCH, throttled, fetched(numbered(0, 2)))
        assert [each.value for each in client.fetch(PLACE, 0, 2)] == [b"0", b"1"]
        # On the same connection: on a new one the broker would not know who it limits.
        assert broker.asked.count(ApiKey.API_VERSIONS) == 2


def test_the_end_of_the_log_can_not_be_read_where_only_kafka_s_levels_are_known() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        broker.next(ApiKey.API_VERSIONS, versions_of_kafka())
        with pytest.raises(RequestError, match=r"isolation level tail .* not fencelog") as refused:
            client.offsets([TopicPartition("t", 0)], "latest", "tail")
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert ApiKey.LIST_OFFSETS not in broker.asked
        broker.next(ApiKey.API_VERSIONS, versions_of_kafka())
        with pytest.raises(RequestError, match="isolation level tail"):
            list(client.fetch(PLACE, 0, 2, isolation="tail"))
        assert ApiKey.FETCH not in broker.asked
