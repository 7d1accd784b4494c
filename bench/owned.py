"""What does a produce request cost where its partition has an owner, and where it has none?"""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench._pipelined import connect, drive, one_record_frames, produce_frame
from bench._processes import cpu_s, scratch, touch_memory
from bench._report import ROOT, Figure, Report, sized
from bench._stock import create_topic
from bench._trees import at_commit, broker_of
from bench.requests import VALUE
from fencelog.wire.framing import frame
from fencelog.wire.headers import RequestHeader, read_response_header, request_header
from fencelog.wire.messages.own import OwnRequest, OwnResource, OwnResponse
from tests.support.broker import BrokerProcess

BASE = "992e122"
LARGE_BYTES, LARGE_RECORDS = 1_000_000, 1_000
LEASE_MS = 600_000
PAIRS, RUNS, TURNS = 5, 4, 8
OWNED = "owned"
METHOD = (
    "Two brokers get the same requests alternately over plain sockets (`os` durability): one of "
    f"commit {BASE}, before there was ownership, and one of this. Each has two topics and a "
    "connection for each; of this one's, one topic is owned by the connection that writes to it. "
    "The two of the other differ by the noise within a process; between processes of the same code "
    f"it is larger, so both are started {PAIRS} times. CPU is the broker process's, from /proc. In "
    f"each of {RUNS * PAIRS} runs all four take short turns, {TURNS} each, so that other load hits "
    "all alike; shares are medians of the runs' ratios. Before each turn of large batches a file "
    "is written and removed (see produce)."
)


class Writer:
    """What sends to one broker."""

    def __init__(self, broker: BrokerProcess, place: Path, topic: str) -> None:
        """Connect, and claim the partition if it is to be owned."""
        self._topic = topic
        create_topic(broker.address, self._topic)
        self._pid, self._place = broker.pid, place
        self._connection = connect(broker.address)
        self._producer_id = 1_000
        if topic == OWNED:
            claim(self._connection, f"{topic}/0")

    def large(self) -> float:
        """Send batches of 1 MB, five open."""
        count, payload = sized(6, 5), bytes(LARGE_BYTES)
        touch_memory(self._place, 3 * count * LARGE_BYTES)
        self._producer_id += 1
        numbers = range(0, count * LARGE_RECORDS, LARGE_RECORDS)
        frames = [
            produce_frame(self._producer_id, each, LARGE_RECORDS, payload, self._topic)
            for each in numbers
        ]
        return self._drive(frames, 5)

    def small(self, depth: int) -> float:
        """Send single records."""
        self._producer_id += 1
        count = sized(200 if depth == 1 else 600, 50)
        frames = one_record_frames(VALUE, self._producer_id, count, self._topic)
        return self._drive(frames, depth)

    def _drive(self, frames: list[bytes], depth: int) -> float:
        before = cpu_s(self._pid)
        drive(self._connection, frames, depth)
        return 1e6 * (cpu_s(self._pid) - before) / len(frames)


def claim(connection: socket.socket, resource: str) -> None:
    """Let the connection own a partition for longer than the script runs."""
    request = OwnRequest(
        resources=[OwnResource(resource=resource, generation=-1, prev_epoch=-1)],
        holder="bench",
        session_timeout_ms=LEASE_MS,
    )
    header = request_header(RequestHeader(request.API_KEY, 0, 1, "bench"))
    connection.sendall(b"".join(frame([header, request.write(0)])))
    with connection.makefile("rb", buffering=0) as answers:
        size = int.from_bytes(answers.read(4) or b"", "big")
        data = b""
        while len(data) < size:
            data += answers.read(size - len(data)) or b""
    answer = OwnResponse.read(read_response_header(data, flexible=True)[1], 0)
    assert answer.error_code == 0, answer


Cost = Callable[[Writer], float]
"""CPU µs of a request to one of the brokers, in a turn."""


def main() -> None:
    """Measure in alternating turns."""
    report = Report("owned", "produce requests with and without an owner", METHOD)
    kinds: dict[str, Cost] = {
        "one record, 5 open": lambda each: each.small(5),
        "one record, one at a time": lambda each: each.small(1),
        "batches of 1 MB, 5 open": Writer.large,
    }
    runs: dict[str, list[dict[str, float]]] = {title: [] for title in kinds}
    with scratch() as place:
        sources = at_commit(BASE, place / "before"), ROOT / "src"
        for number in range(sized(PAIRS, 1)):
            with ExitStack() as stack:
                old, new = (
                    stack.enter_context(broker_of(source, place / f"data-{number}-{at}"))
                    for at, source in enumerate(sources)
                )
                writers = {
                    "before": Writer(old, place, "one"),
                    "no owner": Writer(new, place, "one"),
                    "before, again": Writer(old, place, "two"),
                    "owned": Writer(new, place, OWNED),
                }
                for title, cost in kinds.items():
                    warm = sized(RUNS, 1) + 1
                    runs[title] += [_run(writers, cost) for _ in range(warm)][1:]
    for title, costs in runs.items():
        compare(report, title, costs)
    report.finish()


def compare(report: Report, title: str, runs: list[dict[str, float]]) -> None:
    """Add the figures of one kind of request."""
    for name, than in (("before, again", "before"), ("no owner", "before"), ("owned", "no owner")):
        share = median(each[name] / each[than] for each in runs)
        has_goal = name != "before, again"
        report.add(
            Figure(
                name=f"{title}, {name}",
                value=median(each[name] for each in runs),
                unit="µs",
                ceiling=median(each[than] for each in runs),
                ceiling_name=than,
                goal=f"<= 1.02 of {than}, is {share:.3f}" if has_goal else f"noise: {share:.3f}",
                met=share <= 1.02 if has_goal else None,
            )
        )


def _run(writers: dict[str, Writer], cost: Cost) -> dict[str, float]:
    """Let all take their turns, each time another one first; return the mean of each."""
    names, turns = list(writers), sized(TURNS, 1)
    taken = dict.fromkeys(names, 0.0)
    for number in range(turns):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            taken[name] += cost(writers[name]) / turns
    return taken


if __name__ == "__main__":
    main()
