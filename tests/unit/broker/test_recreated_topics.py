"""In a cluster a topic may have its next life while files of the one before are still here."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.types import TopicPartition
from fencelog.wire.hot import AppendTags
from fencelog_sim.world.metadata import SimStore
from tests.support.node import HeldDisk, Peer, batch, life_in_a_cluster, until
from tests.support.streams import create_stream


def only_broker() -> AbstractAsyncContextManager[Node]:
    """A cluster of one: the leader's acknowledgement is all there is."""
    return life_in_a_cluster(HeldDisk(), SimStore(), durability="fsync")


@pytest.mark.parametrize("kind", ["stream", "topic"])
async def test_nothing_is_stored_in_the_log_of_a_deleted_topic_under_the_name_of_the_next(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # E17, R1
    async with only_broker() as node, Peer.of(node) as peer, Peer.of(node) as other:

        async def create() -> None:
            if kind == "stream":
                await create_stream(other)
            else:
                await other.create_topic("s")

        def led() -> Partition | None:
            return node.logs.get("s", 0)

        await create()
        await until(lambda: led() is not None, "it is led")
        old = node.broker.catalog.get("s")
        assert old is not None
        held, present = asyncio.Event(), LogManager.present

        async def slow(logs: LogManager) -> set[TopicPartition]:
            await held.wait()  # a slow disk, or many partitions
            return await present(logs)

        monkeypatch.setattr(LogManager, "present", slow)
        await node.broker.controller.delete_topics([old])
        creating = asyncio.create_task(create())
        await until(lambda: node.broker.catalog.get("s") is not None, "it is created anew")
        new = node.broker.catalog.get("s")
        assert new is not None
        assert new.topic_id != old.topic_id
        tags = AppendTags(5, topic_id=new.topic_id) if kind == "stream" else AppendTags()
        records = batch("x", producer_id=7, epoch=0, sequence=0)
        refused = await peer.produce("s", records, tags=tags)
        assert refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "the next log is not open yet"
        held.set()
        await creating
        await until(lambda: led() is not None, "it is led")
        assert (await peer.produce("s", records, tags=tags)).base_offset == 0
        partition = led()
        assert partition is not None
        assert partition.log.log_end_offset == 1
