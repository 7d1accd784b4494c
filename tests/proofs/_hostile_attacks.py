"""What hostile clients do: ``python -m tests.proofs._hostile_attacks NAME HOST PORT SIZE SEED``.

It runs until its stdin ends. An attack has a preparation, which ends before the bystander begins,
and clients that go on until they are stopped. What the broker does to them (a closed connection,
an error) is its right; each connection that ends is followed by another. It prints how often it
did what it does.
"""

import asyncio
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random

import uvloop

from tests.proofs import _hostile_claims as claims
from tests.proofs import _hostile_frames as frames
from tests.proofs._hostile_load import PAUSE_S, Load, trickle
from tests.support.damage import join, mutated
from tests.support.requests import KEYS_AND_VERSIONS, a_request

BIG, MANY, PLAIN, COMPACTED, BOMB = "big", "many", "plain", "compacted", "bomb"
MANY_PARTITIONS = 100


async def create(load: Load, name: str, partitions: int = 1, **configs: str) -> None:
    """A topic that an attack needs."""
    async with load.connected() as streams:
        await load.ask(streams, frames.create([name], partitions, **configs))


async def fill(load: Load) -> None:
    """Write what fetches of the largest answer find."""
    await create(load, BIG)
    async with load.connected() as streams:
        request = frames.produce(BIG, frames.big_batch())
        for _ in range(frames.FETCH_BYTES // frames.BIG_BATCH_BYTES):
            await load.ask(streams, request)


async def fill_both(load: Load) -> None:
    """Write what huge fetches find, of one partition and of many."""
    await fill(load)
    await create(load, MANY, partitions=MANY_PARTITIONS)
    async with load.connected() as streams:
        request = frames.produce(MANY, frames.medium_batch(), partitions=MANY_PARTITIONS)
        for _ in range(frames.COPIED_BYTES // frames.MEDIUM_BATCH_BYTES):
            await load.ask(streams, request)


async def slow_readers(load: Load) -> None:
    """Huge fetches, read at 40 KiB/s."""
    request = frames.fetch(BIG, max_bytes=frames.FETCH_BYTES, max_wait_ms=30_000)

    async def client(_: int) -> None:
        async with load.connected(receive_bytes=4096) as (reader, writer):
            writer.write(request)
            load.done += 1
            await trickle(reader, 2048)

    await load.several(200, client)


async def no_readers(load: Load) -> None:
    """Huge fetches of one partition or of many, twenty on a connection; nothing is ever read."""
    one = frames.fetch(BIG, max_bytes=frames.FETCH_BYTES, max_wait_ms=30_000)
    many = frames.fetch(
        MANY, max_bytes=frames.COPIED_BYTES, max_wait_ms=30_000, partitions=MANY_PARTITIONS
    )

    async def client(number: int) -> None:
        async with load.connected(receive_bytes=4096) as (_, writer):
            writer.write((many if number % 2 else one) * 20)
            load.done += 20
            await asyncio.sleep(2 + number % 40)  # longer or shorter than the broker waits

    await load.several(200, client)


async def small_requests(load: Load) -> None:
    """Pipelined small requests, as fast as they are taken."""
    blob = frames.versions() * 5000
    await load.several(4, lambda _: load.flood(blob))


async def unacknowledged(load: Load) -> None:
    """Producers of single records with acks=0, as fast as they are taken."""
    blob = frames.produce(PLAIN, frames.record(), acks=0) * 2000
    await load.several(4, lambda _: load.flood(blob))


async def first_writes(load: Load) -> None:
    """A transaction that writes to 5,000 partitions for the first time; then they are deleted."""
    partitions = load.of(5_000)

    async def client(number: int) -> None:
        name = f"first-{number}-{next(load.names)}"
        async with load.connected() as streams:
            await load.ask(streams, frames.create([name], partitions))
            producer = frames.initialized(await load.ask(streams, frames.init(name, 60_000)))
            await load.ask(streams, frames.add_partitions(name, producer, name, partitions))
            batch = frames.record(
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=0,
                transactional=True,
            )
            wanted = frames.produce(name, batch, partitions=partitions, transactional_id=name)
            await load.ask(streams, wanted)
            await load.ask(streams, frames.end(name, producer, committed=True))
            await load.ask(streams, frames.delete([name]))

    await load.several(1, client)


async def deletes(load: Load) -> None:
    """Two thousand topics are made and deleted by one request each."""

    async def client(number: int) -> None:
        names = [f"gone-{number}-{next(load.names)}" for _ in range(load.of(2_000))]
        async with load.connected() as streams:
            await load.ask(streams, frames.create(names, 1))
            await load.ask(streams, frames.delete(names))

    await load.several(1, client)


async def write_bombs(load: Load) -> None:
    """Store the batches that lookups by time open."""
    await create(load, BOMB)
    async with load.connected() as streams:
        for _ in range(4):
            await load.ask(streams, frames.produce(BOMB, frames.bomb()))


async def lookups(load: Load) -> None:
    """Lookups by time in batches of 2 KB that hold three million records each."""

    async def client(number: int) -> None:
        async with load.connected() as streams:
            for timestamp in count(1 + number):
                await load.ask(streams, frames.lookup(BOMB, 1 + timestamp % 999))

    await load.several(4, client)


async def short_timeouts(load: Load) -> None:
    """Fetches and produces that wait 1 to 5 ms."""

    async def client(number: int) -> None:
        wait_ms = 1 + number % 5
        fetch = frames.fetch(PLAIN, max_bytes=1000, max_wait_ms=wait_ms, offset=1 << 40)
        produce = frames.produce(PLAIN, frames.record(), timeout_ms=wait_ms)
        async with load.connected() as streams:
            while True:
                await load.ask(streams, fetch if number % 2 else produce)

    await load.several(100, client)


async def expiring(load: Load) -> None:
    """Waves of transactions that are out of time when they are ended."""

    async def client(number: int) -> None:
        name = f"expires-{number}"
        async with load.connected() as streams:
            while True:
                wait_ms = 1 + number % 5
                producer = frames.initialized(await load.ask(streams, frames.init(name, wait_ms)))
                await load.ask(streams, frames.add_partitions(name, producer, PLAIN, 1))
                await asyncio.sleep(wait_ms / 1000)
                await load.ask(streams, frames.end(name, producer, committed=True))

    await load.several(200, client)


async def connections(load: Load) -> None:
    """Ten thousand connections are opened, asked for one answer, and closed."""

    async def client(_: int) -> None:
        async with load.connected() as streams:
            await load.ask(streams, frames.versions())

    await load.several(1000, client)


async def many_topics(load: Load) -> None:
    """Make what metadata has to name."""
    for first in range(0, load.of(5_000), 500):
        names = [f"named-{first + number}" for number in range(min(500, load.of(5_000)))]
        async with load.connected() as streams:
            await load.ask(streams, frames.create(names, 1))


async def metadata(load: Load) -> None:
    """Metadata of 5,000 topics, pipelined on 100 connections; half of them read slowly."""
    blob = frames.everything() * 10

    async def client(number: int) -> None:
        if number % 2:
            await load.flood(blob)
        async with load.connected(receive_bytes=16384) as (reader, writer):
            writer.write(blob)
            load.done += 10
            await trickle(reader, 16384)

    await load.several(100, client)


async def announcements(load: Load) -> None:
    """Frames that announce 90 MiB and come by the kilobyte."""

    async def client(_: int) -> None:
        async with load.connected() as (_reader, writer):
            writer.write(struct.pack(">i", 90 << 20) + bytes(64 << 10))
            load.done += 1
            while True:
                await asyncio.sleep(PAUSE_S)
                if writer.is_closing():
                    break
                writer.write(bytes(1024))

    await load.several(300, client)


async def bombs(load: Load) -> None:
    """Compressed batches for a compacted topic, whose records have to be looked through."""
    both = frames.compressed_bombs(COMPACTED)

    async def client(number: int) -> None:
        async with load.connected() as streams:
            while True:
                await load.ask(streams, both[number % 2])

    await load.several(4, client)


async def malformed(load: Load) -> None:
    """Damaged requests of every API, a connection for each."""

    async def client(number: int) -> None:
        random = Random(f"{load.seed}/{number}")
        while True:
            stream = join([a_request(*random.choice(KEYS_AND_VERSIONS), random)])
            stream = mutated(stream, random, 1 << 14)
            async with load.connected() as (reader, writer):
                writer.write(stream)
                load.done += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await reader.read(1 << 16)

    await load.several(50, client)


async def plain_topic(load: Load) -> None:
    """Make a topic to write to."""
    await create(load, PLAIN)


async def compacted_topic(load: Load) -> None:
    """Make a topic whose records the broker looks through."""
    await create(load, COMPACTED, cleanup_policy="compact")
    frames.compressed_bombs(COMPACTED)


async def nothing(load: Load) -> None:
    """Prepare nothing."""
    del load


Step = Callable[[Load], Awaitable[None]]
ATTACKS: dict[str, tuple[Step, Step]] = {
    "slow readers": (fill, slow_readers),
    "no readers": (fill_both, no_readers),
    "small requests": (nothing, small_requests),
    "acks=0": (plain_topic, unacknowledged),
    "first writes": (nothing, first_writes),
    "deletes": (nothing, deletes),
    "lookups by time": (write_bombs, lookups),
    "short timeouts": (plain_topic, short_timeouts),
    "expiring transactions": (plain_topic, expiring),
    "connections": (nothing, connections),
    "metadata": (many_topics, metadata),
    "announcements": (nothing, announcements),
    "compressed bombs": (compacted_topic, bombs),
    "malformed frames": (nothing, malformed),
    "bursts of claims": (nothing, claims.bursts),
    "waiting claims": (nothing, claims.waiting),
    "refused claims": (claims.hold, claims.refused),
    "unread watches": (claims.hold, claims.unread_watches),
}
"""By name: what is prepared, and what the clients do."""


async def attack(name: str, load: Load) -> None:
    """Prepare, say so, wait for a line, and go on until stdin ends."""
    prepare, run = ATTACKS[name]
    await prepare(load)
    load.done = 0
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.readline)
    running = asyncio.ensure_future(run(load))
    ended = loop.run_in_executor(None, sys.stdin.read)
    await asyncio.wait([running, ended], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()  # it has failed: an attack does not end by itself
    running.cancel()
    await asyncio.wait([running])
    print(load.done)


if __name__ == "__main__":
    _, name, host, port, size, seed = sys.argv
    uvloop.run(attack(name, Load(host, int(port), int(seed), float(size))))
