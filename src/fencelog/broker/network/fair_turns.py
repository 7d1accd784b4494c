"""Fair turns: in one iteration of the loop, all connections share a few milliseconds of work.

One read of a socket may bring thousands of small requests, and the loop calls every readable socket
before it looks at timers and at sockets again. So work is measured by the time that it takes. When
the iteration's time is spent, all go on in the next ones, in turn and a slice each. One that has
used up a slice is heavy for a while: others come before it, and leave the heavy ones a quarter of
each iteration's time. So is one that its peer has closed: thousands may be at once.

Thousands that were silent may also wake at once. Those that have begun a request a moment ago come
before them, and leave them half of each iteration's time.
"""

import asyncio
from collections.abc import Callable

from fencelog.ports import Stopwatch

TURN_S = 0.005
"""What connections may take of one iteration of the loop, all together."""
SLICE_S = 0.001
"""What one may take before another one's turn, while others wait."""
LIGHT_SLICE_S = SLICE_S / 5
"""The same for one that had to wait and is not known as heavy: many of those may wait."""
LIGHT_TURN_S = 0.75 * TURN_S
"""What they may take of an iteration while heavy ones wait."""
HEAVY_S = 0.1
"""For how long a connection that has used up a slice comes after others."""
STEADY_S = 0.1
"""For how long a connection that has begun a request comes before those that were silent."""
STEADY_TURN_S = TURN_S / 2
"""What such ones may take of an iteration while silent ones wait."""
COROUTINE_S = 0.000_25
"""What counts for a request that a coroutine answers, beyond the time until it is begun."""
END_S = 0.000_05
"""What counts for closing a connection: the loop does most of it later."""
RECEIVED_BYTE_S = 0.25e-9
"""What counts for receiving a byte: the loop copies it before anything can be measured."""
RECEIVED_BYTES_MIN = 16 * 1024
"""Less is not counted: counting would take longer than receiving."""


class FairTurns:
    """Shares the iterations of one loop among connections.

    Invariant: while a connection waits, or more than a slice is spent, ``_next`` is due.
    """

    def __init__(self, stopwatch: Stopwatch) -> None:
        """``stopwatch`` measures work; the loop's own clock may stand still meanwhile."""
        self.stopwatch = stopwatch
        self.is_spent = False
        """Whether this iteration's time is used up."""
        self._spent_s = 0.0
        self._is_due = False
        self.steady: dict[Share, None] = {}
        self.light: dict[Share, None] = {}
        self.heavy: dict[Share, None] = {}

    def spend(self, seconds: float) -> None:
        """Count work of this iteration."""
        self._spent_s += seconds
        if self._spent_s >= SLICE_S:
            self.is_spent = self._spent_s >= TURN_S
            self.arm()

    def received(self, size: int) -> None:
        """Count bytes that were received, ``RECEIVED_BYTES_MIN`` or more."""
        self.spend(size * RECEIVED_BYTE_S)

    def begun_coroutine(self) -> None:
        """Count a request that a coroutine answers."""
        self.spend(COROUTINE_S)

    def ended(self) -> None:
        """Count a connection that its peer has closed."""
        self.spend(END_S)

    def slice_s(self) -> float:
        """Return how long a connection may go on whose data arrives now."""
        return SLICE_S if self._anybody_waits() else TURN_S

    def arm(self) -> None:
        """Those who wait go on in the next iteration."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the turn of the next iteration with those who wait."""
        self._is_due = self.is_spent = False
        self._spent_s = 0.0
        try:
            while self._anybody_waits() and not self.is_spent:
                light = self.light
                if self.steady and (not light or self._spent_s < STEADY_TURN_S):
                    light = self.steady
                if light and (not self.heavy or self._spent_s < LIGHT_TURN_S):
                    queue, slice_s = light, LIGHT_SLICE_S
                else:
                    queue, slice_s = self.heavy, SLICE_S
                share = next(iter(queue))
                del queue[share]
                share.take(slice_s)
        finally:
            if self._anybody_waits():
                self.arm()

    def _anybody_waits(self) -> bool:
        return bool(self.light or self.steady or self.heavy)


class Share:
    """One connection's part in the turns."""

    __slots__ = ("_go_on", "_heavy_until", "_slice_s", "_steady_until", "_turns", "is_queued")

    def __init__(self, turns: FairTurns, go_on: Callable[[], None]) -> None:
        """``go_on`` is called when a connection that had to wait has its turn."""
        self._turns = turns
        self._go_on: Callable[[], None] | None = go_on
        self._heavy_until = self._steady_until = 0.0
        self._slice_s = 0.0
        self.is_queued = False
        """Whether it waits for its turn: it begins nothing then."""

    def began(self, now: float) -> None:
        """It has begun requests."""
        self._steady_until = now + STEADY_S

    def yields(self) -> bool:
        """Return whether it has to wait for its turn, and see to it that it gets one."""
        turns = self._turns
        if turns.is_spent and not self.is_queued:
            now = turns.stopwatch()
            is_steady = now < self._steady_until
            queue = turns.steady if is_steady else turns.light
            self._queue(turns.heavy if now < self._heavy_until else queue)
        return self.is_queued

    def ends(self) -> bool:
        """Return whether it has to wait for its turn now that its peer has closed it."""
        if not self._turns.is_spent:
            self._turns.ended()
        elif not self.is_queued:
            self._queue(self._turns.heavy)
        return self.is_queued

    def is_over(self, began: float) -> bool:
        """Return whether its slice, which began then, is used up; if so, it waits for its turn."""
        now = self._turns.stopwatch()
        if now - began < LIGHT_SLICE_S or now - began < (self._slice_s or self._turns.slice_s()):
            return False
        self._heavy_until = now + HEAVY_S
        self._queue(self._turns.heavy)
        return True

    def take(self, slice_s: float) -> None:
        """Go on for so long: it is this connection's turn."""
        self.is_queued = False
        if self._go_on is not None:
            self._slice_s = slice_s
            self._go_on()
            self._slice_s = 0.0

    def close(self) -> None:
        """The connection is gone: it goes on no more."""
        self._go_on = None

    def _queue(self, queue: "dict[Share, None]") -> None:
        self.is_queued = True
        queue[self] = None
        self._turns.arm()
