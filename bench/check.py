"""How long does `fencelog check` take over a million sends, and how much memory?"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench._report import Figure, Report, sized

METHOD = (
    "A generated clean history of sixteen partitions, written to a file: eight writers, whose "
    "transactions of four sends to random partitions overlap; one in twenty aborts and one in "
    "fifty has no known end. Five readers and a final one read everything, up to twenty records of "
    "each partition at a time. `fencelog check` reads, parses and judges it in one process on one "
    "core. The ceiling is a process that reads the file and decodes each line with `json`, and "
    "does nothing else. Seconds are of the processor, since other work runs on the machine; memory "
    "is the largest resident size."
)
KEYS = [f"t/{n}" for n in range(16)]
READERS = ("r0", "r1", "r2", "r3", "r4", "final")
WRITERS = 8
SENDS_PER_OP = 4
ABORTED, LOST = 0.05, 0.02
RECORDS_PER_POLL = 20
GOAL_S = 30
GOAL_BYTES = 2 << 30
DECODE = "import json,sys\nfor line in open(sys.argv[1]): json.loads(line)"


class Made:
    """A clean history: writers whose transactions overlap, and readers behind them."""

    def __init__(self, seed: int) -> None:
        """An empty one."""
        self._random = Random(seed)
        self._clock = 0.0
        self._logs: dict[str, list[list[int]]] = {key: [] for key in KEYS}
        self._ends = dict.fromkeys(KEYS, 0)
        self._places = {reader: dict.fromkeys(KEYS, 0) for reader in READERS}
        self._polls = dict.fromkeys(READERS, 0)

    def _time(self) -> float:
        self._clock += 1e-4
        return round(self._clock, 6)

    def round(self, number: int) -> Iterator[dict[str, object]]:
        """One transaction of each writer, all of them at the same time."""
        value = number * WRITERS * SENDS_PER_OP
        work = []
        for writer in range(WRITERS):
            steps = [
                ["send", self._random.choice(KEYS), value + writer * SENDS_PER_OP + each]
                for each in range(SENDS_PER_OP)
            ]
            who = {"id": number, "process": f"w{writer}"}
            work.append((who, steps, self._random.random()))
            yield {
                "type": "invoke", **who, "time": self._time(), "transactional": True, "steps": steps
            }  # fmt: skip
        done: list[list[list[object]]] = [[] for _ in work]
        for place in range(SENDS_PER_OP):
            for writer, (_, steps, outcome) in enumerate(work):
                _, key, sent = steps[place]
                done[writer].append([*steps[place], self._ends[key]])
                if outcome >= ABORTED:
                    self._logs[key].append([self._ends[key], sent])
                self._ends[key] += 1
        for writer, (who, steps, outcome) in enumerate(work):
            for key in sorted({str(step[1]) for step in steps}):
                self._ends[key] += 1  # the marker
            if outcome < ABORTED:
                how, events = "failed", steps
            else:
                how = "indeterminate" if outcome < ABORTED + LOST else "ok"
                events = done[writer] if how == "ok" else steps
            yield {"type": how, **who, "time": self._time(), "steps": events}

    def read(self, reader: str) -> Iterator[dict[str, object]]:
        """Polls of a reader up to the end of every key."""
        places = self._places[reader]
        while any(places[key] < len(self._logs[key]) for key in KEYS):
            self._polls[reader] += 1
            who = {"id": self._polls[reader], "process": reader, "time": self._time()}
            yield {"type": "invoke", **who, "steps": [["poll"]]}
            polled = {}
            for key in KEYS:
                records = self._logs[key][places[key] : places[key] + RECORDS_PER_POLL]
                if records:
                    polled[key] = records
                    places[key] += len(records)
            yield {"type": "ok", **who, "steps": [["poll", polled]]}

    def end(self) -> dict[str, object]:
        """Where the partitions end."""
        names = ("last_stable", "high_watermark", "log_end")
        ends = {key: dict.fromkeys(names, end) for key, end in self._ends.items()}
        return {"type": "end", "time": self._time(), "partitions": ends}


def history(sends: int, seed: int) -> Iterator[dict[str, object]]:
    """The events of a clean history with about so many sends."""
    made = Made(seed)
    for number in range(sends // (WRITERS * SENDS_PER_OP)):
        yield from made.round(number)
        if number % 10 == 9:
            yield from made.read(READERS[number // 10 % (len(READERS) - 1)])
    for reader in READERS:
        yield from made.read(reader)
    yield made.end()


def run(*command: str) -> tuple[float, int, str]:
    """Processor seconds, largest resident bytes and stdout of a process."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, out
    print(f"    {time.perf_counter() - start:.1f} s on the clock", flush=True)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, out


def main() -> None:
    """Generate, decode, check."""
    report = Report("check", "the history checker over a million sends", METHOD)
    sends = sized(1_000_000, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(event) + "\n" for event in history(sends, 7))
        decode_s, _, _ = run("-c", DECODE, str(file))
        check_s, check_bytes, out = run("-m", "fencelog", "check", str(file), "--json")
        size = file.stat().st_size
    verdict = json.loads(out)
    assert verdict["outcome"] == "valid", verdict["found"]
    polled = verdict["counts"]["records polled"]
    report.add(
        Figure(
            name=f"{sends:,} sends, {polled:,} polled records, {size / 1e6:.0f} MB",
            value=check_s,
            unit="s",
            ceiling=decode_s,
            ceiling_name="json alone",
            goal=f"< {GOAL_S} s",
            met=check_s < GOAL_S,
        )
    )
    report.add(
        Figure(
            name="memory",
            value=check_bytes / 2**20,
            unit="MiB",
            goal="< 2 GiB",
            met=check_bytes < GOAL_BYTES,
        )
    )
    report.add(Figure(name="records", value=(sends + polled) / check_s / 1e6, unit="M/s"))
    report.finish()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
