"""A listening socket of the simulated network, as asyncio's servers have it."""

import asyncio
from collections.abc import MutableMapping
from typing import Any, Never, Self, TypeAlias

from fencelog_sim.world.loop import SimLoop

Address: TypeAlias = tuple[str, int]


class SimServer(asyncio.AbstractServer):
    """A listening socket."""

    def __init__(
        self, listeners: MutableMapping[Address, Any], address: Address, loop: SimLoop
    ) -> None:
        """Made by ``Network.listen``, which keeps who listens where."""
        self._listeners = listeners
        self._address = address
        self._loop = loop
        self.sockets = [self]

    def getsockname(self) -> Address:
        """The address bound."""
        return self._address

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Nothing to do: there is no kernel."""

    def dup(self) -> Self:
        """The same listening socket."""
        return self

    def listen(self, backlog: int) -> None:
        """Nothing to do: every connection is accepted at once."""

    def __enter__(self) -> Self:
        """A copy of a socket is closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """It is no copy."""

    def close(self) -> None:
        """Refuse connections from now on; those accepted stay."""
        self._listeners.pop(self._address, None)

    async def wait_closed(self) -> None:
        """Return: nothing is left to do."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the run."""
        return self._loop

    async def start_serving(self) -> None:
        """Nothing to do: it listens from the start."""

    async def serve_forever(self) -> Never:
        """Wait for ever."""
        await self._loop.create_future()
        raise AssertionError

    def is_serving(self) -> bool:
        """Whether connections are accepted."""
        return self._address in self._listeners
