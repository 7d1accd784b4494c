"""The listening socket and what its connections share: limits, memory budget, timeouts, drain."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from socket import SO_SNDBUF, SOL_SOCKET  # noqa: TID251 - only numbers

from fencelog.broker.config import BrokerConfig
from fencelog.broker.network.connection import Answer, Connection
from fencelog.broker.network.fair_turns import FairTurns
from fencelog.broker.network.lease import Lease
from fencelog.broker.network.limited_log import LimitedLog
from fencelog.broker.network.response_budget import ResponseBudget
from fencelog.ports import Stopwatch
from fencelog.types import Instant

log = logging.getLogger(__name__)

SCRATCH_BYTES = 256 * 1024
PENDING_MAX = 1024
"""Connections that the kernel keeps until they are accepted."""
ACCEPTS_MAX = 32
"""Connections that asyncio's loop accepts in one iteration: each costs it a tenth of a millisecond.

It takes one number for both, so the kernel is told its own afterwards.
"""
SEND_BUFFER_BYTES = 512 * 1024
"""What the kernel may hold of a connection's responses; it doubles that for its own overhead.

Left to itself it takes up to 4 MiB. With less, what is sent is still in the processor's caches when
it is received and its memory used again: a large response costs a quarter less CPU on both sides
(ADR 15). Over a long line, it limits a connection to so much per round trip; Kafka's default is a
fifth of it.
"""
BROKERS_SHARE = 4
"""The part of the budget for responses that other brokers have for themselves is one of so many."""


class Server:
    """Accepts connections and hands their frames to one dispatch function."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatch: Callable[[bytearray, Connection], Answer],
        stopwatch: Stopwatch,
    ) -> None:
        """Prepare; nothing listens before ``start``. ``stopwatch`` measures connections' work."""
        self._config = config
        self._dispatch = dispatch
        self._connections: dict[Connection, None] = {}  # a set in order of acceptance
        self._queued_bytes = 0
        self._growing: dict[Connection, None] = {}
        """Connections whose frame requested more memory than it got at once, in that order."""
        self._held: dict[Connection, None] = {}
        """Those of them that wait for it: nothing is read from them."""
        self._is_resuming = False
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._accepted = 0
        self._draining = False
        self._answered = asyncio.Event()
        # Shared by all connections: the loop fills it and hands it over in the same iteration.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.frame_bytes_max = config.frame_bytes_max
        self.responses = ResponseBudget(config.queued_response_bytes_max)
        self.turns = FairTurns(stopwatch)
        self._limited_log = LimitedLog(log)
        self.on_closed: Callable[[Connection], None] = lambda connection: None
        self.lease: Lease | None = None
        """Set before ``start``, by a broker of a cluster."""

    async def start(self) -> tuple[str, int]:
        """Listen; returns the bound address, with the real port if port 0 was configured.

        Raises OSError, with the address and what to do.
        """
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.port
        try:
            self._listener = await loop.create_server(
                lambda: Connection(self, loop),
                host,
                port,
                backlog=ACCEPTS_MAX,
                reuse_address=True,
                start_serving=False,  # it waits, and the socket must be ours before that
            )
        except OSError as error:
            raise OSError(error.errno, _cannot_listen(f"{host}:{port}", error)) from error
        for listening in self._listener.sockets:  # accepted ones inherit it
            listening.setsockopt(SOL_SOCKET, SO_SNDBUF, SEND_BUFFER_BYTES)
        await self._listener.start_serving()
        for listening in self._listener.sockets:
            with listening.dup() as same:
                same.listen(PENDING_MAX)
        self._schedule_sweep(loop)
        host, port = self._listener.sockets[0].getsockname()[:2]
        return host, port

    async def stop(self, drain_s: float = 5.0) -> None:
        """Accept no more connections, wait up to ``drain_s`` for open requests, then close."""
        self._draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._listener is not None:
            self._listener.close()
        try:
            await self._drain(drain_s)
        finally:
            for connection in list(self._connections):
                connection.close()

    def reserve_for_brokers(self) -> ResponseBudget:
        """Set a part of the budget for responses aside: slow clients never hold up replication."""
        return self.responses.reserve(self._config.queued_response_bytes_max // BROKERS_SHARE)

    def abort_connections(self, reason: str) -> None:
        """Close every connection at once: nothing that has arrived is carried out or answered."""
        for connection in list(self._connections):
            connection.sever(reason)

    async def _drain(self, drain_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_s
        busy = [connection for connection in self._connections if connection.busy]
        while busy and loop.time() < deadline:
            self._answered.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._answered.wait()
            except TimeoutError:
                break
            busy = [each for each in busy if each in self._connections and each.busy]

    # -- the interface to connections ----------------------------------------------------------

    def handle(self, frame: bytearray, connection: Connection) -> Answer:
        """Pass a frame to the dispatcher."""
        return self._dispatch(frame, connection)

    def opened(self, connection: Connection) -> bool:
        """Count and number a connection, within ``max.connections``."""
        if self._draining:
            return False
        if len(self._connections) >= self._config.connections_max:
            log.warning(
                "refusing connection of %s: %d connections are open, max.connections is %d",
                connection.peer,
                len(self._connections),
                self._config.connections_max,
                extra={"peer": connection.host},
            )
            return False
        self._connections[connection] = None
        self._accepted += 1
        connection.number = self._accepted
        return True

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)
        self.frame_completed(connection)
        self.on_closed(connection)

    def reserve(self, size: int) -> bool:
        """Count bytes of queued requests; False while the budget is exceeded."""
        self._queued_bytes += size
        return self._queued_bytes <= self._config.queued_bytes_max

    def release(self, size: int) -> None:
        """Uncount bytes of an answered request."""
        self._queued_bytes -= size
        assert self._queued_bytes >= 0, self._queued_bytes
        self._answered.set()
        self._resume_soon()

    def out_of_memory(self, connection: Connection) -> None:
        """Log that memory was refused while a connection was served."""
        self._limited_log.warning(
            Instant(asyncio.get_running_loop().time()),
            "memory",
            "closing connection of %s: out of memory; the limits of queued bytes are too high for "
            "this process",
            connection.peer,
        )

    def request_space(self, connection: Connection) -> bool:
        """Whether a large frame gets more memory: while the budget allows, and the first always.

        If none could go on, incomplete frames would wait for each other.
        """
        self._growing[connection] = None
        if self.reserve(0) or next(iter(self._growing)) is connection:
            return True
        self._held[connection] = None
        return False

    def frame_completed(self, connection: Connection) -> None:
        """A frame is complete, or its connection closed: the next one may go on."""
        if connection in self._growing:
            del self._growing[connection]
            self._held.pop(connection, None)
            for first in self._growing:
                self._resume(first)
                break

    def _resume_soon(self) -> None:
        """Let one that waits for memory go on in the next iteration of the loop, if there is any.

        Each may have much to receive, and takes memory for it: hundreds at once would hold up all
        others, and take more than there is.
        """
        if self._held and not self._is_resuming and self.reserve(0):
            self._is_resuming = True
            asyncio.get_running_loop().call_soon(self._resume_next)

    def _resume_next(self) -> None:
        self._is_resuming = False
        if self._held and self.reserve(0):
            self._resume(next(iter(self._held)))
            self._resume_soon()

    def _resume(self, connection: Connection) -> None:
        self._held.pop(connection, None)
        connection.resumed()

    # -- sweeping ------------------------------------------------------------------------------

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = loop.call_later(self._config.sweep_interval_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections that are idle, send a frame too slowly or do not read responses."""
        now = Instant(loop.time())
        for connection in list(self._connections):
            begun = connection.frame_begun
            unread_s = connection.unread_s(now, scarce=connection.responses.is_scarce)
            if connection.closing:
                connection.abort()  # closed at an earlier sweep, and its peer read nothing since
            elif unread_s > self._config.response_timeout_s:
                self._limited_log.warning(
                    now,
                    "unread",
                    "closing connection of %s: it has not read its responses for %.0f s",
                    connection.peer,
                    unread_s,
                )
                connection.abort()
            elif connection.is_backpressured:
                continue  # the broker does not read from it
            elif begun is not None and now - begun > self._config.frame_timeout_s:
                connection.fail(f"a frame was not complete after {now - begun:.0f} s")
            elif not connection.busy and now - connection.last_active > self._config.idle_timeout_s:
                connection.close()
        self._schedule_sweep(loop)


def _cannot_listen(address: str, error: OSError) -> str:
    """Return the text for a user; the loop's own has neither a plain address nor advice."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {address}: address already in use, perhaps by another broker: stop "
            "that one, or choose another port with --listen (port 0 is a free one)"
        )
    reason = error.strerror
    if error.errno is not None and error.errno > 0:  # not that of a name without an address
        reason = os.strerror(error.errno).lower()
    return f"cannot listen on {address}: {reason}; see --listen"
