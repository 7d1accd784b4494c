"""What does it cost to wait for stable storage, with 32 producers?"""

import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from bench._processes import Rig, scratch, touch_memory
from bench._report import Figure, Report, sized
from bench._rigs import TOPIC
from bench._stock import DEADLINE_S, create_topic
from tests.support.broker import BrokerProcess

RECORD = bytes(range(256)) * 4
PRODUCERS = 32
CHUNK = 250
METHOD = (
    "32 confluent-kafka producers (idempotent, acks=all, settings as they come) write 1 KiB "
    "records into one partition; alternating in `fsync` mode, in `os` mode, and `dd oflag=dsync` "
    "writing as many bytes in writes of the size that the broker's syncs had. Medians."
)


def write(producers: list[Producer], count: int) -> float:
    """Send so many records by each producer; return MB/s until all are acknowledged."""
    start = time.perf_counter()
    for _ in range(count // CHUNK):
        for producer in producers:
            producer.produce_batch(TOPIC, [{"value": RECORD} for _ in range(CHUNK)], 0)
    for producer in producers:
        assert producer.flush(DEADLINE_S) == 0, f"not acknowledged in {DEADLINE_S} s"
    seconds = time.perf_counter() - start
    return PRODUCERS * (count // CHUNK) * CHUNK * len(RECORD) / seconds / 1e6


def dd(place: Path, write_bytes: int, total_bytes: int) -> float:
    """Write synchronously; return MB/s."""
    count = max(total_bytes // write_bytes, 8)
    target = place / "dd"
    done = subprocess.run(
        [
            "dd",
            "if=/dev/zero",
            f"of={target}",
            f"bs={write_bytes}",
            f"count={count}",
            "oflag=dsync",
        ],
        check=True,
        capture_output=True,
        text=True,
        env={"LC_ALL": "C"},
    )
    target.unlink()
    found = re.search(r"copied, ([0-9.e-]+) s", done.stderr)
    assert found is not None, done.stderr
    return write_bytes * count / float(found[1]) / 1e6


def main() -> None:
    """Write in alternating rounds."""
    report = Report("fsync", "32 producers that wait for stable storage", METHOD)
    rounds, count = sized(9, 2), sized(1_000, CHUNK)
    speeds: dict[str, list[float]] = {"fsync": [], "os": [], "dd": []}
    sizes: list[float] = []
    settings = {"enable.idempotence": True, "acks": "all", "log_level": 0}
    with scratch() as place, ExitStack() as stack:
        synced = stack.enter_context(Rig("counting", place / "fsync"))
        brokers = {"fsync": synced, "os": stack.enter_context(BrokerProcess(place / "os"))}
        producers = {}
        for name, broker in brokers.items():
            create_topic(broker.address)
            producers[name] = [
                Producer({"bootstrap.servers": broker.address, **settings})
                for _ in range(PRODUCERS)
            ]
            for _ in range(3):  # connections, producer ids, memory
                write(producers[name], count)
        for _ in range(rounds):
            before = synced.syncs()
            total = PRODUCERS * count * len(RECORD)
            touch_memory(place, 3 * total)
            speeds["fsync"].append(write(producers["fsync"], count))
            sizes.append(total / (synced.syncs() - before))
            touch_memory(place, 3 * total)
            speeds["os"].append(write(producers["os"], count))
            touch_memory(place, 3 * total)
            speeds["dd"].append(dd(place, int(median(sizes)), total))
    fsync, os_mode, plain = (median(speeds[name]) for name in ("fsync", "os", "dd"))
    lesser = min(os_mode, plain)
    report.add(
        Figure(
            name="throughput, fsync mode",
            value=fsync,
            unit="MB/s",
            ceiling=lesser,
            ceiling_name="os mode" if os_mode < plain else "dd oflag=dsync",
            goal=">= 80 %",
            met=fsync >= 0.8 * lesser,
        )
    )
    report.add(Figure(name="throughput, os mode", value=os_mode, unit="MB/s"))
    report.add(Figure(name="dd oflag=dsync", value=plain, unit="MB/s"))
    report.add(Figure(name="bytes for each sync", value=median(sizes) / 1000, unit="kB"))
    report.finish()


if __name__ == "__main__":
    main()
