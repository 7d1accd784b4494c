"""Produce and Fetch responses that name leaders, held against the generated messages (KIP-951)."""

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire.hot import (
    CurrentLeader,
    FetchedPartition,
    FetchedTopic,
    NodeEndpoint,
    PartitionResult,
    read_fetch_response,
    read_produce_response,
    write_fetch_response,
    write_produce_response,
)
from tests.unit.wire.test_hot import TOPIC_ID, fetch_messages, joined, produce_messages


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_produce_response_names_leaders_as_the_generated_message_does(version: int) -> None:
    """KIP-951."""
    message = produce_messages.ProduceResponse(
        throttle_time_ms=0,
        responses=[
            produce_messages.TopicProduceResponse(
                name="orders",
                partition_responses=[
                    produce_messages.PartitionProduceResponse(
                        index=1,
                        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                        base_offset=-1,
                        error_message=None,
                        current_leader=produce_messages.LeaderIdAndEpoch(
                            leader_id=2, leader_epoch=9
                        ),
                    )
                ],
            )
        ],
        node_endpoints=[
            produce_messages.NodeEndpoint(node_id=2, host="broker-2", port=9092, rack="r")
        ],
    )
    leader, endpoint = CurrentLeader(2, 9), NodeEndpoint(2, "broker-2", 9092, "r")
    result = PartitionResult(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)
    written = write_produce_response(version, [("orders", [result])], endpoints=[endpoint])
    assert written == message.write(version)
    read = read_produce_response(written, version)
    assert (read.topics, read.endpoints) == ([("orders", [result])], (endpoint,))


@pytest.mark.parametrize("version", [12, 15, 16])
def test_a_fetch_response_names_leaders_as_the_generated_message_does(version: int) -> None:
    """KIP-951."""
    named = {"topic": "t"} if version < 13 else {"topic_id": TOPIC_ID}
    endpoints = [fetch_messages.NodeEndpoint(node_id=2, host="broker-2", port=9092, rack=None)]
    message = fetch_messages.FetchResponse(
        responses=[
            fetch_messages.FetchableTopicResponse(
                **named,
                partitions=[
                    fetch_messages.PartitionData(
                        partition_index=1,
                        error_code=ErrorCode.FENCED_LEADER_EPOCH,
                        high_watermark=-1,
                        last_stable_offset=-1,
                        log_start_offset=-1,
                        aborted_transactions=None,
                        records=b"",
                        current_leader=fetch_messages.LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
                    )
                ],
            )
        ],
        node_endpoints=endpoints if version >= 16 else [],
    )
    leader, endpoint = CurrentLeader(2, 9), NodeEndpoint(2, "broker-2", 9092, None)
    fetched = FetchedPartition(1, ErrorCode.FENCED_LEADER_EPOCH, current_leader=leader)
    topic = FetchedTopic(named.get("topic"), named.get("topic_id"), [fetched])
    written = joined(
        write_fetch_response(version, ErrorCode.NONE, 0, [topic], endpoints=[endpoint])
    )
    assert written == message.write(version)
    read = read_fetch_response(written, version)
    assert (read.topics, read.endpoints) == ([topic], (endpoint,) if version >= 16 else ())
