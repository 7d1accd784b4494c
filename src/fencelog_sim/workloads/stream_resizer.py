"""Who splits and merges the segments of a stream, at any moment."""

import asyncio
from collections.abc import Callable

from fencelog.client.asynchronous import Client
from fencelog.coordination.streams.model import SegmentState
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, options_of
from fencelog_sim.workloads.settling import RETRY_S
from fencelog_sim.workloads.stream_client import NAME

PAUSES_S = (0.1, 0.3, 1.0)
"""Means of the pauses between two resizes."""
LOOK_S = 0.5
OPEN_MAX = 6
"""Open segments from which on it merges only."""
SEGMENTS_MAX = 30
"""Segments that there ever were, from which on it resizes no more: each has its files."""
MERGE_SHARE = 0.5
CUT_SHARE = 0.5
"""Of resizes, those in which writers lose their connections, and with them their answers."""
CUT_WITHIN_S = 0.03


async def keep_resizing(stage: Stage, cut: Callable[[], None]) -> None:
    """Resize until the stage stops; others may resize the same segments at the same time.

    ``cut`` closes the writers' connections.
    """
    pause_s = stage.random.choice(PAUSES_S)
    async with Client(options_of(stage)) as client:
        while not stage.stopping:
            # It looks whether the stage stops, however long it is to wait.
            await asyncio.sleep(min(LOOK_S, stage.random.expovariate(1.0) * pause_s))
            if stage.random.random() < CUT_SHARE:
                within_s = stage.random.uniform(0, CUT_WITHIN_S)
                asyncio.get_running_loop().call_later(within_s, cut)
            try:
                await _resize(stage, client)
            except ERRORS:
                await asyncio.sleep(RETRY_S)


async def _resize(stage: Stage, client: Client) -> None:
    """Split or merge open segments. Raises one of ERRORS: another resize of them came first …"""
    random = stage.random
    stream = await client.describe_stream(NAME)
    opened = [each for each in stream.stream.covering if each.state is SegmentState.OPEN]
    if not opened or len(stream.segments) >= SEGMENTS_MAX:
        return
    place = random.randrange(len(opened))
    found = opened[place : place + random.randint(2, 3)]
    merges = random.random() < MERGE_SHARE or len(opened) >= OPEN_MAX
    if merges and len(found) > 1:
        await client.merge_segments(NAME, [each.index for each in found])
    elif found[0].high - found[0].low > 1:
        at = random.choice((None, random.randrange(found[0].low + 1, found[0].high)))
        await client.split_segment(NAME, found[0].index, at)
