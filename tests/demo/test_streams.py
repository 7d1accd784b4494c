"""The demo on streams: who writes into them, and who splits and merges them."""

import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import pytest

import fencelog
from fencelog.coordination.streams.model import NO_END, SegmentState, StreamSegment
from fencelog_demo import audit
from fencelog_demo.events import Event, Follower, write_event
from fencelog_demo.producer import rows
from fencelog_demo.resizer import OPEN_MAX, choose
from fencelog_demo.settings import FLIGHTS, PARTITIONS, STREAMS
from tests.support.broker import BrokerProcess

EVERY = 1_000
RESIZES = 9
"""Each stream's turn comes three times."""


def opened(count: int) -> list[StreamSegment]:
    """Open segments in range order, with numbers that are not."""
    width = 100 // count
    return [
        StreamSegment(
            index=50 - place,
            low=place * width,
            high=(place + 1) * width,
            state=SegmentState.OPEN,
            end=NO_END,
        )
        for place in range(count)
    ]


@pytest.mark.parametrize("count", range(1, OPEN_MAX + 3))
def test_one_is_split_or_two_neighbours_are_merged(count: int) -> None:
    chance = random.Random(7)
    segments = opened(count)
    chosen = {tuple(choose(segments, chance)) for _ in range(300)}
    splits = {(each.index,) for each in segments} if count < OPEN_MAX else set()
    merges = {(a.index, b.index) for a, b in pairwise(segments)}
    assert chosen == splits | merges


def events_until(
    follower: Follower, seen: list[Event], fact: Callable[[], bool], processes: list[object]
) -> None:
    """Read the event log until the fact; no process may have failed meanwhile."""
    deadline = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < deadline, seen
        for process in processes:
            assert isinstance(process, subprocess.Popen)
            assert process.poll() in {None, 0}, process.communicate()
        seen.extend(follower.new())
        time.sleep(0.02)


@pytest.mark.conformance
def test_what_is_committed_is_once_and_in_order_in_streams_that_were_resized(  # R1, R2
    broker: BrokerProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "stage"
    folder.mkdir()
    write_event(folder, "broker-ready", address=broker.address)
    python, where = [sys.executable, "-m"], ["--folder", str(folder)]
    server = ["--bootstrap-server", broker.address, "--every", str(EVERY)]
    load = [*python, "fencelog_demo.producer", *where, *server, "--streams", "--seconds", "4"]
    resize = [*python, "fencelog_demo.resizer", *where, "--period-s", "0.2"]
    processes: list[object] = []
    with (
        subprocess.Popen(resize, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as resizer,
        subprocess.Popen(load, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as producer,
    ):
        processes += [resizer, producer]
        try:
            follower, seen = Follower(folder), list[Event]()

            def kinds(kind: str) -> list[Event]:
                return [each for each in seen if each.kind == kind]

            events_until(
                follower,
                seen,
                lambda: bool(kinds("all-produced")) and len(kinds("resized")) >= RESIZES,
                processes,
            )
            write_event(folder, "over")
            assert resizer.wait(30) == 0
            assert producer.wait(30) == 0
        finally:
            resizer.kill()
            producer.kill()
    assert not kinds("resize-refused")
    assert kinds("all-produced")[0].number("aborted") > 0
    with fencelog.connect(broker.address) as log:
        described = {each.name: each.segments for each in log.describe_streams()}
    assert set(described) == set(STREAMS)
    assert all(len(segments) > PARTITIONS[name] for name, segments in described.items())
    found: dict[bytes | None, list[bytes]] = defaultdict(list)
    for record in sorted(audit.read_topic(broker.address, FLIGHTS), key=attrgetter("partition")):
        found[record.key].append(record.value)
    expected: dict[bytes | None, list[bytes]] = defaultdict(list)
    for key, value in rows(EVERY):
        expected[key].append(value)
    assert found == expected
