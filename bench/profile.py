"""Where does the broker's time go: in batches of 1 MB, and in requests of one record?"""

import asyncio
import cProfile
import io
import pstats
import sys
from collections import Counter
from pathlib import Path

import uvloop

from bench._pipelined import connect, drive, one_record_frames
from bench._processes import scratch, touch_memory
from bench._report import ROOT, Figure, Report, sized
from bench._stock import Load, create_topic
from fencelog.broker.config import BrokerConfig
from fencelog.node import open_node

TOP = 20
LOADED_BYTES = 200 << 20
OTHER = "built-in functions, asyncio, the rest"
PARTS = {
    "connection.py:_send": "sending replies (the system call, and whom it wakes)",
    "pwritev": "writing files (the system call)",
    "crc32c._crc32c": "checksums",
    "subprocess": "starting the load",
    "fencelog/wire/": "reading and writing messages",
    "fencelog/log/": "the log's rules",
    "fencelog/storage/": "storage",
    "fencelog/adapters/": "storage",
    "fencelog/broker/": "the broker's shell: frames, handlers, flusher",
}
"""Where a function stands, and what it does; the first that fits."""
METHOD = (
    "A node in this process (`os` durability) under cProfile, its load from another process. "
    "The profiler makes calls dearer than they are, so this is for shares, not for times. "
    "Time is wall time: a send on a loopback wakes the client, which may take the core at once."
)


def large(address: str) -> None:
    """Write 1 MB batches."""
    settings = {"batch.size": 1_000_000, "batch.num.messages": 1_000_000, "linger.ms": 500}
    Load(address, settings).send(bytes(1024), sized(LOADED_BYTES >> 10, 20_000))


def small(address: str) -> None:
    """Write requests of one record."""
    connection = connect(address)
    for producer_id in range(1000, sized(1006, 1001)):
        drive(connection, one_record_frames(b"x" * 50, producer_id, 8_000), 64)


LOADS = {"large": large, "small": small}


def shares(stats: pstats.Stats) -> dict[str, float]:
    """Return the percentage of each part of the work, by where its functions stand."""
    seconds: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():
        where = f"{file}:{name}"
        part = next((part for mark, part in PARTS.items() if mark in where), OTHER)
        seconds[part] += own
    total = sum(seconds.values())
    return {part: 100 * spent / total for part, spent in seconds.most_common()}


async def profiled(kind: str, data_dir: Path) -> tuple[str, dict[str, float]]:
    """Serve one load; return the functions that took most time themselves, and the shares."""
    profiler = cProfile.Profile()
    config = BrokerConfig(data_dir=str(data_dir), port=0, durability="os")
    async with open_node(config) as node:
        address = "{}:{}".format(*node.address)
        await asyncio.to_thread(create_topic, address)
        profiler.enable()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.profile",
            *sys.argv[1:],
            f"--load={kind}@{address}",
            cwd=ROOT,
        )
        status = await process.wait()
        profiler.disable()
        assert status == 0, f"the load failed: {status}"
    text = io.StringIO()
    stats = pstats.Stats(profiler, stream=text)
    stats.sort_stats("tottime").print_stats(TOP)
    # From the count of calls on; the checkout's place says nothing.
    lines = text.getvalue().replace(f"{ROOT}/", "").replace(f"{sys.prefix}/", "").splitlines()
    return "\n".join(line for line in lines if line.strip()), shares(stats)


def main() -> None:
    """Profile both loads."""
    report = Report("profile", "where the time goes", METHOD)
    for kind, title in (("large", "batches of 1 MB"), ("small", "requests of one record")):
        with scratch() as place:
            touch_memory(place, LOADED_BYTES)
        with scratch() as place, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found, parts = runner.run(profiled(kind, place))
        for part, share in parts.items():
            report.add(Figure(name=f"{title}: {part}", value=share, unit="%"))
        report.note(f"## {title}\n\n```\n{found}\n```")
    report.finish()


if __name__ == "__main__":
    wanted = [argument[7:] for argument in sys.argv if argument.startswith("--load=")]
    if wanted:
        load, _, broker_address = wanted[0].partition("@")
        LOADS[load](broker_address)
    else:
        main()
