"""Bounded concurrency for work that mostly waits for the disk."""

import asyncio
from collections.abc import Coroutine, Sequence

CONCURRENCY_MAX = 16
"""As many as the disk's threads: more would only wait for a thread."""


async def run_bounded(work: Sequence[Coroutine[None, None, None]]) -> None:
    """Run all coroutines, started in order, and others between them.

    If one raises, the others are cancelled.
    """
    left = iter(work)

    async def run() -> None:
        for piece in left:
            await piece
            await asyncio.sleep(0)  # what found no need to wait must not hold up everybody

    loop = asyncio.get_running_loop()
    workers = [loop.create_task(run()) for _ in range(min(CONCURRENCY_MAX, len(work)))]
    try:
        for worker in workers:
            await worker
    finally:
        for worker in workers:
            worker.cancel()
        for piece in left:
            piece.close()
        if workers:
            await asyncio.wait(workers)
