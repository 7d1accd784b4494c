"""Work that nobody waits for, and that ends with the part of the broker that has begun it."""

import asyncio
from collections.abc import Coroutine


class Background:
    """Tasks under way; each is forgotten when it ends."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Start this work in the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel what is under way, and return when it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
