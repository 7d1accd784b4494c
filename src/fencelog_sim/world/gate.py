"""How a simulated device is controlled: the fault at an operation, and its delay.

A gate answers in the very step in which an operation takes effect, so that a kill or a fault hits
it exactly. A delay is awaited ahead of that, by those operations only that wait on a real device.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, NoReturn

IO_ERROR = "Input/output error"
NO_SPACE = "No space left on device"


class Halt(NamedTuple):
    """The process ends inside the operation, which never returns."""

    done: int = 0
    """How much takes effect before: bytes of an append, names of a removed tree."""
    then: Callable[[], None] | None = None
    """Called once that has taken effect, still in the same step: where the process is killed."""


class Fault(NamedTuple):
    """The operation fails as the device's own failures do."""

    reason: str = IO_ERROR
    done: int = 0
    """As in ``Halt``. Of a write of metadata: whether a crash may find it done after all."""


class Lost(NamedTuple):
    """The answer of a write to the metadata store does not arrive."""

    is_stored: bool
    """Whether the write takes effect, if its versions are the ones it expects."""
    after_s: float = 0.0
    """How long after the caller has given up."""


Gate = Callable[[str, str, int], Halt | Fault | None]
"""Takes verb, path or key, and size in bytes; None lets the operation happen. Never blocks."""

Delay = Callable[[str, str, int], Awaitable[None]]
"""Takes the same, and returns when the device is through with its work."""


class Device:
    """The common part of the simulated disk and metadata store: hooks, and an end.

    One device object is one process's view. It ends with the process; after that nothing that is
    asked of it takes effect or returns.
    """

    def __init__(self) -> None:
        """No hooks."""
        self.gate: Gate | None = None
        self.delay: Delay | None = None
        self._ended = False
        self._halted: list[asyncio.Future[None]] = []

    def verdict(self, verb: str, name: str, size: int = 0) -> Halt | Fault | None:
        """The fault at an operation that is about to take effect."""
        if self._ended:
            return Halt()
        return None if self.gate is None else self.gate(verb, name, size)

    async def wait(self, verb: str, name: str, size: int = 0) -> None:
        """Return when a slow operation may take effect; without a delay at once."""
        if self.delay is not None:
            await self.delay(verb, name, size)

    async def halt(self, halt: Halt) -> NoReturn:
        """End the process in this step, and never return."""
        if halt.then is not None:
            halt.then()
        self._ended = True
        # Kept here: a task that waits for a forgotten future is collected, and its ``finally`` run.
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._halted.append(never)
        await never
        raise AssertionError(halt)
