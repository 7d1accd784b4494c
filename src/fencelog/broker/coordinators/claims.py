"""Which connections belong to which claim: the one that it came on, and those attached to it (O7).

A claim ends with its own connection; the end of an attached one means nothing. When the claim ends,
all of them are severed.
"""

from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.network.connection import Connection
from fencelog.coordination.ownership.model import OwnAnswer
from fencelog.coordination.ownership.shard import OwnershipShard


class ClaimConnections:
    """Connections by the session of their claim.

    Invariant: a connection is among those of one session at most, and ``session`` of a connection
    is that session or None.
    """

    def __init__(self, runtime: CoordinatorRuntime[OwnershipShard]) -> None:
        """Know of none yet."""
        self._runtime = runtime
        self._connections: dict[str, dict[Connection, None]] = {}
        self._sessions: dict[Connection, str] = {}
        self._claim_ids: dict[Connection, str] = {}
        self._claimants: set[int] = set()
        self._stopped = False

    def session_of(self, connection: Connection) -> str | None:
        """The session that a connection claimed or is attached to, granted or not yet."""
        return self._sessions.get(connection)

    def has_connections(self, session: str) -> bool:
        """Whether a connection claimed this session or is attached to it, granted or not yet."""
        return session in self._connections

    def claim_id_of(self, connection: Connection) -> str | None:
        """The id of the claim that came on this connection; None if none did."""
        return self._claim_ids.get(connection)

    async def may_attach(self, group: str | None, session: str, epoch: int) -> OwnAnswer:
        """Ask the shard, which is here, whether connections may act for a claim.

        Raises NotLeaderError while it is not available.
        """
        return await self._runtime.decide(
            group or "", lambda shard, now: shard.attach(group, session, epoch)
        )

    def claims(self, connection: Connection, session: str, claim_id: str) -> None:
        """A claim is about to be decided that ends with this connection."""
        self._add(connection, session)
        self._claim_ids[connection] = claim_id
        self._claimants.add(connection.number)

    def attaches(self, connection: Connection, session: str) -> None:
        """A connection is about to be attached; it is severed with the claim from now on."""
        self._add(connection, session)

    def granted(self, connection: Connection) -> None:
        """Requests of this connection are its claim's from now on, unless it was severed."""
        if not connection.closing:
            connection.session = self._sessions.get(connection)

    def leaves(self, connection: Connection) -> None:
        """A connection claims nothing and is attached to nothing any more."""
        connection.session = None
        self._claim_ids.pop(connection, None)
        session = self._sessions.pop(connection, None)
        if session is not None:
            others = self._connections[session]
            del others[connection]
            if not others:
                del self._connections[session]

    def sever(self, session: str) -> None:
        """Close every connection of a claim that has ended: nothing more of it is carried out."""
        for connection in list(self._connections.get(session, ())):
            self.leaves(connection)
            connection.sever("its claim has ended")

    def stop(self) -> None:
        """The broker stops and closes all connections: no claim ends by that (O10)."""
        self._stopped = True

    def closed(self, connection: Connection) -> None:
        """A connection is closed, perhaps a claim's."""
        self.leaves(connection)
        number = connection.number
        if number in self._claimants and not self._stopped:
            self._claimants.discard(number)
            self._runtime.note(lambda shard, now: shard.disconnected(number))

    def _add(self, connection: Connection, session: str) -> None:
        self.leaves(connection)
        self._sessions[connection] = session
        self._connections.setdefault(session, {})[connection] = None
