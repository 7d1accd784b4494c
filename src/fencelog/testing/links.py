"""What is between the brokers of a test: connections that can be cut and healed.

Each broker connects to another through a proxy of its own for that pair. A cut one holds back what
was sent, in both directions, and accepts connections without serving them: nobody is told that the
other side is out of reach, as with a cable that is pulled.
"""

import asyncio
from contextlib import suppress

HOST = "127.0.0.1"
ACCEPT_STEPS = 3
"""Iterations of asyncio's loop from the acceptance of a socket to its connection."""
CHUNK_BYTES = 1 << 16


async def accept_no_more(server: asyncio.Server) -> None:
    """Stop accepting: a server that is closed drops what it is accepting without closing it."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(ACCEPT_STEPS):
        await asyncio.sleep(0)


class Link:
    """The way from one broker to another."""

    def __init__(self, target_port: int) -> None:
        """Open until ``cut``; ``start`` makes the port."""
        self._target_port = target_port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._server: asyncio.Server | None = None
        self._accepted: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen: on a free port at first, then on the same one."""
        if self._server is not None and self._server.is_serving():
            return
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Reset and refuse connections, as the machine of a process that has ended does."""
        if self._server is not None:
            await accept_no_more(self._server)
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for each in self._accepted:
            each.transport.abort()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Hold back everything from now on."""
        self._is_open.clear()

    def heal(self) -> None:
        """Let everything through, also what was held back."""
        self._is_open.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not in the task: one that is cancelled before its first step releases nothing.
        self._accepted.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._accepted.discard(writer)
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._is_open.wait()
        with suppress(OSError):  # refused there, so reset here
            await self._connect(reader, writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry both ways until one of them ends."""
        there, back = await asyncio.open_connection(HOST, self._target_port)
        ways = (self._carry(reader, back), self._carry(there, writer))
        tasks = [asyncio.create_task(each) for each in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            back.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                await self._is_open.wait()
                target.write(data)
                await target.drain()
