"""One client's connection: frames in, replies out in request order.

A handler answers in one of three ways: at once with a ``Reply``; with a ``Pending``, while the next
request starts (a produce that waits for its commit); or with a coroutine, and then the next request
waits until it has ended, because Kafka's clients rely on that order.

Replies that become ready in one iteration of the loop are sent in one write. What is not sent
counts against the server's budget for responses (``response_budget``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Protocol, TypeAlias, cast

from fencelog.broker.network.fair_turns import RECEIVED_BYTES_MIN, FairTurns, Share
from fencelog.broker.network.frames import Frames, Memory
from fencelog.broker.network.lease import Lease
from fencelog.broker.network.outgoing import Outgoing
from fencelog.broker.network.replies import Pending, Reply
from fencelog.broker.network.response_budget import ResponseBudget, held_bytes
from fencelog.errors import WireError
from fencelog.types import Instant
from fencelog.wire.headers import RequestHeader

log = logging.getLogger(__name__)

Answer: TypeAlias = "Reply | Pending | Coroutine[None, None, Reply | Pending]"

PIPELINE_MAX = 128
WAITING_MAX = 4
"""Requests that may wait while a coroutine answers the one before."""


class Request:
    """One decoded header and the body's bytes, which the handler owns."""

    __slots__ = ("body", "connection", "header")

    def __init__(self, header: RequestHeader, body: memoryview, connection: "Connection") -> None:
        self.header = header
        self.body = body
        self.connection = connection


class Closable(Protocol):
    """What a handler keeps between two requests of a connection."""

    def close(self) -> None:
        """The connection is gone."""
        ...


class Service(Memory, Protocol):
    """The server's interface to its connections."""

    lease: Lease | None
    """Requests are served until it may have ended; None where a broker is alone."""
    responses: ResponseBudget
    turns: FairTurns

    def handle(self, frame: bytearray, connection: "Connection") -> Answer:
        """Answer one frame. Raises WireError when it is malformed."""
        ...

    def opened(self, connection: "Connection") -> bool:
        """Count and number a new connection; False refuses it."""
        ...

    def closed(self, connection: "Connection") -> None:
        """Forget a connection."""
        ...

    def out_of_memory(self, connection: "Connection") -> None:
        """Log that memory was refused while this connection was served."""
        ...

    def request_space(self, connection: "Connection") -> bool:
        """Whether a frame gets more memory now; if not, ``resumed`` is called later."""
        ...

    def frame_completed(self, connection: "Connection") -> None:
        """A frame is complete: it needs no more memory."""
        ...


class _Slot:
    """The position of one reply in the order of requests."""

    __slots__ = ("frame_bytes", "held", "ready", "reply", "size")

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.size = 0
        self.held = 0
        self.ready = False
        self.reply: Reply = None


class Connection(asyncio.BufferedProtocol):
    """Receives straight into frames; runs handlers in order; writes replies in order.

    Invariant: ``_slots`` holds a slot for each request begun and not yet answered; ``_waiting`` the
    frames received and not yet begun. Frames of both count against the server's budget. Nothing is
    left to write in ``_outgoing`` when the loop waits; its ``queued`` counts ready slots too.

    In a cluster the clock is compared with the lease before each request and each write (F7): after
    a pause of the process, what has waited may be ready before any timer has noticed the end.
    """

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        """Serve one accepted socket."""
        self._service = service
        self._lease = service.lease
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._slots: deque[_Slot] = deque()
        self._waiting: deque[bytearray] = deque()
        self._frames = Frames(service, self._waiting)
        self._outgoing = Outgoing(service.responses, loop)
        self.responses = self._outgoing.queued
        self._send_is_due = False
        self._turns = service.turns
        self._share = Share(service.turns, self._take_turn)
        self._malformed = ""
        """Why it is closed once the requests before are begun."""
        self._task: asyncio.Task[None] | None = None
        self._answering: Coroutine[None, None, Reply | Pending] | None = None
        """The coroutine that the task will begin."""
        self._paused = self._ended = self._closing = False
        self.is_backpressured = False
        """Whether its frame waits for memory, so that nothing is read from the peer."""
        self.number = 0
        """Grows with every accepted connection: tells which of two is the older one (E14)."""
        self.host = self.peer = "?"
        self.local: tuple[str, int] = ("127.0.0.1", 0)
        self.last_active = Instant(loop.time())
        self.client_id: str | None = None
        self.session: str | None = None  # of the claim that it is attached to (O7)
        self.kept: Closable | None = None  # by its last fetch

    @property
    def busy(self) -> bool:
        """Whether a request is begun or waiting."""
        return bool(self._slots or self._waiting)

    @property
    def frame_begun(self) -> Instant | None:
        """When the first byte of the incomplete frame arrived; None where there is none."""
        return self._frames.begun

    @property
    def closing(self) -> bool:
        """Whether it was closed; it is removed once the peer has read what was sent."""
        return self._closing

    # -- transport callbacks -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the server, which may refuse."""
        # Not asserted: uvloop's transports do not inherit from asyncio.Transport.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        if peer:
            self.host, self.peer = peer[0], f"{peer[0]}:{peer[1]}"
        if local:
            self.local = (local[0], local[1])
        if not self._service.opened(self):
            self._closing = True
            transport.abort()
            return
        self._outgoing.open(transport)

    def eof_received(self) -> bool:
        """The peer sends no more: close, at once or, which is returned, in its turn."""
        self._ended = True
        return self._share.ends()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop queued requests; what is already appended stays."""
        del exc
        self._closing = True
        self._drop_requests()
        for slot in self._slots:
            self._service.release(slot.frame_bytes)
            slot.frame_bytes = 0
        self._frames.close()
        self._outgoing.close()
        if self.kept is not None:
            self.kept.close()
        self._service.closed(self)
        # Nothing may point back here, or all of it would be kept until a garbage collection.
        self._transport = self._task = self._answering = None
        self._share.close()

    def _drop_requests(self) -> None:
        """Cancel the request that a coroutine answers, and begin none of those behind it."""
        if self._task is not None:
            self._task.cancel()
            if self._answering is not None:
                self._answering.close()  # the task is cancelled before it begins the coroutine
        for frame in self._waiting:
            self._service.release(len(frame))
        self._waiting.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: the open frame, else the server's scratch buffer."""
        del sizehint
        if self._frames.open is not None and not self._closing:
            try:
                return self._frames.target()
            except MemoryError:
                self._service.out_of_memory(self)
                self._closing = True  # what comes until then is dropped
                # Not at once: uvloop crashes if its callback for a buffer closes the transport.
                self._loop.call_soon(self.abort)
        return self._service.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that arrived: fill the open frame, or split the scratch into frames."""
        if self._closing:
            return
        self.last_active = Instant(self._loop.time())
        if nbytes >= RECEIVED_BYTES_MIN:
            self._turns.received(nbytes)
        if self._frames.open is not None:
            self._fill(nbytes)
            return
        try:
            is_full = self._frames.split(nbytes, self.last_active)
        except WireError as error:
            self._malformed = f"malformed frame: {error}"
            self._advance()
        except MemoryError:
            self._out_of_memory()
        else:
            if is_full:
                self._request_space()
            self._advance()

    def _fill(self, nbytes: int) -> None:
        if self._frames.fill(nbytes):
            self._service.frame_completed(self)
            self._advance()
        elif self._share.yields() or self._frames.is_full:
            if self._frames.is_full:
                self._request_space()
            self._update_reading()

    def pause_writing(self) -> None:
        """The socket has not taken everything."""
        self._outgoing.paused()

    def resume_writing(self) -> None:
        """The socket has taken everything."""
        self._outgoing.resumed()
        self._advance()

    def unread_s(self, now: Instant, *, scarce: bool) -> float:
        """Return for how long the client has not read its responses."""
        return self._outgoing.unread_s(now, scarce=scarce)

    # -- frames --------------------------------------------------------------------------------

    def resumed(self) -> None:
        """There is memory for the rest of the frame; its timeout starts again."""
        if self.is_backpressured:
            self.is_backpressured = False
            self._frames.begun = Instant(self._loop.time())
            self._update_reading()

    def _request_space(self) -> None:
        self.is_backpressured = not self._service.request_space(self)

    # -- requests ------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        if not self._closing:
            self._advance()
        if self._ended and self._transport is not None:
            self._closing = True
            self._transport.close()
            self._turns.ended()

    def _advance(self) -> None:
        """Begin waiting requests, now or in this connection's turn, and send what is ready."""
        turns, share = self._turns, self._share
        if self._waiting and not (share.is_queued or (turns.is_spent and share.yields())):
            began = turns.stopwatch()
            try:
                self._begin_requests(began)
            finally:
                now = turns.stopwatch()
                share.began(now)
                turns.spend(now - began)
        if self._outgoing.next:
            self._send()
            is_due = self._send_is_due or share.is_queued
            if self._waiting and not is_due and not self._outgoing.is_full:
                self._send_is_due = True  # what has just been sent may have held them up
                self._loop.call_soon(self._send_and_advance)
        else:
            self._update_reading()
        if self._malformed and not self._share.is_queued and not self._closing:
            self.fail(self._malformed)

    def _begin_requests(self, began: float) -> None:
        """Begin requests until one has to be awaited or a limit is reached."""
        while (
            self._waiting
            and self._task is None
            and not self._closing
            and not (self.responses.held and self._outgoing.is_full)
            and len(self._slots) < PIPELINE_MAX
        ):
            if self._lease is not None and not self._holds(self._lease):
                return
            frame = self._waiting.popleft()
            slot = _Slot(len(frame))
            self._slots.append(slot)
            try:
                answer = self._service.handle(frame, self)
            except WireError as error:
                self.fail(f"bad request: {error}")
                return
            except MemoryError:
                self._out_of_memory()
                return
            except Exception:  # noqa: BLE001 - logged there; other connections must go on
                self._fail_internally()
                return
            self._follow(slot, answer)
            if self._waiting and self._share.is_over(began):
                return

    def _follow(self, slot: _Slot, answer: Answer) -> None:
        if answer is None or isinstance(answer, (list, tuple)):
            self._ready(slot, answer)
        elif isinstance(answer, Pending):
            answer.when_settled(partial(self._settled, slot))
        else:
            assert asyncio.iscoroutine(answer)
            self._answering = answer
            self._turns.begun_coroutine()
            self._task = self._loop.create_task(self._drive(slot, answer))

    async def _drive(self, slot: _Slot, answer: Coroutine[None, None, "Reply | Pending"]) -> None:
        self._answering = None
        try:
            outcome = await answer
        except WireError as error:
            self.fail(f"bad request: {error}")
            return
        except MemoryError:
            self._out_of_memory()
            return
        except Exception:  # noqa: BLE001 - as in _advance
            self._fail_internally()
            return
        self._task = None
        self._follow(slot, outcome)
        self.responses.give_back()  # from here on, the response itself counts
        self._advance()

    def _settled(self, slot: _Slot, reply: Reply) -> None:
        """Take a settled reply; others of this iteration of the loop are sent with it."""
        self._ready(slot, reply)
        if not self._slots and not self._waiting:
            self._send()  # no other reply can follow
        elif not self._send_is_due:
            self._send_is_due = True
            self._loop.call_soon(self._send_and_advance)

    def _ready(self, slot: _Slot, reply: Reply) -> None:
        if self._closing:
            return
        slot.reply = reply
        slot.ready = True
        if reply is not None:
            slot.size = sum(map(len, reply))
            slot.held = held_bytes(reply, slot.size)
            if slot.held:
                self.responses.queue(slot.held)
        slots = self._slots
        while slots and slots[0].ready:
            first = slots.popleft()
            self._service.release(first.frame_bytes)
            if first.reply is not None:
                self._outgoing.add(first.reply, first.size, first.held)

    def _send_and_advance(self) -> None:
        self._send_is_due = False
        self._send()
        if self._waiting:
            self._advance()

    def _send(self) -> None:
        """Write what is ready."""
        if (
            self._transport is not None
            and not self._closing
            and self._outgoing.next
            and (self._lease is None or self._holds(self._lease))
        ):
            try:
                self._outgoing.write()
            except MemoryError:
                self._out_of_memory()
        self._update_reading()

    def _update_reading(self) -> None:
        """Stop reading while this client has enough in flight: bounds the memory it can take."""
        if self._transport is None or self._ended or self._closing:
            return
        # To pause and to resume costs more than a small request: one may wait without it.
        has_more = len(self._waiting) > 1 or self._frames.open is not None
        # The budget is shared: only a connection with requests in flight waits for it.
        full = (
            (self._share.is_queued and has_more)
            or (self.responses.held and self._outgoing.is_full)
            or self.is_backpressured
            or len(self._waiting) >= PIPELINE_MAX
            or (self._task is not None and len(self._waiting) >= WAITING_MAX)
            or (self.busy and not self._service.reserve(0))
        )
        if full and not self._paused:
            self._transport.pause_reading()
            self._paused = True
        elif not full and self._paused:
            self._transport.resume_reading()
            self._paused = False

    def _holds(self, lease: Lease) -> bool:
        """Whether the broker may serve requests; closes the connection if not."""
        if self._loop.time() < lease.deadline:
            return True
        reason = "the broker is not in its cluster: it has not joined, or its lease is over"
        self._log_closing(logging.INFO, reason)
        self.abort()
        return False

    # -- ending --------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Close at once and log the reason, such as what the peer sent."""
        self._log_closing(logging.WARNING, reason)
        self.abort()

    def _log_closing(self, level: int, reason: str) -> None:
        text = "closing connection of %s (%.100s): %s"
        client = self.client_id or "no client id"
        log.log(level, text, self.peer, client, reason, extra={"peer": self.host})

    def _out_of_memory(self) -> None:
        """Close because memory was refused: what it holds is free again."""
        self._service.out_of_memory(self)
        self.abort()

    def _fail_internally(self) -> None:
        """Close because a handler raised; called while that exception is handled."""
        log.exception(
            "closing connection of %s (%.100s): internal error, please report it with this "
            "traceback",
            self.peer,
            self.client_id,
            extra={"peer": self.host},
        )
        self.abort()

    def close(self) -> None:
        """Close after the ready replies have been sent."""
        self._send()
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def sever(self, reason: str) -> None:
        """Close at once: of what has arrived nothing more is carried out or answered (O7).

        What was appended stays. Not from within this connection's own request.
        """
        assert self._task is None or asyncio.current_task() is not self._task
        self._log_closing(logging.INFO, reason)
        self.abort()
        self._drop_requests()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
