"""Resizes a stream while processes write and copy it, and strikes them meanwhile."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fencelog.client.blocking import Client
from fencelog.coordination.streams.model import SegmentState
from fencelog.errors import FencelogError
from fencelog.types import TopicPartition
from fencelog_sim.workloads.stream_copies import problems_of_copy
from fencelog_sim.workloads.stream_history import problems_of
from tests.proofs._streams_process import (
    COPY,
    GROUP,
    LEASE_S,
    REQUEST_TIMEOUT_S,
    STREAM,
    Options,
)
from tests.support.broker import BrokerProcess

WRITERS, READERS, COPIES = 4, 3, 4
"""Half of the writers are transactional; the copy has so many partitions."""
OPEN_MAX = 6
STRIKES = ("none", "none", "writer", "writer", "reader", "reader", "pause", "broker")
STRIKE_WITHIN_S = 0.05
STEP_S, REST_S, COPY_S = 30.0, 60.0, 300.0
"""The longest waits: for the next part of the bytes, for the end of resizes, for the copy."""
LOOK_S = 0.05


@dataclass
class Verdict:
    """What a run came to."""

    resizes: int = 0
    segments: int = 0
    sent: int = 0
    stored: int = 0
    copied: int = 0
    megabytes: float = 0.0
    seconds: float = 0.0
    strikes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Rig:
    """A broker, its writers and readers."""

    def __init__(self, folder: Path, *, seed: int, record_bytes: int) -> None:
        """Nothing runs yet."""
        self.broker = BrokerProcess(folder / "broker", durability="fsync")
        self._folder, self._random = folder, random.Random(seed)
        self._record_bytes = record_bytes
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._incarnations: Counter[str] = Counter()
        self.histories: list[Path] = []
        self.verdict = Verdict()

    def client(self) -> Client:
        """A client of the rig's own."""
        return Client(self.broker.address, request_timeout_s=REQUEST_TIMEOUT_S)

    def prepare(self) -> None:
        """Start the broker; create the stream, the copy and the group."""
        self.broker.start()
        with self.client() as client:
            client.create_stream(STREAM, 2, {"retention.ms": "-1", "retention.bytes": "-1"})
            client.create_topic(COPY, COPIES)
            client.reader_group(GROUP, STREAM).create()

    def start(self, name: str) -> None:
        """Start a writer or a reader, anew after a kill."""
        self._incarnations[name] += 1
        incarnation = self._incarnations[name]
        history = self._folder / f"{name}.{incarnation}.jsonl"
        is_writer = name.startswith("w")
        options = Options(
            role="writer" if is_writer else "reader",
            name=f"{name}.{incarnation}" if is_writer else name,
            bootstrap=self.broker.address,
            history=str(history),
            seed=self._random.randrange(1 << 30),
            record_bytes=self._record_bytes,
        )
        if is_writer:
            self.histories.append(history)
            if is_transactional(name):
                options = replace(options, transactional_id=name)
        command = [sys.executable, "-m", "tests.proofs._streams_process", options.to_json()]
        with (self._folder / f"{name}.stderr").open("ab") as stderr:
            self._processes[name] = subprocess.Popen(command, stderr=stderr)

    def strike(self, kind: str) -> None:
        """Kill or stop one, and start it again."""
        self.verdict.strikes[kind] += 1
        if kind == "broker":
            self.broker.restart()
        elif kind != "none":
            names = [
                each for each in self._processes if each[0] == ("w" if kind == "writer" else "r")
            ]
            name = self._random.choice(names)
            process = self._processes[name]
            if kind == "pause":
                process.send_signal(signal.SIGSTOP)
                _pause(1.5 * LEASE_S)
                process.send_signal(signal.SIGCONT)
                return
            process.kill()
            process.wait()
            self.start(name)

    def resize(self, client: Client) -> None:
        """Split or merge, with a strike at one of its moments."""
        stream = client.describe_stream(STREAM)
        opened = [each for each in stream.stream.covering if each.state is SegmentState.OPEN]
        if not opened:
            return  # each is a part of a resize that goes on
        place = self._random.randrange(len(opened))
        merged = [each.index for each in opened[place : place + 2]]
        is_merge = len(opened) >= OPEN_MAX or self._random.random() < 0.5

        def work() -> None:
            with suppress(FencelogError), self.client() as other:
                if is_merge and len(merged) > 1:
                    other.merge_segments(STREAM, merged)
                else:
                    other.split_segment(STREAM, opened[place].index)

        resizing = threading.Thread(target=work)
        resizing.start()
        _pause(self._random.uniform(0, STRIKE_WITHIN_S))
        self.strike(self._random.choice(STRIKES))
        resizing.join()

    def stop(self, prefix: str) -> None:
        """Let them end what they do; note those that have ended, or end, by an error."""
        ended = [each for each in self._processes if each.startswith(prefix)]
        for name in ended:
            self._processes[name].terminate()
        for name in ended:
            process = self._processes.pop(name)
            try:
                status: object = process.wait(REST_S)
            except subprocess.TimeoutExpired:
                status = f"none within {REST_S:.0f} s"
                process.kill()
                process.wait()
            # One that has no handler yet has not begun, so SIGTERM ends it in the midst of nothing.
            if status not in (0, -signal.SIGTERM):
                said = (self._folder / f"{name}.stderr").read_text(errors="replace")[-500:]
                self.verdict.problems.append(f"{name} ended with status {status}: {said}")

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self.broker.kill()


def is_transactional(name: str) -> bool:
    """Whether a writer writes in transactions."""
    return int(name[1:]) % 2 == 1


def run(
    folder: Path,
    *,
    megabytes: int,
    resizes: int,
    seed: int,
    record_bytes: int,
    progress: Callable[[], None],
) -> Verdict:
    """Write, copy, resize and strike; then read all and check it."""
    rig, began = Rig(folder, seed=seed, record_bytes=record_bytes), time.monotonic()
    verdict = rig.verdict
    try:
        rig.prepare()
        writers = [f"w{number}" for number in range(WRITERS)]
        for name in [*writers, *(f"r{number}" for number in range(READERS))]:
            rig.start(name)
        with rig.client() as client:
            for number in range(resizes):
                rig.resize(client)
                share = megabytes * 1_000_000 * (number + 1) // (resizes * record_bytes)
                _until(lambda share=share: _stored(client) >= share, STEP_S)  # type: ignore[misc]
                progress()
            rig.stop("w")
            for name in filter(is_transactional, writers):
                with client.producer(transactional_id=name):
                    pass  # what a killed one has left open is aborted
            if not _until(lambda: _is_at_rest(client), REST_S):
                verdict.problems.append(f"a resize or transaction is open after {REST_S:.0f} s")
            events = _sent(rig.histories) + _read(client)
            verdict.stored = sum(len(each["rows"]) for each in events if each["what"] == "segment")
            _until(lambda: _count(client) >= verdict.stored, COPY_S)
            rig.stop("r")
            events += _copied(client)
        _judge(verdict, events, record_bytes)
    finally:
        rig.close()
        verdict.seconds = time.monotonic() - began
    return verdict


def _judge(verdict: Verdict, events: list[Any], record_bytes: int) -> None:
    segments = [each for each in events if each["what"] == "segment"]
    verdict.segments = len(segments)
    verdict.resizes = len({tuple(each["predecessors"]) for each in segments} - {()})
    verdict.sent = sum(len(each["records"]) for each in events if each["what"] == "write")
    verdict.copied = sum(len(each["rows"]) for each in events if each["what"] == "copy")
    verdict.megabytes = verdict.stored * record_bytes / 1e6
    verdict.problems += [*problems_of(events), *problems_of_copy(events)]


def _sent(histories: list[Path]) -> list[Any]:
    """Return what the writers have noted; the last line of a killed one may be torn."""
    events = [
        json.loads(line)
        for path in filter(Path.exists, histories)
        for line in path.read_text(encoding="ascii").splitlines(keepends=True)
        if line.endswith("\n")
    ]
    return sorted(events, key=lambda each: each["time"])


def _stored(client: Client) -> int:
    """Return how many offsets the stream has."""
    with suppress(FencelogError):
        found = client.describe_stream(STREAM).segments
        places = [TopicPartition(STREAM, each.index) for each in found]
        return sum(client.offsets(places, "latest", "replicated").values())
    return 0


def _is_at_rest(client: Client) -> bool:
    """Whether every resize is complete and no transaction is open."""
    with suppress(FencelogError):
        found = client.describe_stream(STREAM).segments
        if {each.state for each in found} & {SegmentState.OPENING, SegmentState.SEALING}:
            return False
        places = [TopicPartition(STREAM, each.index) for each in found]
        stable = client.offsets(places, "latest", "transactional")
        return stable == client.offsets(places, "latest", "replicated")
    return False


def _read(client: Client) -> list[Any]:
    """The segments, with all that they have."""
    return [
        {
            "type": "meta",
            "what": "segment",
            "index": each.index,
            "low": each.low,
            "high": each.high,
            "state": each.state.value,
            "predecessors": list(each.predecessors),
            "end": each.end,
            "rows": _rows(client, TopicPartition(STREAM, each.index)),
        }
        for each in client.describe_stream(STREAM).segments
    ]


def _copied(client: Client) -> list[Any]:
    places = [TopicPartition(COPY, number) for number in range(COPIES)]
    return [
        {"type": "meta", "what": "copy", "partition": each.partition, "rows": _rows(client, each)}
        for each in places
    ]


def _rows(client: Client, place: TopicPartition) -> list[list[object]]:
    end = client.offsets([place], "latest")[place]
    rows: list[list[object]] = []
    for record in client.fetch(place, 0, end):
        value, _, _ = (record.value or b"").partition(b" ")
        rows.append([record.offset, (record.key or b"").decode(), value.decode()])
    return rows


def _count(client: Client) -> int:
    """Return how many records the copy has."""
    with suppress(FencelogError):
        return sum(len(each["rows"]) for each in _copied(client))
    return 0


def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition; return whether it held in time."""
    ends_at = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > ends_at:
            return False
        _pause(LOOK_S)
    return True


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
