"""How long from exec to a broker that serves, and how much memory does it hold idle?"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from bench._processes import cpu_s, resident_mib, scratch
from bench._report import Figure, Report, sized

BARE = """
import asyncio, sys, uvloop

async def main():
    await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    print("listening", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())
"""
METHOD = (
    "From the exec to the line that says where the broker listens, on a new data directory and on "
    "the one that a killed broker left, alternating with a bare Python that imports asyncio and "
    "uvloop and listens. Medians. CPU time until ready (/proc) tells what other load does not "
    "change. Memory is VmRSS two seconds after ready."
)


def start(
    command: list[str], environment: Mapping[str, str] | None = None
) -> tuple[float, float, subprocess.Popen[bytes]]:
    """Start a process; return wall and CPU seconds until it says on stderr that it listens."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    assert process.stderr is not None
    said = b""
    while b"listening" not in said:
        line = process.stderr.readline()
        said += line
        assert line, said
    seconds = time.perf_counter() - began
    return seconds, cpu_s(process.pid), process


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill it."""
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


def serve(data_dir: Path) -> list[str]:
    """The command of a broker on this directory."""
    return [
        *(sys.executable, "-m", "fencelog", "serve"),
        *("--data-dir", str(data_dir), "--listen", "127.0.0.1:0"),
    ]


def main() -> None:
    """Start in alternating rounds."""
    report = Report("startup", "start time and idle memory", METHOD)
    walls: dict[str, list[float]] = {}
    cpus: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    with scratch() as place:
        for number in range(sized(11, 2)):
            commands: dict[str, Callable[[], list[str]]] = {
                "bare": lambda: [sys.executable, "-c", BARE],
                "new": lambda number=number: serve(place / f"new-{number}"),
                "again": lambda: serve(place / "new-0"),
            }
            for kind, command in commands.items():
                wall, cpu, process = start(command())
                if number == 0:
                    time.sleep(2)
                    memory[kind] = resident_mib(process.pid)
                end(process)
                walls.setdefault(kind, []).append(1e3 * wall)
                cpus.setdefault(kind, []).append(1e3 * cpu)
    for kind, title in (("new", "new directory"), ("again", "after a kill")):
        value = median(walls[kind])
        report.add(
            Figure(
                name=f"start, {title}",
                value=value,
                unit="ms",
                ceiling=median(walls["bare"]),
                ceiling_name="bare python",
                goal="<= 400 ms",
                met=value <= 400,
            )
        )
        report.add(
            Figure(
                name=f"CPU time until ready, {title}",
                value=median(cpus[kind]),
                unit="ms",
                ceiling=median(cpus["bare"]),
                ceiling_name="bare python",
            )
        )
    report.add(
        Figure(
            name="idle memory",
            value=memory["new"],
            unit="MiB",
            ceiling=memory["bare"],
            ceiling_name="bare python",
            goal="<= 60 MB",
            met=memory["new"] * 1.048576 <= 60,
        )
    )
    report.finish()


if __name__ == "__main__":
    main()
