"""Who is still there: leases and connections of claims (O10).

Soft state: no record holds it. A load gives each recorded claim its whole lease and knows no
connection; then only the lease counts.
"""

from collections.abc import Iterator

from fencelog.coordination.timers import Timers
from fencelog.types import Instant


class Leases:
    """The leases of one shard's claims, waiting ones too, by session, and their connections."""

    def __init__(self) -> None:
        """Begin empty."""
        self._timers: Timers[str] = Timers()
        self._paused_s = 0.0
        self._connections: dict[str, int] = {}
        self._sessions: dict[int, dict[str, None]] = {}
        self._gone: dict[str, None] = {}

    def connect(self, session: str, connection: int) -> None:
        """A claim, waiting or granted, came on this connection and ends with it."""
        self._connections[session] = connection
        self._sessions.setdefault(connection, {})[session] = None

    def knows(self, session: str) -> bool:
        """Whether the claim came since the load."""
        return session in self._connections

    def renew(self, session: str, lease_ms: int, now: Instant) -> None:
        """The claim lives for its lease from now on, unless its claimant is known to be gone."""
        if session not in self._gone:
            self._timers.set(session, Instant(now + lease_ms / 1000 - self._paused_s))

    def paused(self, seconds: float) -> None:
        """Move every lease: the broker stood still, so nobody could renew."""
        self._paused_s += seconds

    def disconnected(self, connection: int) -> list[str]:
        """Forget a connection; return the sessions that came on it. Those with a lease are gone."""
        sessions = list(self._sessions.pop(connection, ()))
        for session in sessions:
            del self._connections[session]
            if self._timers.has(session):
                self._timers.cancel(session)
                self._gone[session] = None
        return sessions

    def give_up(self, session: str) -> None:
        """End the lease of a claim."""
        self._timers.cancel(session)
        self._gone[session] = None

    def is_gone(self, session: str) -> bool:
        """Whether its claimant is known to be gone."""
        return session in self._gone

    def expire(self, now: Instant) -> Iterator[str]:
        """Yield the sessions whose leases are over; they are gone from now on."""
        for session in self._timers.take_due(Instant(now - self._paused_s)):
            self._gone[session] = None
            yield session

    def next_due(self) -> Instant | None:
        """A time at or before the end of the first lease."""
        due = self._timers.next_due()
        return None if due is None else Instant(due + self._paused_s)

    def forget(self, session: str) -> None:
        """The claim has ended."""
        self._timers.cancel(session)
        self._gone.pop(session, None)
        connection = self._connections.pop(session, None)
        if connection is not None:
            sessions = self._sessions[connection]
            del sessions[session]
            if not sessions:
                del self._sessions[connection]
