"""Which connections are other brokers', proven by the cluster's secret; newer close older ones.

A request that was sent on an abandoned connection may still be on its way when the same request,
sent again, is done and what follows has begun. So the opener numbers its connections, and before a
new one serves a request, the older ones of its lane are closed and what has arrived there dropped.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from fencelog.broker.network.connection import Connection
from fencelog.broker.network.response_budget import ResponseBudget
from fencelog.broker.peers.identity import Identity, Lane, lane_of
from fencelog.errors import ErrorCode
from fencelog.ports import Random
from fencelog.replication.proof import NONCE_BYTES, Introduction, is_sound
from fencelog.types import NodeId
from fencelog.wire.messages.broker_hello import BrokerHelloRequest, BrokerHelloResponse
from fencelog.wire.messages.broker_proof import BrokerProofRequest, BrokerProofResponse

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class ProvenPeer(NamedTuple):
    """Another broker, as it has proven itself on a connection."""

    node_id: NodeId
    incarnation: str
    number: int

    @property
    def lane(self) -> Lane:
        """What the connection carries."""
        return lane_of(self.number)


class IncomingPeers:
    """The connections of other brokers to this one.

    Invariant: of each broker and lane one connection is proven, the one with the highest number in
    the broker's last life that has come.
    """

    def __init__(
        self, identity: Identity, random: Random, registered: Callable[[NodeId], str | None]
    ) -> None:
        """Know of none yet.

        ``registered``: the incarnation that a broker is registered with, as far as is known here.
        """
        self._identity = identity
        self._random = random
        self._registered = registered
        self._introduced: dict[Connection, Introduction] = {}
        self._proven: dict[Connection, ProvenPeer] = {}
        self._lives: dict[NodeId, str] = {}
        """The last life that has come, of each broker."""
        self._ended: set[tuple[NodeId, str]] = set()
        """Lives that another one has followed: they come back no more."""
        self._work: dict[Connection, set[asyncio.Task[None]]] = {}
        self.responses: ResponseBudget | None = None
        """In which the responses on proven connections count; None: with those of clients."""

    def peer_of(self, connection: Connection) -> ProvenPeer | None:
        """Return the broker at the other end; None if it has not proven that it is one."""
        return self._proven.get(connection)

    def hello(self, connection: Connection, message: BrokerHelloRequest) -> BrokerHelloResponse:
        """Take what the opener says of itself, and ask for its proof."""
        said = Introduction(
            cluster_id=message.cluster_id,
            opener=NodeId(message.node_id),
            opener_incarnation=message.incarnation,
            target=NodeId(message.target_node_id),
            target_incarnation=message.target_incarnation,
            connection=message.connection,
            opener_nonce=bytes(message.nonce),
            target_nonce=self._random.bytes(NONCE_BYTES),
        )
        own = self._identity
        refusal = said.refusal(own.cluster_id, own.node_id, own.incarnation)
        if connection in self._proven:
            refusal = "this connection is proven already"
        if refusal is not None:
            return BrokerHelloResponse(error_code=REFUSED, error_message=refusal)
        self._introduced[connection] = said
        return BrokerHelloResponse(nonce=said.target_nonce)

    def prove(self, connection: Connection, message: BrokerProofRequest) -> BrokerProofResponse:
        """Check the opener's proof, close its older connections, and answer with our own."""
        said = self._introduced.pop(connection, None)
        secret = self._identity.secret
        if said is None or not is_sound(said.proof_of_opener(secret), bytes(message.proof)):
            text = "the proof does not fit this cluster's secret"
            return BrokerProofResponse(error_code=REFUSED, error_message=text)
        peer = ProvenPeer(said.opener, said.opener_incarnation, said.connection)
        if self._is_another_registered(peer):
            # An earlier life that comes late, or a later one that is not known here yet: that one
            # comes again.
            text = "another life of this broker is registered"
            return BrokerProofResponse(error_code=REFUSED, error_message=text)
        if self._is_stale(peer):
            text = "a newer connection has taken the place of this one"
            return BrokerProofResponse(error_code=REFUSED, error_message=text)
        if (life := self._lives.get(peer.node_id, peer.incarnation)) != peer.incarnation:
            self._ended.add((peer.node_id, life))
        self._lives[peer.node_id] = peer.incarnation
        for other, known in list(self._proven.items()):
            if known.node_id != peer.node_id:
                continue
            if known.incarnation == peer.incarnation and known.lane is not peer.lane:
                continue
            self.closed(other)
            other.sever("a newer connection of the same broker has taken its place")
        self._proven[connection] = peer
        if self.responses is not None:
            connection.responses.move(self.responses)
        return BrokerProofResponse(proof=said.proof_of_target(secret))

    def _is_another_registered(self, peer: ProvenPeer) -> bool:
        """Whether the last life that has come is registered, and this is another one."""
        life = self._lives.get(peer.node_id)
        return life not in (None, peer.incarnation) and life == self._registered(peer.node_id)

    def _is_stale(self, peer: ProvenPeer) -> bool:
        if (peer.node_id, peer.incarnation) in self._ended:
            return True
        return any(
            each.number >= peer.number and each.lane is peer.lane
            for each in self._proven.values()
            if (each.node_id, each.incarnation) == (peer.node_id, peer.incarnation)
        )

    def begin(self, connection: Connection, work: Coroutine[None, None, None]) -> None:
        """Carry out a request beside the connection's others; it ends with the connection."""
        task = asyncio.get_running_loop().create_task(work)
        tasks = self._work.setdefault(connection, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def closed(self, connection: Connection) -> None:
        """A connection is closed: what it has asked for is carried out no further."""
        self._introduced.pop(connection, None)
        self._proven.pop(connection, None)
        for task in self._work.pop(connection, ()):
            task.cancel()
