"""A node with data of every kind, started again and again on the same disk."""

from typing import Any

import pytest

from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig
from fencelog.broker.observer import Observer
from fencelog.errors import ErrorCode
from fencelog.node import Node, Ports
from fencelog.storage.partition_store import PartitionStore
from fencelog_sim.world.metadata import SimMetadata
from tests.support.groups import Member
from tests.support.node import HeldDisk, Peer, batch, visible
from tests.support.transactions import Producer, settled

RECORDS = [(0, "plain"), (1, "committed")]


async def fill(node: Node) -> None:
    """Records, a committed transaction, an open one, and a group's offset."""
    async with Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.create_topic("u", partitions=3)
        assert (await peer.produce("t", batch("plain"))).error is ErrorCode.NONE
        producer = Producer(peer)
        assert await producer.init() is ErrorCode.NONE
        assert await producer.add("t", 0) is ErrorCode.NONE
        assert await producer.produce("t", "committed") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert await producer.add("t", 0) is ErrorCode.NONE
        assert await producer.produce("t", "open") is ErrorCode.NONE
        assert await Member(peer).commit(1) is ErrorCode.NONE


async def check(node: Node) -> None:
    """It serves what ``fill`` wrote."""
    async with Peer.of(node) as peer:
        assert visible(await peer.fetch("t")) == RECORDS
        log = node.logs.partitions()
        assert {each.name.topic for each in log} >= {"t", "u", "__transaction_state"}
        assert not node.logs.offline()
        assert (await peer.produce("u", batch("more"))).error is ErrorCode.NONE


class Twin:
    """A node on a simulated disk, filled and cleanly stopped, to be started many times."""

    def __init__(self) -> None:
        self.disk = HeldDisk()
        self.metadata = SimMetadata()

    def node(self, *, observer: Observer | None = None, **settings: Any) -> Node:
        ports = Ports(
            disk=self.disk,
            metadata=self.metadata,
            clock=SystemClock(),
            random=SystemRandom(),
        )
        config = BrokerConfig(data_dir="memory", port=0, internal_partitions=2, **settings)
        return Node(config, ports, observer=observer)

    async def serves(self) -> None:
        """A start that nothing disturbs, with all its data."""
        node = self.node()
        await node.start()
        await check(node)
        await node.stop()


class Spy:
    """Notes whether partitions were opened as cleanly stopped ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clean: list[bool] = []
        original = PartitionStore.recover

        async def recover(*args: Any, **how: Any) -> Any:
            self.clean.append(how["clean"] is not None)
            return await original(*args, **how)

        monkeypatch.setattr(PartitionStore, "recover", recover)
