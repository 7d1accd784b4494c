"""What does the pytest plugin cost: a run that does not use it, a broker, a kill and restart?"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from bench._processes import scratch
from bench._report import Figure, Report, sized

UNUSED = """
import json, time, pytest
wall, cpu = time.perf_counter(), time.process_time()
import fencelog.testing
print(json.dumps(["unused", time.perf_counter() - wall, time.process_time() - cpu]))
"""
USED = """
import json, time

def timed(kind, work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    with open("times", "a") as times:
        print(json.dumps([kind, time.perf_counter() - wall, time.process_time() - cpu]), file=times)

def test_first(request):
    timed("first", lambda: request.getfixturevalue("fencelog_broker"))

def test_second(request):
    timed("further", lambda: request.getfixturevalue("fencelog_broker"))

def test_third(request):
    timed("further", lambda: request.getfixturevalue("fencelog_broker"))

def test_restart(fencelog_broker):
    fencelog_broker.create_topic("orders", 3)
    for _ in range(3):
        timed("restart", fencelog_broker.restart)
"""
METHOD = (
    "In pytest runs of their own, one after the other: the fixture `fencelog_broker` where it is "
    "the first of its process and brings the broker's modules, where it is a further one, and "
    "`restart()` of a broker with a topic of three partitions. The plugin unused: its import in a "
    "process that has imported pytest. Medians; CPU time is that of the process."
)
FIGURES = {
    "unused": ("run without the fixture", 20),
    "first": ("first broker of a run", 150),
    "further": ("each further broker", 150),
    "restart": ("kill and restart", None),
}


def one_run(place: Path) -> list[str]:
    """Run pytest once, and the import once; returns a line for each thing timed."""
    (place / "test_times.py").write_text(USED)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "fencelog.testing", "-p", "no:randomly"]
    subprocess.run(
        [*pytest, "--rootdir", str(place), "test_times.py"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    unused = subprocess.run([sys.executable, "-c", UNUSED], stdout=subprocess.PIPE, check=True)
    return [*(place / "times").read_text().splitlines(), unused.stdout.decode()]


def main() -> None:
    """Run in alternating rounds, after one run that only fills the caches."""
    report = Report("testing", "the pytest plugin", METHOD)
    walls: defaultdict[str, list[float]] = defaultdict(list)
    cpus: defaultdict[str, list[float]] = defaultdict(list)
    with scratch() as place:
        for number in range(sized(11, 1) + 1):
            folder = place / str(number)
            folder.mkdir()
            for line in one_run(folder):
                kind, wall, cpu = json.loads(line)
                if number:
                    walls[kind].append(1e3 * wall)
                    cpus[kind].append(1e3 * cpu)
    for kind, (name, goal) in FIGURES.items():
        value = median(walls[kind])
        report.add(
            Figure(
                name=name,
                value=value,
                unit="ms",
                goal="" if goal is None else f"<= {goal} ms",
                met=None if goal is None else value <= goal,
            )
        )
        report.add(Figure(name=f"CPU time, {name}", value=median(cpus[kind]), unit="ms"))
    report.finish()


if __name__ == "__main__":
    main()
