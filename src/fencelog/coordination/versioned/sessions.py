"""The connections of an open transaction's writers: what ends it when all of them are closed (V7).

A writer whose process is killed closes its connection with it. Where the writers of a transaction
promised, as they joined, to keep their connections for as long as it is open, the last one to close
says that nobody is left to write or renew, and the transaction need not wait for its timeout. This
is soft state: no record holds it, and for what a load finds open only the timeout counts.
"""

from dataclasses import dataclass, field

from fencelog.types import Instant


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """What a writer promises as it joins: to keep its connection while the transaction is open.

    Attributes:
        timeout_ms: how long the transaction stays open without a connection of its writers.
        connection: the number of the one it joined on; None if that is closed by now.
        now: when it joined.
    """

    timeout_ms: int
    connection: int | None
    now: Instant


@dataclass(slots=True)
class _Writers:
    """The writers of one open transaction."""

    timeout_ms: int | None
    """The longest of its members; None if one of them has no session."""
    connections: set[int] = field(default_factory=set)
    ends_at: Instant | None = None
    """Set while all connections are closed."""

    def watch(self, now: Instant) -> None:
        """Begin the wait where no connection is left, and end it where there is one."""
        if self.connections or self.timeout_ms is None:
            self.ends_at = None
        elif self.ends_at is None:
            self.ends_at = Instant(now + self.timeout_ms / 1000)


class Sessions:
    """The writers of the open transactions of one shard, by app."""

    def __init__(self) -> None:
        """Begin empty."""
        self._writers: dict[str, _Writers] = {}

    def opened(self, app: str) -> None:
        """The app's transaction opens, so all its writers will be known."""
        self._writers[app] = _Writers(0)

    def joined(self, app: str, session: Session | None) -> None:
        """A writer has joined the app's open transaction; None: it has no session.

        Without a session it may be there without a connection, so the timeout alone counts.
        """
        writers = self._writers.get(app)
        if writers is None:
            return
        if session is None:
            writers.timeout_ms = writers.ends_at = None
        elif writers.timeout_ms is not None:
            writers.timeout_ms = max(writers.timeout_ms, session.timeout_ms)
            if session.connection is not None:
                writers.connections.add(session.connection)
            writers.watch(session.now)

    def renewed(self, app: str, connection: int, now: Instant) -> None:
        """A writer of the app's open transaction is there, perhaps on a new connection."""
        writers = self._writers.get(app)
        if writers is not None:
            writers.connections.add(connection)
            writers.watch(now)

    def closed(self, connection: int, now: Instant) -> bool:
        """A connection is closed; returns whether a deadline may have moved."""
        found = [each for each in self._writers.values() if connection in each.connections]
        for writers in found:
            writers.connections.discard(connection)
            writers.watch(now)
        return bool(found)

    def forget(self, app: str) -> None:
        """The app's transaction is decided."""
        self._writers.pop(app, None)

    def deadline(self, app: str) -> Instant | None:
        """When the app's transaction ends because its writers are gone; None if they are not."""
        writers = self._writers.get(app)
        return None if writers is None else writers.ends_at
