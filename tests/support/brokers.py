"""A node that takes requests of other brokers, and what such a broker has to ask it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fencelog.adapters.system_clock import SystemRandom
from fencelog.broker.coordinators.cluster_leaders import ClusterLeaders
from fencelog.broker.coordinators.leaders import LocalLeaders
from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.handlers.peers import broker_handlers
from fencelog.broker.handlers.table import handlers
from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.network.connection import Connection
from fencelog.broker.peers.identity import Identity
from fencelog.broker.peers.incoming import IncomingPeers
from fencelog.broker.peers.outgoing import OutgoingPeers
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.types import LeaderEpoch, NodeId, TopicId
from tests.support.node import Peer
from tests.support.transactions import Producer

HERE, THERE = NodeId(1), NodeId(2)
"""The broker that asks, and the node that is asked."""
SECRET = bytes(range(32))
ASKING = Identity("the-cluster", HERE, "life-of-1", SECRET)
ASKED = Identity("the-cluster", THERE, "life-of-2", SECRET)


class FakePlacement:
    """Every partition is led by one broker, in epoch 0, unless a test says otherwise."""

    def __init__(self, node_id: NodeId, leader: NodeId, brokers: Sequence[Registration]) -> None:
        self.node_id = node_id
        self.controller_id = leader
        self.leader = leader
        self.states: dict[tuple[TopicId, int], PartitionState | None] = {}
        self._brokers = brokers

    def brokers(self) -> Sequence[Registration]:
        return self._brokers

    def broker(self, node_id: NodeId) -> Registration | None:
        return next((each for each in self._brokers if each.node_id == node_id), None)

    def partition(self, topic_id: TopicId, index: int) -> PartitionState | None:
        state = PartitionState((self.leader,), self.leader, LeaderEpoch(0), (self.leader,))
        return self.states.get((topic_id, index), state)


class Target:
    """A node that is asked, and the broker that asks."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.registered: dict[NodeId, str] = {}
        """The lives that the asked broker knows of, by number."""
        self.incoming = IncomingPeers(ASKED, SystemRandom(), self.registered.get)
        self.gone: list[Registration] = []
        local = node.broker.leaders
        assert isinstance(local, LocalLeaders)
        self.local = local
        node.server._dispatch = Dispatcher(  # type: ignore[assignment]
            node.broker, handlers(), broker_handlers(self.incoming, local)
        )
        closed = node.server.on_closed

        def both(connection: Connection) -> None:
            self.incoming.closed(connection)
            closed(connection)

        node.server.on_closed = both
        host, port = node.address
        self.registration = Registration(
            node_id=THERE, host=host, port=port, incarnation=ASKED.incarnation, directory="d"
        )
        self.placement = FakePlacement(HERE, THERE, [self.registration])

    def opener(self, identity: Identity = ASKING) -> OutgoingPeers:
        async def gone(registration: Registration) -> None:
            self.gone.append(registration)

        peers = OutgoingPeers(identity, SystemRandom(), gone)
        peers.update([self.registration])
        return peers

    def leaders(self, peers: OutgoingPeers) -> ClusterLeaders:
        catalog, store = self.node.broker.catalog, self.node._ports.metadata
        return ClusterLeaders(self.local, peers, catalog, self.placement, store)


@asynccontextmanager
async def remote_leaders(node: Node) -> AsyncIterator[tuple[Target, ClusterLeaders]]:
    """The leaders of a broker that leads nothing: all is asked of the node, over a socket."""
    target = Target(node)
    peers = target.opener()
    leaders = target.leaders(peers)
    try:
        yield target, leaders
    finally:
        await leaders.stop()
        peers.close()


async def begun(peer: Peer) -> Producer:
    """A version 1 producer with one record in an open transaction on ``t-0``."""
    await peer.create_topic("t", partitions=2)
    producer = Producer(peer)
    assert await producer.init() is ErrorCode.NONE
    assert await producer.add("t", 0) is ErrorCode.NONE
    assert await producer.produce("t", "a") is ErrorCode.NONE
    return producer


def topic_of(node: Node, name: str = "t") -> Topic:
    found = node.broker.catalog.get(name)
    assert found is not None
    return found
