"""The sending side of a connection: what is written next, what is not sent yet, who does not read.

All of it counts against the budget for responses until the socket has taken the last byte.
"""

import asyncio
from collections.abc import Sequence

from fencelog.broker.network.response_budget import QueuedResponses, ResponseBudget
from fencelog.types import Buffer, Instant
from fencelog.wire.framing import SIZE_BYTES

UNSENT_BYTES_MAX = 16 * 1024 * 1024
"""A connection with more unsent responses begins no request."""
READ_BYTES_PER_S_MIN = 64 * 1024
"""A client that reads more slowly is closed while others wait for the budget."""
JOINED_BYTES_MAX = 64 * 1024
"""Up to this size, one joined buffer is cheaper to send than many; above it, copying costs more."""


class Outgoing:
    """Responses of one connection in the order in which they are sent.

    Invariant: ``queued`` counts what is in ``next`` (``_next_held``), what the transport has not
    sent (``_unsent_held``), and what its user counts besides.
    """

    def __init__(self, budget: ResponseBudget, loop: asyncio.AbstractEventLoop) -> None:
        """Start without a transport."""
        self.queued = QueuedResponses(budget)
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self.next: list[Buffer] = []
        """What ``write`` writes."""
        self._next_bytes = 0
        self._next_held = 0
        self._is_unsent = False
        """Whether the transport has bytes that the socket has not taken."""
        self._unsent_held = 0
        self._written_bytes = 0
        """What the transport was given since it was empty."""
        self._taken_bytes = 0
        """What the socket had taken of it when that was looked at last."""
        self._unsent_since = Instant(0.0)
        self._progress_at = Instant(0.0)

    @property
    def is_full(self) -> bool:
        """Whether no request may begin whose response would be queued behind these."""
        return not self.queued.may_begin or self._unsent_held > UNSENT_BYTES_MAX

    def open(self, transport: asyncio.WriteTransport) -> None:
        """Write to this transport."""
        self._transport = transport
        # So that it says when the socket has not taken everything, and when it has.
        transport.set_write_buffer_limits(high=0)

    def add(self, response: Sequence[Buffer], size: int, held: int) -> None:
        """Append a response to what is written next; its ``held`` bytes count in ``queued``."""
        self.next.append(size.to_bytes(SIZE_BYTES, "big"))
        self.next += response
        self._next_bytes += SIZE_BYTES + size
        self._next_held += held

    def write(self) -> None:
        """Hand what was added to the transport. Raises MemoryError."""
        buffers, size, held = self.next, self._next_bytes, self._next_held
        if not buffers:
            return
        self.next, self._next_bytes, self._next_held = [], 0, 0
        assert self._transport is not None
        if size <= JOINED_BYTES_MAX:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)
        if self._is_unsent:
            if size > held:
                self.queued.queue(size - held)  # small responses, which are not counted before
                held = size
            self._unsent_held += held
            self._written_bytes += size
        elif held:
            self.queued.sent(held)

    def paused(self) -> None:
        """The socket has not taken everything."""
        self._is_unsent = True
        self._written_bytes = self._taken_bytes = 0
        self._unsent_since = self._progress_at = Instant(self._loop.time())

    def resumed(self) -> None:
        """The socket has taken everything."""
        self._is_unsent = False
        held, self._unsent_held = self._unsent_held, 0
        self.queued.sent(held)

    def close(self) -> None:
        """Drop everything, the transport too: the connection is gone."""
        self._transport = None
        self.next = []
        self._next_held = self._unsent_held = 0
        self.queued.close()

    def unread_s(self, now: Instant, *, scarce: bool) -> float:
        """Return for how long the client has read nothing of what was written.

        If the budget is scarce, also for how long it has read more slowly than it must.
        """
        if not self._is_unsent or self._transport is None:
            return 0.0
        taken = self._written_bytes - self._transport.get_write_buffer_size()
        if taken > self._taken_bytes:
            self._taken_bytes = taken
            self._progress_at = now
        unsent_s = now - self._unsent_since
        if scarce and taken < READ_BYTES_PER_S_MIN * unsent_s:
            return unsent_s
        return now - self._progress_at
