"""How fast is the compiled codec between record batches and Arrow, on one core?"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench._report import Figure, Report, sized
from fencelog.client.arrow import decode
from fencelog.client.arrow_encode import Encoder
from fencelog.client.batches import EncodedBatch, scan
from fencelog.types import LeaderEpoch, Offset, TopicPartition
from fencelog.wire.batch import assign, read_header

METHOD = (
    "Keys of 16 and values of 100 bytes, a megabyte a batch, as many records at a time as a writer "
    "gathers before it encodes (4 MiB), checksums made and checked. The ceiling is a copy of the "
    "same bytes by memcpy (`numpy.copyto`): no codec can do less than move them once. The best of "
    "several rounds counts, because other work on the machine only ever slows a round down."
)
KEY_BYTES = 16
VALUE_BYTES = 100
GOAL_PER_S = 8_000_000
PLACE = TopicPartition("t", 0)
TWO = frozenset(("key", "value"))
SEVEN = TWO | {"topic", "partition", "offset", "timestamp", "timestampType"}
NO_END = 1 << 62


@dataclass(frozen=True)
class Measured:
    """One line of the table."""

    name: str
    records_per_s: float


def best_s(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest round."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def rows(count: int) -> pa.RecordBatch:
    """Rows of the benchmark's shape, with keys that spread over partitions."""
    keys = pa.array([b"%016d" % number for number in range(count)], pa.binary())
    values = pa.array([b"%0100d" % number for number in range(count)], pa.binary())
    return pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])


def encode(batch: pa.RecordBatch, partitions: int, codec: str) -> list[EncodedBatch]:
    """Arrow to finished batches, checksums and all."""
    encoder = Encoder(topic="t", batch_bytes=1_000_000, compression=codec)
    made = [each for some in encoder.encode([batch], {"t": partitions}) for each in some]
    for each in made:
        each.finish(1, 0, 0, transactional=True)
    return made


def as_log(batches: list[EncodedBatch]) -> memoryview:
    """What a fetch of these batches brings."""
    log, offset = bytearray(), Offset(0)
    for each in batches:
        copy = memoryview(bytearray(each.buffer))
        assign(copy, offset, LeaderEpoch(0))
        offset = read_header(copy).next_offset
        log += copy
    return memoryview(log)


def read(log: memoryview, columns: frozenset[str]) -> int:
    """Fetched bytes to Arrow, checksums and all; the number of rows."""
    found = scan(log, (), transactional=True)
    made = decode(log, found.batches, PLACE, columns=columns, start=0, end=NO_END)
    return sum(batch.num_rows for batch in made)


def measure(count: int, rounds: int) -> list[Measured]:
    """Every line of the table."""
    batch = rows(count)
    size = count * (KEY_BYTES + VALUE_BYTES)
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    cases: list[tuple[str, Callable[[], object]]] = [
        ("memcpy of keys and values (ceiling)", lambda: np.copyto(target, source))
    ]
    for partitions in (1, 16):
        name = f"Arrow → batches, {partitions} partition{'s' * (partitions > 1)}"
        cases.append((name, lambda p=partitions: encode(batch, p, "none")))
    cases += [
        (f"Arrow → batches, {codec}", lambda c=codec: encode(batch, 1, c))
        for codec in ("lz4", "zstd")
    ]
    plain = as_log(encode(batch, 1, "none"))
    assert read(plain, TWO) == count
    cases += [
        ("batches → Arrow, key and value", lambda: read(plain, TWO)),
        ("batches → Arrow, Kafka's seven columns", lambda: read(plain, SEVEN)),
    ]
    for codec in ("lz4", "zstd"):
        packed = as_log(encode(batch, 1, codec))
        cases.append((f"batches → Arrow, {codec}", lambda log=packed: read(log, TWO)))
    found = []
    for name, work in cases:
        seconds = best_s(work, rounds)
        found.append(Measured(name, count / seconds))
    return found


def main() -> None:
    """Measure, and compare the plain paths with the goal."""
    report = Report("codec", "record batches to Arrow and back", METHOD)
    ceiling, *found = measure(36_000, sized(40, 3))
    for each in found:
        packed = each.name.endswith(("lz4", "zstd"))
        report.add(
            Figure(
                name=each.name,
                value=each.records_per_s / 1e6,
                unit="M records/s",
                ceiling=ceiling.records_per_s / 1e6,
                ceiling_name="memcpy of keys and values",
                goal="" if packed else ">= 8 M/s",
                met=None if packed else each.records_per_s >= GOAL_PER_S,
            )
        )
    report.finish()


if __name__ == "__main__":
    main()
