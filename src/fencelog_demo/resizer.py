"""The resizer: splits and merges segments of the demo's streams while they are written and read."""

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import fencelog
from fencelog.client.blocking import Client
from fencelog.coordination.streams.model import SegmentState, StreamSegment
from fencelog.errors import FencelogError
from fencelog_demo.events import Follower, write_event
from fencelog_demo.settings import STREAMS

PAUSE_S = 0.05
PERIOD_S = 2.0
"""From one resize to the next, whose turn another stream has."""
REQUEST_S = 10.0
OPEN_MAX = 5
"""Open segments from which on none is split."""


def choose(opened: Sequence[StreamSegment], chance: random.Random) -> list[int]:
    """The open segments, in range order, to resize next: one to split, or two to merge."""
    wanted = chance.random() < 0.5
    if len(opened) == 1 or (wanted and len(opened) < OPEN_MAX):
        return [chance.choice(opened).index]
    place = chance.randrange(len(opened) - 1)
    return [each.index for each in opened[place : place + 2]]


class Resizer:
    """Resizes one stream after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Write into the event log of this folder."""
        self._folder = folder
        self._random = random.Random(seed)
        self._turns = 0

    def resize(self, client: Client) -> None:
        """Resize the next stream; a refusal, such as of a broker that is away, is logged."""
        name = STREAMS[self._turns % len(STREAMS)]
        self._turns += 1
        try:
            covering = client.describe_stream(name).stream.covering
            opened = [each for each in covering if each.state is SegmentState.OPEN]
            if not opened:
                return
            segments = choose(opened, self._random)
            if len(segments) == 1:
                successors = client.split_segment(name, segments[0])
            else:
                successors = client.merge_segments(name, segments)
        except FencelogError as problem:
            write_event(self._folder, "resize-refused", stream=name, reason=str(problem))
        else:
            facts = {"segments": segments, "successors": successors}
            write_event(self._folder, "resized", stream=name, **facts)


def run(folder: Path, seed: int, period_s: float) -> None:
    """Resize from the moment that the streams are there until the stage is over."""
    resizer, follower = Resizer(folder, seed), Follower(folder)
    client: Client | None = None
    address, next_at = "", time.monotonic()
    parent = os.getppid()
    while os.getppid() == parent:
        for event in follower.new():
            match event.kind:
                case "broker-ready":
                    address = event.text("address")
                case "topics-created":
                    client = fencelog.connect(address, request_timeout_s=REQUEST_S)
                case "over":
                    return
                case _:
                    pass
        if client is not None and time.monotonic() >= next_at:
            resizer.resize(client)
            next_at = time.monotonic() + period_s
        time.sleep(PAUSE_S)


def main(arguments: list[str] | None = None) -> int:
    """Follow the log until the stage is over or the parent has ended."""
    parser = argparse.ArgumentParser(prog="resizer", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--period-s", type=float, default=PERIOD_S)
    options = parser.parse_args(arguments)
    run(options.folder, options.seed, options.period_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
