"""The server of a test's broker: it can hold requests and abort all connections."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from fencelog.broker.config import BrokerConfig
from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.network.connection import Answer, Connection
from fencelog.broker.network.replies import Pending, Reply
from fencelog.broker.network.server import Server
from fencelog.ports import Stopwatch
from fencelog.testing.links import accept_no_more
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.headers import RequestHeader, read_request_header

OWN_CLIENT_ID = "fencelog.testing"
"""Requests of the broker object are never held: the test would wait for itself."""

NAMES = {"".join(word.capitalize() for word in key.name.split("_")): key for key in ApiKey}


class Held:
    """Requests of one kind, held until the test releases them."""

    def __init__(self, request: str, client_id: str | None) -> None:
        """Use ``LocalBroker.hold``. Raises ValueError for an unknown request name."""
        if request not in NAMES:
            raise ValueError(f"{request!r} is not a request; known: {', '.join(NAMES)}")
        self._request = request
        self._client_id = client_id
        self._changed = threading.Condition()
        self._gates: list[Future[bool]] = []
        self._released = False

    def wait(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Wait until ``count`` requests are held. Raises TimeoutError.

        This blocks: in a coroutine, ``await asyncio.to_thread(held.wait)``.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._gates) >= count, timeout_s):
                raise TimeoutError(
                    f"{len(self._gates)} of {count} {self._request} requests within {timeout_s} s"
                )

    def release(self) -> None:
        """Let the broker handle them, even if the client has disconnected."""
        self._let_go(answered=True)

    def drop_answer(self) -> None:
        """Let the broker handle them, and close the connection instead of responding."""
        self._let_go(answered=False)

    def take(self, header: RequestHeader) -> "Future[bool] | None":
        """A future for which this request waits (True: it will be answered), or None."""
        wanted = self._client_id in (None, header.client_id) and header.client_id != OWN_CLIENT_ID
        with self._changed:
            if self._released or not wanted or header.api_key != NAMES[self._request]:
                return None
            gate: Future[bool] = Future()
            self._gates.append(gate)
            self._changed.notify_all()
            return gate

    def _let_go(self, *, answered: bool) -> None:
        with self._changed:
            self._released = True
            gates, self._gates = self._gates, []
        for gate in gates:
            # It is cancelled if the broker was killed.
            if gate.set_running_or_notify_cancel():
                gate.set_result(answered)


class HoldingServer(Server):
    """A server that can hold requests before the broker handles them."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatch: Dispatcher,
        stopwatch: Stopwatch,
        holds: Sequence[Held],
    ) -> None:
        """``holds`` may change at any time."""
        super().__init__(config, dispatch, stopwatch)
        self._holds = holds
        self._kept: set[asyncio.Task[Reply | Pending]] = set()

    def handle(self, frame: bytearray, connection: Connection) -> Answer:
        """Pass a frame to the dispatcher, now or when it is released."""
        if self._holds:
            header, _ = read_request_header(memoryview(frame))
            for held in list(self._holds):
                if (gate := held.take(header)) is not None:
                    return self._keep(gate, frame, connection)
        return super().handle(frame, connection)

    async def stop(self, drain_s: float = 5.0) -> None:
        """As a server does, and nothing is left to the collector, either."""
        if self._listener is not None:
            await accept_no_more(self._listener)
        await super().stop(drain_s)

    async def abort(self) -> None:
        """Stop listening, and abort every connection without sending what is buffered.

        From the first of them on it awaits nothing: no other task runs in between.
        """
        if self._listener is not None:
            await accept_no_more(self._listener)
        for connection in list(self._connections):
            connection.abort()
        await super().stop(drain_s=0)

    async def _keep(
        self, gate: "Future[bool]", frame: bytearray, connection: Connection
    ) -> Reply | Pending:
        # A separate task: a request that was sent arrives even if its client has died.
        task = asyncio.get_running_loop().create_task(self._deliver(gate, frame, connection))
        self._kept.add(task)
        task.add_done_callback(self._delivered)
        return await asyncio.shield(task)

    async def _deliver(
        self, gate: "Future[bool]", frame: bytearray, connection: Connection
    ) -> Reply | Pending:
        answered = await asyncio.wrap_future(gate)
        answer = super().handle(frame, connection)
        outcome = await answer if asyncio.iscoroutine(answer) else answer
        if answered:
            return outcome
        if isinstance(outcome, Pending):
            settled: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            outcome.when_settled(settled.set_result)
            await settled
        connection.abort()
        return None

    def _delivered(self, task: "asyncio.Task[Reply | Pending]") -> None:
        self._kept.discard(task)
        if not task.cancelled():
            task.exception()  # the connection has got it already
