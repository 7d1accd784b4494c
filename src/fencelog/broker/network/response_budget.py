"""One budget over queued responses, of all connections: counts, grants and who waits for them.

A large response counts from its grant, before its data is read, any other from the moment it is
ready, both until the socket has taken the last byte: while it waits for its order, in the list to
send next, and in the transport's write buffer. What counts is the memory that it keeps.

Grants are given in order of arrival, and only so many in one iteration of the loop: reading what
they are for takes time, and a budget that is free again must not be read full at once. While the
budget is scarce a grant is smaller than what was asked for, so that many slow readers cannot use it
up with a few large responses each.
"""

import asyncio
from collections.abc import Sequence

from fencelog.types import Buffer, Instant

GRANT_BYTES_MIN = 1024 * 1024
"""No grant is smaller, unless less was asked for: a response of one batch fits."""
SMALL_BYTES = 16 * 1024
"""A connection with nothing queued gets so much at once, whatever the others have."""
UNCOUNTED_BYTES = 256
"""Smaller responses count only from when the socket does not take them: most are sent at once."""
GRANTS_PER_ITERATION_BYTES = 4 * 1024 * 1024
"""Once so much is granted, the next grant waits for the next iteration of the loop."""
SHARE = 4
"""The part of the free budget that one grant may take is one of so many."""


class _Waiter:
    """A connection that waits for a grant."""

    __slots__ = ("granted", "is_late", "least", "responses", "wanted")

    def __init__(self, responses: "QueuedResponses", wanted: int, least: int) -> None:
        self.responses = responses
        self.wanted = wanted
        self.least = least
        self.is_late = False
        """Whether its deadline has passed: it waits for its turn only, not for others to read."""
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wait_late(self) -> None:
        """Go on waiting after the deadline, whose timeout has cancelled the future."""
        self.is_late = True
        self.granted = asyncio.get_running_loop().create_future()


class ResponseBudget:
    """The bytes that all connections share.

    Invariant: ``free`` and the ``held`` of all open ``QueuedResponses`` add up to ``bytes_max``.
    ``free`` is negative while responses of unforeseen size are queued beyond the budget.
    """

    def __init__(self, bytes_max: int) -> None:
        """Start with all of it free."""
        self._bytes_max = bytes_max
        self.free = bytes_max
        self._waiters: dict[_Waiter, None] = {}  # in order of arrival
        self._granted_now = 0
        """What was granted in this iteration of the loop."""

    def reserve(self, bytes_max: int) -> "ResponseBudget":
        """Set bytes aside, from now on for connections that ``move`` to the budget returned."""
        self._bytes_max -= bytes_max
        self.free -= bytes_max
        return ResponseBudget(bytes_max)

    @property
    def is_exceeded(self) -> bool:
        """Whether only connections with nothing queued may begin a request."""
        return self.free <= 0

    @property
    def is_scarce(self) -> bool:
        """Whether somebody has to wait until others have read."""
        first = next(iter(self._waiters), None)
        if first is None:
            return self.free < GRANT_BYTES_MIN
        return not self._grantable(first.wanted, first.least)

    def take(self, size: int) -> None:
        """Count bytes, also beyond the budget."""
        self.free -= size

    def release(self, size: int) -> None:
        """Uncount bytes, and grant them to those that wait."""
        self.free += size
        assert self.free <= self._bytes_max, (self.free, self._bytes_max)
        if self._waiters:
            self._grant_waiting()

    def _grant_waiting(self) -> None:
        while self._waiters and self._granted_now < GRANTS_PER_ITERATION_BYTES:
            waiter = next(iter(self._waiters))
            if waiter.granted.done():  # cancelled: its connection is gone or its deadline passed
                del self._waiters[waiter]
                continue
            size = self._grantable(waiter.wanted, waiter.least)
            if not size:
                self._send_late_away()
                return
            del self._waiters[waiter]
            self._count(size)
            waiter.responses.granted(size)
            waiter.granted.set_result(None)

    def _send_late_away(self) -> None:
        for waiter in [each for each in self._waiters if each.is_late]:
            del self._waiters[waiter]
            if not waiter.granted.done():
                waiter.granted.set_result(None)

    def _count(self, size: int) -> None:
        if not self._granted_now:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        self._granted_now += size

    def _begin_iteration(self) -> None:
        self._granted_now = 0
        self._grant_waiting()

    def at_once(self, wanted: int, least: int) -> int:
        """Return the bytes that a newcomer may have now: none while others wait."""
        if self._waiters or self._granted_now >= GRANTS_PER_ITERATION_BYTES:
            return 0
        size = self._grantable(wanted, least)
        if size:
            self._count(size)
        return size

    def wait(self, waiter: _Waiter) -> None:
        """Queue behind those that came before; one that waits already keeps its place."""
        self._waiters[waiter] = None
        self._grant_waiting()

    def give_up(self, waiter: _Waiter) -> None:
        """Wait no more; nothing happens where the grant was given."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            self._grant_waiting()

    def _grantable(self, wanted: int, least: int) -> int:
        """Return what of the wanted bytes is granted now; 0 if it would be less than ``least``."""
        least = min(wanted, least, self._bytes_max)
        if least > self.free:
            return 0
        return min(wanted, max(least, self.free // SHARE))


class QueuedResponses:
    """One connection's part of the budget."""

    __slots__ = ("_budget", "_granted", "held")

    def __init__(self, budget: ResponseBudget) -> None:
        """Start with nothing queued."""
        self._budget = budget
        self.held = 0
        """Bytes that count: the grant and what is queued."""
        self._granted = 0

    def move(self, budget: ResponseBudget) -> None:
        """Count in another budget from now on. Not while a grant is waited for."""
        self._budget.release(self.held)
        self._budget = budget
        budget.take(self.held)

    @property
    def is_scarce(self) -> bool:
        """Whether others that count in the same budget may wait for what this one has."""
        return self._budget.is_scarce

    @property
    def may_begin(self) -> bool:
        """Whether another request of this connection may begin."""
        return not self.held or not self._budget.is_exceeded

    async def grant(
        self, wanted: int, deadline: Instant | None = None, *, least: int = GRANT_BYTES_MIN
    ) -> int:
        """Return how many bytes a response may have, up to ``wanted``.

        0 if others have to read first and the deadline has passed; a turn that comes in one of the
        next iterations is waited for all the same. Not fewer than ``least``, or the whole budget
        where that is smaller. The grant counts until the response is queued, or until
        ``give_back``. One at a time.
        """
        assert not self._granted
        if not wanted or (wanted <= SMALL_BYTES and not self.held):
            self.granted(wanted)
            return wanted
        if size := self._budget.at_once(wanted, least):
            self.granted(size)
            return size
        waiter = _Waiter(self, wanted, least)
        self._budget.wait(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter.granted
        except TimeoutError:
            # Unless it came in the same iteration.
            if waiter.granted.cancelled() and not self._budget.is_scarce:
                waiter.wait_late()
                self._budget.wait(waiter)
                await waiter.granted
        finally:
            self._budget.give_up(waiter)
        return self._granted

    def granted(self, size: int) -> None:
        """Count a grant."""
        self._granted = size
        self.held += size
        self._budget.take(size)

    def give_back(self) -> None:
        """Return a grant that was not used."""
        size, self._granted = self._granted, 0
        if size:
            self.sent(size)

    def queue(self, size: int) -> None:
        """Count a response that is ready."""
        self.held += size
        self._budget.take(size)

    def sent(self, size: int) -> None:
        """Uncount bytes that are kept no more."""
        self.held -= size
        assert self.held >= 0, self.held
        self._budget.release(size)

    def close(self) -> None:
        """Uncount everything: the connection is gone."""
        self._granted = 0
        self.sent(self.held)


def held_bytes(response: Sequence[Buffer], size: int) -> int:
    """Return the memory that a response of this size keeps.

    A view keeps all of the buffer that it shows; one of a mapped file counts by itself, because it
    keeps no memory beyond the pages that are sent. None for a small response of plain bytes.
    """
    if size <= UNCOUNTED_BYTES and memoryview not in map(type, response):
        return 0
    total = 0
    shown: set[int] = set()
    for buffer in response:
        if isinstance(buffer, memoryview):
            whole = buffer.obj
            if isinstance(whole, bytes | bytearray):
                if id(whole) not in shown:
                    shown.add(id(whole))
                    total += len(whole)
                continue
            total += buffer.nbytes
        else:
            total += len(buffer)
    return total
