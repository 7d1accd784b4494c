"""A hostile load: how much, on which connections, and how often it has done what it does."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

PAUSE_S = 0.05
PATIENCE_S = 30.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Load:
    """Where to, how much, and what came of it."""

    host: str
    port: int
    seed: int
    size: float
    """1 for the proof; a slice of it in the suite is smaller."""
    done: int = 0
    names: "count[int]" = field(default_factory=count)

    def of(self, full: int) -> int:
        """So many at this size, at least one."""
        return max(1, round(full * self.size))

    async def several(self, full: int, client: Callable[[int], Awaitable[None]]) -> None:
        """Run so many clients side by side; each begins again whenever the broker ends it."""
        async with asyncio.TaskGroup() as clients:
            for number in range(self.of(full)):
                clients.create_task(self._again(client, number))

    async def _again(self, client: Callable[[int], Awaitable[None]], number: int) -> None:
        while True:
            try:
                await client(number)
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(PAUSE_S)

    @asynccontextmanager
    async def connected(self, *, receive_bytes: int | None = None) -> AsyncIterator[Streams]:
        """A connection, with a small receive buffer where that is asked for."""
        connection = socket.socket()
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.setblocking(False)
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, (self.host, self.port))
            limit = receive_bytes or 1 << 20
            reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
        except BaseException:
            connection.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, streams: Streams, frame: bytes) -> bytes:
        """Send a frame; return its answer."""
        streams[1].write(frame)
        self.done += 1
        return await answer(streams)

    async def flood(self, frame: bytes) -> None:
        """Send the same bytes as fast as they are taken, and read whatever comes."""
        async with self.connected() as (reader, writer):
            reading = asyncio.ensure_future(discard(reader))
            try:
                while not reading.done():
                    writer.write(frame)
                    await writer.drain()
                    self.done += 1
            finally:
                reading.cancel()


async def discard(reader: asyncio.StreamReader) -> None:
    """Read whatever comes."""
    with suppress(OSError):
        while await reader.read(1 << 18):
            pass


async def trickle(reader: asyncio.StreamReader, size: int) -> None:
    """Read so much at a time, slowly."""
    while True:
        if not await reader.read(size):
            return
        await asyncio.sleep(PAUSE_S)


async def answer(streams: Streams) -> bytes:
    """Read one answer."""
    reader, _ = streams
    async with asyncio.timeout(PATIENCE_S):
        size = struct.unpack(">i", await reader.readexactly(4))[0]
        return await reader.readexactly(size)
