"""A power cut of all brokers has taken a coordinator's records, and an operator elects it (E7)."""

from functools import partial
from pathlib import Path

import pytest

from fencelog.broker.metadata.placement import ElectionType
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.types import NodeId
from fencelog_sim.world.metadata import SimStore
from tests.support.node import Peer, World, life_in_a_cluster, until, visible
from tests.support.transactions import Producer, settled
from tests.support.version_2 import Producer2
from tests.unit.broker.test_stale_coordinators import cut_power, remember

broker = partial(
    life_in_a_cluster, durability="os", checkpoint_interval_s=3600.0, internal_partitions=1
)


async def elected(node: Node) -> None:
    """``fencelog partition elect ... --yes`` of each partition that has no leader."""
    elections = node.broker.elections
    assert elections is not None
    for topic in node.broker.catalog.topics():
        for index in range(topic.partitions):
            if node.logs.get(topic.name, index) is None:
                await elections.elect(
                    topic.topic_id, index, ElectionType.UNCLEAN, NodeId(node.config.node_id)
                )
            await until(partial(node.logs.get, topic.name, index), "it is led")


@pytest.mark.parametrize("version", [1, 2])
async def test_no_new_record_passes_for_one_of_a_transaction_that_the_coordinator_lost(
    tmp_path: Path, version: int
) -> None:  # E4, E7
    world, store = World(tmp_path), SimStore()
    async with broker(world.disk, store, "boot 1", crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        await node.flusher.drained()
        remembered = await remember(world)
        await producer.init()
        await producer.add("t", 0)
        assert await producer.produce("t", "before") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        await node.flusher.drained()
        assert remembered
    cut_power(world, remembered)
    async with broker(world.disk, store, "boot 2", crash=False) as node, Peer.of(node) as peer:
        await elected(node)
        producer = Producer(peer) if version == 1 else Producer2(peer)
        assert await producer.init() is ErrorCode.NONE
        if version == 1:
            await producer.add("t", 0)
        told = await producer.produce("t", "after")
        assert told is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert [value for _, value in visible(await peer.fetch("t"))] == ["before", "after"]
        # Once only: what is loaded again keeps its producer ids.
        await until(
            lambda: not any(key.startswith("unclean/") for key in store.values), "it is told"
        )
        known = producer.producer_id
        node.transactions.resign(0)
        node.transactions.lead(0)
        assert await producer.init() is ErrorCode.NONE
        assert producer.producer_id == known
