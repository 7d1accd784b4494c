"""What hostile claimants do: storms of claims, and claims and watches that wait by the thousand."""

import asyncio
from contextlib import AsyncExitStack

from tests.proofs import _hostile_frames as frames
from tests.proofs._hostile_load import Load, Streams, answer, trickle

GROUP, HELD, ANY = "hostile", "held", "any"
CROWD = 5_000
WAITING = 9_900
"""As many connections as a broker takes, but for a few."""
CLAIMS, CLAIM_RESOURCES = 100, 1_000
CROWDED_CLAIM = 100_000
WAIT_MS = 60_000


async def _granted(load: Load, streams: Streams, names: list[str], generation: int = -1) -> None:
    claim = frames.own(GROUP, names, generation=generation)
    answered = frames.owned(await load.ask(streams, claim))
    assert not answered.error_code, answered.error_message


async def _crowd(load: Load, stack: AsyncExitStack, size: int) -> list[Streams]:
    return [await stack.enter_async_context(load.connected()) for _ in range(load.of(size))]


def _names(claim: int) -> list[str]:
    return [f"{claim}-{number}" for number in range(CLAIM_RESOURCES)]


async def hold(load: Load) -> None:
    """Claim a hundred thousand resources once, and one twice: its numbers are known."""
    for claim in range(load.of(CLAIMS)):
        async with load.connected() as streams:
            await _granted(load, streams, _names(claim))
    for _ in range(2):
        async with load.connected() as streams:
            await _granted(load, streams, [HELD], generation=9)


async def bursts(load: Load) -> None:
    """Five thousand claims wait, are answered together, ask at once, and close at once."""

    async def client(_: int) -> None:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            holder = await stack.enter_async_context(load.connected())
            await _granted(load, holder, [HELD])
            crowd = await _crowd(load, stack, CROWD)
            ends = loop.time() + 0.3 * len(crowd) / 1000
            for number, (_, writer) in enumerate(crowd):
                wait_ms = max(1, round(1000 * (ends - loop.time())))
                writer.write(frames.own(GROUP, [HELD], claim_id="1", wait_ms=wait_ms))
                if number % 100 == 99:
                    await asyncio.sleep(0)  # they are sent at the end of an iteration
            for streams in crowd:
                await answer(streams)
            for _, writer in crowd:
                writer.write(frames.versions())
            for streams in crowd:
                await answer(streams)
            load.done += 2 * len(crowd)

    await load.several(1, client)


async def waiting(load: Load) -> None:
    """Ten thousand claims wait for one resource; whoever gets it goes away and waits again."""
    claim = frames.own(GROUP, [HELD], claim_id="1", wait_ms=WAIT_MS)

    async def client(_: int) -> None:
        async with load.connected() as streams:
            streams[1].write(claim)
            load.done += 1
            await answer(streams)

    await load.several(WAITING, client)


async def refused(load: Load) -> None:
    """Claims that are refused (owned, stale, fenced, too large), as fast as they are taken."""
    names = _names(0)
    kinds = [
        frames.own(GROUP, [HELD], generation=1) * 200,
        frames.own(GROUP, [HELD], prev_epoch=1) * 200,
        frames.own(GROUP, names, prev_epoch=7) * 4,
        frames.own(GROUP, [f"{number}" for number in range(CROWDED_CLAIM)]),
    ]

    async def client(number: int) -> None:
        if number:
            await load.flood(kinds[number % len(kinds)])
        async with load.connected() as streams:
            await _granted(load, streams, [HELD], generation=9)
            await answer(streams)  # nothing comes: others are refused while it holds this

    await load.several(9, client)


async def unread_watches(load: Load) -> None:
    """Watches of a hundred thousand resources, from the first revision on, read by the byte."""
    watch = frames.watch(GROUP, seen_revision=-1) * 20

    async def client(number: int) -> None:
        if not number:
            async with load.connected() as streams:
                while True:
                    await _granted(load, streams, [HELD], generation=9)
                    await load.ask(streams, frames.release(GROUP, [HELD]))
        async with load.connected(receive_bytes=4096) as (reader, writer):
            writer.write(watch)
            load.done += 20
            await trickle(reader, 1)

    await load.several(1_000, client)
