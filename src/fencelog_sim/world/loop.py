"""An event loop whose time is virtual and whose order of task steps comes from a seed.

Nothing waits: when no callback is ready, the clock jumps to the next timer. Each callback belongs
to a simulated process, named by a context variable that tasks and callbacks inherit. The callbacks
of a killed process are dropped, so none of its ``finally`` blocks runs, as after ``kill -9``; those
of a paused one are put aside until it goes on.

Callbacks of protocols keep the order in which they were made, as sockets do; only the steps of
tasks that are ready in the same iteration are shuffled.
"""

import asyncio
import contextvars
import heapq
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from hashlib import blake2b
from random import Random
from socket import AF_INET, SOCK_STREAM
from struct import Struct
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, cast

from fencelog.types import Buffer
from fencelog_sim.world.endless import steps_end

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURN_S = 1e-6
"""The virtual time of one iteration, so that a loop without waits does not stop the clock."""
DIGEST_BUFFER_BYTES = 1 << 16
CANCELLED_TIMERS_MAX = 512

_EVENT: Final = Struct("<dHI").pack


class Process:
    """A program on a simulated host, from its start to its end. A restarted one is another."""

    __slots__ = ("alive", "context", "host", "name", "number", "on_end", "parked", "paused")

    def __init__(self, name: str, number: int, host: str) -> None:
        """Made by ``SimLoop.process``."""
        self.name = name
        self.number = number
        self.host = host
        self.alive = True
        self.paused = False
        self.parked: list[asyncio.Handle] = []
        self.on_end: Callable[[], None] | None = None
        self.context = contextvars.copy_context()
        self.context.run(current_process.set, self)


current_process: contextvars.ContextVar[Process] = contextvars.ContextVar("current_process")


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number: sets of tasks have the same order in every run."""

    number = 0
    process: Process | None = None

    def __hash__(self) -> int:
        """The task's number."""
        return self.number


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is its number."""

    number = 0

    def __hash__(self) -> int:
        """The future's number."""
        return self.number


class SimTimer(asyncio.Handle):
    """A callback at a virtual time. It does not tell that time: uvloop's handles may not either."""

    is_scheduled = True
    """Whether it waits among the loop's timers."""

    def cancel(self) -> None:
        """Do not run the callback."""
        counts = self.is_scheduled and not self.cancelled()
        super().cancel()
        if counts:
            cast(SimLoop, self._loop).count_cancelled_timer()  # type: ignore[attr-defined]


class StuckError(Exception):
    """Nothing is left to run, but the run's main task still waits."""


class Wires(Protocol):
    """The network as the loop sees it."""

    def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.AbstractServer:
        """Bind an address for the running process."""
        ...

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection from the running process."""
        ...


_graves: list[object] = []
"""The tasks of killed processes. Kept for ever: collecting a coroutine runs its ``finally``."""


class SimLoop(asyncio.BaseEventLoop):
    """The loop of one run. ``digest`` sums up everything that happened, in order."""

    def __init__(self, seed: str) -> None:
        """Start at time zero."""
        super().__init__()
        self._random = Random(f"{seed}/schedule").random
        self._now = 0.0
        self._queue: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, SimTimer]] = []
        self._timer_number = 0
        self._cancelled_timers = 0
        self._numbers = 0
        self._hash = blake2b(digest_size=16)
        self._hashed = bytearray()
        self.events = 0
        self.outside = Process("world", 0, "")
        self.processes: list[Process] = [self.outside]
        self.after_event: Callable[[Process], None] | None = None
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._broken)
        self.errors: list[str] = []
        self.wires: Wires | None = None

    # -- time and order ------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the start of the run."""
        return self._now

    def run(self, main: Coroutine[Any, Any, T], *, limit_s: float) -> T:
        """Run a coroutine of the world itself to its end, once; what still waits then is kept.

        Raises StuckError when nothing is left to wait for, TimeoutError past the virtual limit, and
        EndlessStepError.
        """
        task = self.start(self.outside, main)
        before = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        # Generators of killed processes must not be closed when they are collected.
        sys.set_asyncgen_hooks(_graves.append, _graves.append)
        try:
            with steps_end(self.time):
                while not task.done():
                    self._iterate()
                    if self._now > limit_s:
                        raise TimeoutError(f"it did not end within {limit_s:.0f} virtual seconds")
        finally:
            sys.set_asyncgen_hooks(*before)
            asyncio._set_running_loop(None)
            self._bury()
        return task.result()

    def is_running(self) -> bool:
        """Whether ``run`` is under way."""
        return asyncio._get_running_loop() is self

    def _iterate(self) -> None:
        """Run what is ready now, or jump to what is next."""
        timers, queue = self._timers, self._queue
        self._now += TURN_S
        if not queue:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
                self._cancelled_timers -= 1
            if not timers:
                raise StuckError("nothing is left to wait for")
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            if handle._cancelled:
                self._cancelled_timers -= 1
            else:
                handle.is_scheduled = False
                queue.append(handle)
        batch = list(queue)
        queue.clear()
        if len(batch) > 1:
            self._shuffle(batch)
        self._run_batch(batch)

    def _run_batch(self, batch: list[asyncio.Handle]) -> None:
        after = self.after_event
        for handle in batch:
            if handle._cancelled:
                continue
            process: Process = handle._context.get(current_process, self.outside)  # type: ignore[attr-defined]
            if not process.alive:
                _graves.append(handle)
                continue
            if process.paused:
                process.parked.append(handle)
                continue
            self.events += 1
            step = getattr(getattr(handle._callback, "__self__", None), "number", 0)  # type: ignore[attr-defined]
            self._hashed += _EVENT(self._now, process.number, step)
            handle._run()
            if after is not None:
                after(process)
        if len(self._hashed) > DIGEST_BUFFER_BYTES:
            self._hash.update(self._hashed)
            self._hashed.clear()

    def _shuffle(self, batch: list[asyncio.Handle]) -> None:
        """Permute the steps of tasks among their places."""
        places = [
            place
            for place, handle in enumerate(batch)
            if type(getattr(handle._callback, "__self__", None)) is SimTask  # type: ignore[attr-defined]
        ]
        random = self._random
        for last in range(len(places) - 1, 0, -1):
            other = int(random() * (last + 1))
            one, two = places[last], places[other]
            batch[one], batch[two] = batch[two], batch[one]

    # -- the digest ----------------------------------------------------------------------------

    def note(self, what: Buffer) -> None:
        """Add bytes to the digest: what was sent, written or decided."""
        self._hashed += what

    def digest(self) -> str:
        """Everything that happened so far, as 32 hexadecimal digits."""
        self._hash.update(self._hashed)
        self._hashed.clear()
        return self._hash.hexdigest()

    # -- processes -----------------------------------------------------------------------------

    def process(self, name: str, host: str) -> Process:
        """A new process; its first task is made by ``start``."""
        process = Process(name, len(self.processes), host)
        self.processes.append(process)
        return process

    def start(self, process: Process, main: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as part of a process."""
        return self._make_task(self, main, process.context)

    def kill(self, process: Process) -> None:
        """End a process: nothing of it runs again."""
        process.alive = False
        _graves.extend(process.parked)
        process.parked.clear()
        # Kept, or they would be closed and their ``finally`` blocks run.
        _graves.extend(
            task
            for task in asyncio.all_tasks(self)
            if isinstance(task, SimTask) and task.process is process
        )

    def pause(self, process: Process) -> None:
        """Pause a process (SIGSTOP)."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Resume a paused process; what became due meanwhile runs first, in order."""
        process.paused = False
        parked, process.parked = process.parked, []
        self._queue.extend(parked)

    def _bury(self) -> None:
        """Keep everything that still waits, so that it ends with the interpreter and not before."""
        _graves.extend(asyncio.all_tasks(self))
        _graves.append((list(self._queue), list(self._timers)))
        self._closed = True

    # -- asyncio's interface of a loop ---------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run a callback in the next iteration."""
        handle = asyncio.Handle(callback, args, self, context)
        self._queue.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As ``call_soon``: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimTimer:
        """Run a callback after so many virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimTimer:
        """Run a callback at a virtual time."""
        handle = SimTimer(callback, args, self, context)
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, handle))
        return handle

    def count_cancelled_timer(self) -> None:
        """A timer was cancelled; many of them are removed at once."""
        self._cancelled_timers += 1
        if self._cancelled_timers > max(CANCELLED_TIMERS_MAX, len(self._timers) // 2):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def create_future(self) -> "asyncio.Future[Any]":
        """A future with a number."""
        future = SimFuture(loop=self)
        self._numbers += 1
        future.number = self._numbers
        return future

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[T]":
        # The number is there before the task's constructor puts it into a set.
        task = SimTask.__new__(SimTask)
        self._numbers += 1
        task.number = self._numbers
        task.process = (
            context.get(current_process) if context is not None else current_process.get(None)
        )
        SimTask.__init__(task, coro, loop=loop, context=context)
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Call at once: there are no threads."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the future's
            future.set_exception(error)
        return future

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **options: object,
    ) -> asyncio.AbstractServer:
        """Listen in the simulated network."""
        assert self.wires is not None
        assert not options.get("ssl"), "TLS is outside the simulator"
        return self.wires.listen(protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **options: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect in the simulated network."""
        assert self.wires is not None
        assert not options.get("ssl"), "TLS is outside the simulator"
        return await self.wires.connect(protocol_factory, host, port)

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **options: int
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """Names are addresses already."""
        del options
        return [(AF_INET, SOCK_STREAM, 6, "", (host, port))]

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep what a callback raised: no process may leave an exception unhandled."""
        del loop
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")
