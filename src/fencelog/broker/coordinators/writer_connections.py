"""Tells the coordinator of versioned transactions which connections of writers are closed (V7)."""

from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.network.connection import Connection
from fencelog.coordination.versioned.shard import VersionedShard


class WriterConnections:
    """The open connections on which a transaction was joined or renewed."""

    def __init__(self, runtime: CoordinatorRuntime[VersionedShard]) -> None:
        """Know of none yet."""
        self._runtime = runtime
        self._numbers: set[int] = set()

    def number_of(self, connection: Connection) -> int | None:
        """The number of a writer's connection, whose end is noted; None if it is closed by now."""
        if connection.closing:
            return None
        self._numbers.add(connection.number)
        return connection.number

    def closed(self, connection: Connection) -> None:
        """A connection is closed, perhaps a writer's."""
        number = connection.number
        if number in self._numbers:
            self._numbers.discard(number)
            self._runtime.note(lambda shard, now: shard.disconnected(number, now))
