"""A reader of a group that copies a stream: each event and its position in one transaction."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from fencelog.client.asynchronous import Client
from fencelog.client.streams.group_reader import GroupReader
from fencelog.errors import FencelogError
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, options_of
from fencelog_sim.workloads.settling import RETRY_S
from fencelog_sim.workloads.stream_client import NAME

GROUP = "copiers"
OUTPUT = "streams-copied"
FAILED: tuple[type[Exception], ...] = (FencelogError, *ERRORS)
"""What a reader may meet: it is offline, its segment is another's, its broker is away."""
LEASES_S = (0.6, 2.0)
LAST_LEASE_S = 10.0
WINDOW_S = 0.3
BATCH_EVENTS = 5
LEAVE_SHARE = 0.1
"""Of batches, those after which a reader leaves the group, to join again."""
ABORT_SHARE = 0.1
LOOK_S = 0.1


class _GivenUpError(FencelogError):
    """The transaction is to be aborted."""


async def keep_copying(
    stage: Stage, name: str, until: Callable[[], Awaitable[bool]], *, is_last: bool = False
) -> None:
    """Copy as one reader of the group, which leaves and joins, until something is so.

    ``is_last``: it stays, and gives nothing up.
    """
    copying = asyncio.create_task(_copy_again_and_again(stage, name, is_last=is_last))
    try:
        while not await until():  # noqa: ASYNC110 - the time is virtual
            await asyncio.sleep(LOOK_S)
    finally:
        copying.cancel()
        await asyncio.wait([copying])
    if not copying.cancelled() and (error := copying.exception()) is not None:
        raise error


async def _copy_again_and_again(stage: Stage, name: str, *, is_last: bool) -> None:
    while True:
        try:
            async with Client(options_of(stage)) as client:
                group = client.reader_group(GROUP, NAME)
                lease_s = LAST_LEASE_S if is_last else stage.random.choice(LEASES_S)
                reader = group.reader(name, lease_s=lease_s, window_s=WINDOW_S)
                async with reader:
                    await _copy(stage, reader, is_last=is_last)
        except FAILED:
            await asyncio.sleep(RETRY_S)


async def _copy(stage: Stage, reader: GroupReader, *, is_last: bool) -> None:
    """Copy until it is time to leave. Raises one of FAILED."""
    random = stage.random
    async for batch in reader.batches(BATCH_EVENTS):
        try:
            async with reader.transaction() as transaction:
                for event in batch.events:
                    await transaction.send(
                        OUTPUT,
                        event.value,
                        key=event.key,
                        timestamp_ms=int(stage.now() * 1000),
                    )
                if not is_last:
                    _give_up(random)
        except _GivenUpError:
            continue
        if is_last:
            continue
        if random.random() < LEAVE_SHARE:
            return
        await stage.pause()


def _give_up(random: Random) -> None:
    """Raise _GivenUpError now and then."""
    if random.random() < ABORT_SHARE:
        raise _GivenUpError("aborted on purpose")
