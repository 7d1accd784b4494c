"""How a reader learns that its partition was replaced: leader epochs and topic ids."""

import asyncio

import pytest

from fencelog.errors import ErrorCode
from fencelog.types import TopicId
from fencelog.wire import hot
from fencelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from fencelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.node import FETCH, Peer, World, batch, until


async def end_of(
    peer: Peer, epoch: int, *, current: int = -1, partition: int = 0, version: int = 4
) -> tuple[ErrorCode, int, int]:
    asked = OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    topic = OffsetForLeaderTopic(topic="t", partitions=[asked])
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
    answer = await peer.ask(request, version, OffsetForLeaderEpochResponse)
    end = answer.topics[0].partitions[0]
    return ErrorCode(end.error_code), end.leader_epoch, end.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_a_reader_learns_where_the_epochs_end_that_it_has_seen(
    world: World, version: int
) -> None:  # F7
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.produce("t", batch("a", "b"))
        log = node.broker.logs.get("t", 0).log
        log.leader_epoch = 3
        await peer.produce("t", batch("c"))
        assert await end_of(peer, 0, version=version) == (ErrorCode.NONE, 0, 2)
        assert await end_of(peer, 3, version=version) == (ErrorCode.NONE, 3, 3)
        assert await end_of(peer, 4, version=version) == (ErrorCode.NONE, -1, -1)
        fenced = ErrorCode.FENCED_LEADER_EPOCH
        assert await end_of(peer, 0, current=2, version=version) == (fenced, -1, -1)
        unknown = ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await end_of(peer, 0, current=4, version=version) == (unknown, -1, -1)
        nowhere = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await end_of(peer, 0, partition=1, version=version) == (nowhere, -1, -1)


async def fetch_by_id(
    peer: Peer, topic_id: TopicId, *, max_wait_ms: int = 0, version: int = 13
) -> hot.FetchedPartition:
    asked = hot.FetchPartition(0, -1, 0, -1, 1 << 20)
    limits = (-1, max_wait_ms, 10_000, 1 << 20, 1, 0, -1)
    request = hot.FetchRequest(*limits, [hot.FetchTopic(None, topic_id, [asked])])
    peer.send(FETCH, version, hot.write_fetch_request(version, request))
    answer = hot.read_fetch_response(await peer.answer(FETCH, version), version)
    assert answer.topics[0].topic_id == topic_id
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", [13, 16])
async def test_a_topic_made_again_is_not_the_one_that_was_asked_for_by_id(
    world: World, version: int
) -> None:
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as reader:
        catalog, logs = node.broker.catalog, node.broker.logs
        await peer.create_topic("t")
        await peer.produce("t", batch("old"))
        old = catalog.get("t").topic_id
        assert (await fetch_by_id(peer, old, version=version)).error is ErrorCode.NONE
        waiting = asyncio.create_task(fetch_by_id(reader, old, max_wait_ms=9000, version=version))
        await until(lambda: logs.get("t", 0)._purgatory._readers, "the reader waits")
        await node.broker.controller.delete_topic(catalog.get("t"))
        await peer.create_topic("t")
        await peer.produce("t", batch("new"))
        assert (await waiting).error is ErrorCode.UNKNOWN_TOPIC_ID
        assert (await fetch_by_id(peer, old)).error is ErrorCode.UNKNOWN_TOPIC_ID
        assert (await fetch_by_id(peer, TopicId(bytes(16)))).error is ErrorCode.UNKNOWN_TOPIC_ID
        assert (await fetch_by_id(peer, catalog.get("t").topic_id)).records


@pytest.mark.parametrize("name", [None, ""])
async def test_a_topic_is_described_by_its_id_whether_its_name_is_null_or_empty(
    world: World, name: str | None
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        topic = node.broker.catalog.get("t")
        asked = MetadataRequestTopic(name=name, topic_id=topic.topic_id)
        answer = await peer.ask(MetadataRequest(topics=[asked]), 12, MetadataResponse)
        (found,) = answer.topics
        assert (found.error_code, found.name, found.topic_id) == (0, "t", topic.topic_id)
