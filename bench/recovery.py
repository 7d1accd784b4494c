"""How long from ``kill -9`` and a start to the first fetch, after gigabytes in ``os`` mode?"""

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench._pipelined import VERSION, Replies, connect
from bench._processes import cpu_s, scratch
from bench._report import Figure, Report, sized
from bench.growth import Asker
from bench.partitions import create
from fencelog.log import layout
from fencelog.log.recovery_checkpoint import decode_recovery_checkpoint
from fencelog.types import Offset
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.framing import frame
from fencelog.wire.headers import RequestHeader, request_header
from fencelog.wire.hot import write_produce_request
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.broker import BrokerProcess

TOPIC = "recovered"
DEADLINE_S = 900.0
GOAL_S = 2
IN_FLIGHT_BYTES = 8_000_000
METHOD = (
    "A broker in `os` mode gets batches of one record over one connection, up to 8 MB and 64 "
    "requests unanswered, then `kill -9` at once. Measured is from the exec of the next one to its "
    "first answer to a fetch from the last partition, and its CPU time until then (/proc). The "
    "page cache has what was written, as after any kill. What is above the recovery checkpoints is "
    "what that start has to check and sync; it depends on the disk. The longest pause is that "
    "between two answers while the log was written."
)


class Case(NamedTuple):
    """What is written before the kill."""

    partitions: int
    batch_bytes: int
    total_bytes: int

    @property
    def name(self) -> str:
        """What the figures are called."""
        size = f"{self.total_bytes / 1e9:g} GB in {self.batch_bytes / 1e3:g} KB batches"
        return f"{size}, {self.partitions} partition{'s' if self.partitions > 1 else ''}"


CASES = (
    Case(1, 1_000_000, sized(5_000_000_000, 20_000_000)),
    Case(1, 10_000, sized(5_000_000_000, 20_000_000)),
    Case(1, 1_000, sized(500_000_000, 2_000_000)),
    Case(200, 100_000, sized(5_000_000_000, 40_000_000)),
)


def frames_of(case: Case) -> list[bytes]:
    """One produce request for each partition."""
    value = bytes(case.batch_bytes)
    batch = build_batch([RecordToWrite(None, value, time.time_ns() // 1_000_000)])
    head = request_header(RequestHeader(ApiKey.PRODUCE, VERSION, 1, "bench"))
    return [
        b"".join(
            frame(
                [
                    head,
                    *write_produce_request(
                        VERSION,
                        transactional_id=None,
                        acks=-1,
                        timeout_ms=60_000,
                        topics=[(TOPIC, [(index, batch)])],
                    ),
                ]
            )
        )
        for index in range(case.partitions)
    ]


def write(connection: socket.socket, frames: Sequence[bytes], count: int) -> float:
    """Send so many requests, round robin; return the longest pause between two answers."""
    replies = Replies(connection)
    depth = min(max(IN_FLIGHT_BYTES // len(frames[0]), 2), 64)
    sent = answered = 0
    longest = 0.0
    last = time.perf_counter()
    while answered < count:
        while sent < count and sent - answered < depth:
            connection.sendall(frames[sent % len(frames)])
            sent += 1
        answered += replies.take(1)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    replies.check_last()
    return longest


def unread_bytes(data: Path) -> int:
    """What is in the segments, and not below the recovery checkpoints."""
    left = sum(each.stat().st_size for each in data.glob(f"{TOPIC}-*/*{layout.LOG}"))
    for path in data.glob(f"{TOPIC}-*/{layout.RECOVERY_CHECKPOINT}"):
        left -= decode_recovery_checkpoint(path.read_bytes()).size_from(Offset(0))
    return left


def measure(report: Report, place: Path, case: Case) -> None:
    """Write, kill, start, fetch."""
    with BrokerProcess(place / "data", durability="os") as broker:
        broker.start_deadline_s = DEADLINE_S
        asker = Asker(broker)
        create(asker, [TOPIC], case.partitions)
        asker.close()
        connection = connect(broker.address)
        connection.settimeout(DEADLINE_S)
        began = time.perf_counter()
        pause_s = write(connection, frames_of(case), case.total_bytes // case.batch_bytes)
        rate = case.total_bytes / (time.perf_counter() - began) / 1e6
        connection.close()
        broker.kill()
        left = unread_bytes(broker.data_dir)
        began = time.perf_counter()
        broker.start()
        asker = Asker(broker)
        asker.fetch(TOPIC, case.partitions - 1)
        wall_s, used_s = time.perf_counter() - began, cpu_s(broker.pid)
        asker.close()
    report.add(
        Figure(
            name=f"first fetch: {case.name}",
            value=wall_s,
            unit="s",
            goal=f"<= {GOAL_S} s",
            met=wall_s <= GOAL_S,
        )
    )
    report.add(Figure(name=f"above the checkpoints: {case.name}", value=left / 1e6, unit="MB"))
    report.add(Figure(name=f"CPU time until then: {case.name}", value=used_s, unit="s"))
    report.add(Figure(name=f"write rate: {case.name}", value=rate, unit="MB/s"))
    report.add(Figure(name=f"longest pause: {case.name}", value=1e3 * pause_s, unit="ms"))


def main() -> None:
    """Measure each case."""
    socket.setdefaulttimeout(DEADLINE_S)
    report = Report("recovery", "from a kill to the first fetch", METHOD)
    for case in CASES:
        with scratch() as place:
            measure(report, place, case)
    report.finish()


if __name__ == "__main__":
    main()
