"""The broker's door as a test has it: requests can be held there, and it can be slammed shut."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from fencelog.broker.config import BrokerConfig
from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.network.connection import Answer, Connection, Pending, Reply
from fencelog.broker.network.server import Server
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.headers import RequestHeader, read_request_header

OWN_CLIENT_ID = "fencelog.testing"
"""What the test asks through the broker object is never held: it would wait for itself."""

NAMES = {"".join(word.capitalize() for word in key.name.split("_")): key for key in ApiKey}


class Held:
    """Requests of one kind, kept at the door until the test lets them go."""

    def __init__(self, request: str, client_id: str | None) -> None:
        """Use ``LocalBroker.hold``. Raises ValueError where there is no such request."""
        if request not in NAMES:
            raise ValueError(f"{request!r} is not one of {', '.join(NAMES)}")
        self._request = request
        self._client_id = client_id
        self._changed = threading.Condition()
        self._gates: list[Future[bool]] = []
        self._released = False

    def wait(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Return once so many requests are held. Raises TimeoutError.

        It blocks: in a coroutine, ``await asyncio.to_thread(held.wait)``.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._gates) >= count, timeout_s):
                raise TimeoutError(
                    f"{len(self._gates)} of {count} {self._request} requests came in {timeout_s} s"
                )

    def release(self) -> None:
        """Let the broker have them, even those whose client has gone; hold nothing more."""
        self._let_go(answered=True)

    def drop_answer(self) -> None:
        """Let the broker have them and break the connection where it answers; hold nothing more."""
        self._let_go(answered=False)

    def take(self, header: RequestHeader) -> "Future[bool] | None":
        """The gate that this request waits at (True: it will be answered), or None."""
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
            # One whose broker was killed is cancelled.
            if gate.set_running_or_notify_cancel():
                gate.set_result(answered)


class Door(Server):
    """A server that lets a test hold requests before the broker sees them."""

    def __init__(self, config: BrokerConfig, dispatch: Dispatcher, holds: Sequence[Held]) -> None:
        """``holds`` may grow and shrink meanwhile."""
        super().__init__(config, dispatch)
        self._holds = holds
        self._kept: set[asyncio.Task[Reply | Pending]] = set()

    def handle(self, frame: bytearray, connection: Connection) -> Answer:
        """Hand a frame to the dispatcher, now or when its gate opens."""
        if self._holds:
            header, _ = read_request_header(memoryview(frame))
            for held in list(self._holds):
                if (gate := held.take(header)) is not None:
                    return self._keep(gate, frame, connection)
        return super().handle(frame, connection)

    async def slam(self) -> None:
        """Break every connection, with what was not sent yet, and listen no more."""
        for connection in list(self._connections):
            connection.abort()
        await self.stop(drain_s=0)

    async def _keep(
        self, gate: "Future[bool]", frame: bytearray, connection: Connection
    ) -> Reply | Pending:
        # A task of its own: what is on its way to a broker arrives even if its sender has died.
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
            task.exception()  # the connection was told, if there still is one
