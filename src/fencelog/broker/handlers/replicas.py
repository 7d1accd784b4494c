"""Replica fetches and snapshots for the followers of the partitions that are led here.

Behaviour: only on connections that were proven to be another broker's (``handlers/peers``). A
fetch's positions count when it arrives, while the one before it still waits for news.
"""

import logging

from fencelog.broker.context import Broker
from fencelog.broker.dispatch import RawHandler, respond
from fencelog.broker.handlers.peers import from_broker
from fencelog.broker.network.connection import Answer, Connection, Request
from fencelog.broker.network.replies import Pending
from fencelog.broker.peers.incoming import IncomingPeers
from fencelog.broker.replicas.led import LedPartitions
from fencelog.broker.replicas.serving import Serving, Stream, snapshot
from fencelog.errors import ErrorCode
from fencelog.types import Buffer
from fencelog.wire.api_versions import BrokerApiKey
from fencelog.wire.messages.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse
from fencelog.wire.messages.replica_snapshot import (
    ReplicaSnapshotRequest,
    ReplicaSnapshotResponse,
)
from fencelog.wire.primitives import REQUEST_ITEMS_MAX

log = logging.getLogger(__name__)


def replica_handlers(
    peers: IncomingPeers, serving: Serving, led: LedPartitions
) -> dict[BrokerApiKey, RawHandler]:
    """Return the handlers of what followers ask."""

    async def begin(broker: Broker, message: ReplicaSnapshotRequest) -> ReplicaSnapshotResponse:
        del broker
        return await snapshot(led, message)

    return {
        BrokerApiKey.REPLICA_FETCH: _Fetches(peers, serving).handle,
        BrokerApiKey.REPLICA_SNAPSHOT: from_broker(
            peers, ReplicaSnapshotRequest, ReplicaSnapshotResponse, begin
        ),
    }


class _Fetches:
    """The streams of the connections that have fetched."""

    def __init__(self, peers: IncomingPeers, serving: Serving) -> None:
        self._peers = peers
        self._serving = serving
        self._streams: dict[Connection, Stream] = {}

    def handle(self, broker: Broker, request: Request) -> Answer:
        """Take a request; its answer comes from the stream of the connection."""
        del broker
        connection, version = request.connection, request.header.api_version
        peer = self._peers.peer_of(connection)
        if peer is None:
            refusal = ReplicaFetchResponse(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                error_message="only a broker that has proven that it belongs to the cluster may "
                "fetch as a replica",
            )
            return respond(request, refusal.write(version))
        message = ReplicaFetchRequest.read(request.body, version, REQUEST_ITEMS_MAX)
        stream = self._streams.get(connection)
        if stream is None:
            stream = self._streams[connection] = self._serving.open(
                peer.node_id, peer.incarnation, connection.responses
            )
            self._peers.begin(connection, self._run(connection, stream))
        pending = Pending()

        def settle(body: list[Buffer]) -> None:
            pending.settle(respond(request, *body))

        stream.ask(message, settle)
        return pending

    async def _run(self, connection: Connection, stream: Stream) -> None:
        try:
            await stream.run()
        except Exception:
            log.exception("internal error, please report it with this traceback")
            connection.abort()
        finally:
            del self._streams[connection]
