"""Connections to the other brokers of the cluster: opened, proven, and kept to see who is gone.

A broker whose process has ended resets its connections and refuses new ones, which tells so at
once; a silent one is told by the end of its lease.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from errno import ECONNREFUSED
from typing import Any, TypeVar

from fencelog.broker.peers.identity import Identity, Lane, connection_number
from fencelog.coordination.controller.model import Registration
from fencelog.errors import ErrorCode, NotLeaderError, RequestError, StorageError, WireError
from fencelog.ports import Random
from fencelog.replication.proof import NONCE_BYTES, Introduction, is_sound
from fencelog.rpc.connection import Connection, connect
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import NodeId
from fencelog.wire.message import Message
from fencelog.wire.messages.broker_hello import BrokerHelloRequest, BrokerHelloResponse
from fencelog.wire.messages.broker_proof import BrokerProofRequest, BrokerProofResponse
from fencelog.wire.primitives import error_code

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)

CONNECT_TIMEOUT_S = 5.0
"""For the connection and its proof."""
RETRY_S = 0.2
Gone = Callable[[Registration], Awaitable[None]]
"""Fences a broker whose process has ended; raises StorageError if the store has not answered."""
REPEATED = 2
"""With so many failures in a row, that there is no connection is a warning."""


class _Peer:
    """Another broker, in one of its lives."""

    def __init__(self, registration: Registration) -> None:
        self.registration = registration
        self.connections: dict[Lane, Connection] = {}
        self.opening: dict[Lane, asyncio.Lock] = {}
        self.was_met = False
        """Whether this life has ever proven itself on a connection of ours."""
        self.keeper: asyncio.Task[None] | None = None

    def close(self, reason: str) -> None:
        if self.keeper is not None:
            self.keeper.cancel()
        for connection in self.connections.values():
            connection.close(reason)


class OutgoingPeers:
    """This broker's connections to the others, one of each lane.

    Invariant: ``_peers`` has the other brokers that are registered, each in its last known life.
    """

    def __init__(self, identity: Identity, random: Random, gone: Gone) -> None:
        """Know of no other broker before ``update``."""
        self._identity = identity
        self._random = random
        self._gone = gone
        self._peers: dict[NodeId, _Peer] = {}
        self._count = 0
        self._asked: set[asyncio.Task[Any]] = set()

    def update(self, brokers: Iterable[Registration]) -> None:
        """These are registered now: connect to new lives, close connections to ended ones."""
        found = {each.node_id: each for each in brokers if each.node_id != self._identity.node_id}
        for node_id, peer in list(self._peers.items()):
            known, now = peer.registration, found.get(node_id)
            if now is None or now.incarnation != known.incarnation:
                peer.close("the broker's registration has ended")
                del self._peers[node_id]
            else:
                peer.registration = now
        for node_id, registration in found.items():
            if node_id not in self._peers:
                peer = self._peers[node_id] = _Peer(registration)
                peer.keeper = asyncio.get_running_loop().create_task(self._keep(peer))

    def close(self) -> None:
        """Close every connection."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close("the broker stops")
        for asked in self._asked:
            asked.cancel()

    async def connection(self, target: NodeId, lane: Lane) -> Connection:
        """Return the open, proven connection of a lane. Raises RequestError if there is none.

        A newer connection closes the older one at the target before it serves a request, so
        nothing that was sent on the older one is carried out any more.
        """
        peer = self._peers.get(target)
        if peer is None:
            raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {target} is not registered")
        return await self._connection(peer, lane)

    async def ask(self, target: NodeId, request: Message, response: type[R], timeout_s: float) -> R:
        """Send a request to a leader on another broker.

        Raises NotLeaderError without an answer, or for one with an error: whether it was carried
        out is not known, and it is not carried out after the next request.
        """
        # The wait outlives the caller's: without an answer the connection is given up, and a silent
        # one would stay if each caller, a client that has less patience, were gone before.
        asked = asyncio.get_running_loop().create_task(
            self._ask(target, request, response, timeout_s)
        )
        self._asked.add(asked)
        asked.add_done_callback(self._answered)
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if asked.cancelled() and caller is not None and not caller.cancelling():
                raise NotLeaderError("the broker stops") from None
            raise

    # -- inside --------------------------------------------------------------------------------

    async def _ask(
        self, target: NodeId, request: Message, response: type[R], timeout_s: float
    ) -> R:
        try:
            connection = await self.connection(target, Lane.LEADERS)
            return await _call(connection, request, response, Deadline(timeout_s))
        except RequestError as error:
            raise NotLeaderError(str(error)) from error

    def _answered(self, asked: "asyncio.Task[Any]") -> None:
        self._asked.discard(asked)
        if not asked.cancelled():
            asked.exception()  # the caller may be gone

    async def _connection(self, peer: _Peer, lane: Lane) -> Connection:
        async with peer.opening.setdefault(lane, asyncio.Lock()):
            found = peer.connections.get(lane)
            if found is None or found.closed:
                found = await self._open(peer.registration, lane)
                if self._peers.get(peer.registration.node_id) is not peer:
                    found.close("the broker's registration has ended")
                peer.connections[lane] = found
                peer.was_met = True
            return found

    async def _open(self, target: Registration, lane: Lane) -> Connection:
        client_id = f"fencelog-broker-{self._identity.node_id}"
        deadline = Deadline(CONNECT_TIMEOUT_S)
        connection = await connect(target.host, target.port, client_id, deadline)
        try:
            await self._prove(connection, target, lane, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _prove(
        self, connection: Connection, target: Registration, lane: Lane, deadline: Deadline
    ) -> None:
        """Prove that both ends know the secret; only then may a request be sent or believed."""
        own = self._identity
        self._count += 1
        hello = BrokerHelloRequest(
            cluster_id=own.cluster_id,
            node_id=own.node_id,
            incarnation=own.incarnation,
            target_node_id=target.node_id,
            target_incarnation=target.incarnation,
            connection=connection_number(self._count, lane),
            nonce=self._random.bytes(NONCE_BYTES),
        )
        welcome = await _call(connection, hello, BrokerHelloResponse, deadline)
        said = Introduction(
            cluster_id=own.cluster_id,
            opener=own.node_id,
            opener_incarnation=own.incarnation,
            target=target.node_id,
            target_incarnation=target.incarnation,
            connection=hello.connection,
            opener_nonce=hello.nonce,
            target_nonce=welcome.nonce,
        )
        proof = BrokerProofRequest(proof=said.proof_of_opener(own.secret))
        answer = await _call(connection, proof, BrokerProofResponse, deadline)
        if not is_sound(said.proof_of_target(own.secret), answer.proof):
            raise RequestError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                f"broker {target.node_id} at {connection.address} does not know the cluster's"
                " secret",
            )

    async def _keep(self, peer: _Peer) -> None:
        """Hold a connection: if it is lost and a new one is refused, the broker is gone."""
        failures, said = 0, ""
        while True:
            try:
                connection = await self._connection(peer, Lane.LEADERS)
            except RequestError as error:
                if peer.was_met and is_refused(error):
                    await self._report(peer.registration)
                else:
                    failures += 1
                    # Once is normal: the other may not have learnt that it is registered itself.
                    level = logging.INFO if failures == 1 else logging.WARNING
                    if str(error) != said or failures == REPEATED:
                        said = str(error)
                        node = peer.registration.node_id
                        log.log(level, "no connection to broker %d: %s", node, said)
                await asyncio.sleep(RETRY_S)
                continue
            failures, said = 0, ""
            await connection.wait_closed()

    async def _report(self, registration: Registration) -> None:
        try:
            await self._gone(registration)
        except StorageError as error:
            log.warning("cannot fence broker %d: %s", registration.node_id, error)


async def _call(
    connection: Connection, request: Message, response: type[R], deadline: Deadline
) -> R:
    name = type(request).__name__.removesuffix("Request")
    body = await connection.call(request.API_KEY, 0, [request.write(0)], deadline)
    try:
        answer = response.read(body, 0)
    except WireError as error:
        connection.close(f"malformed response to {name}: {error}")
        what = f"{name} to {connection.address}"
        raise failure(ErrorCode.NETWORK_EXCEPTION, what, str(error)) from error
    code = error_code(getattr(answer, "error_code"))  # noqa: B009 - each has one
    if code is not ErrorCode.NONE:
        text = getattr(answer, "error_message")  # noqa: B009 - each has one
        raise failure(code, f"{name} to broker {connection.address}", text)
    return answer


def is_refused(error: RequestError) -> bool:
    """Whether nobody listens at the address: the process there has ended.

    A host name may have several addresses; asyncio then has one text with all their errors.
    """
    cause = error.__cause__
    if isinstance(cause, ConnectionRefusedError):
        return True
    text = str(cause) if isinstance(cause, OSError) else ""
    return "[Errno" in text and text.count("[Errno") == text.count(f"[Errno {ECONNREFUSED}]")
