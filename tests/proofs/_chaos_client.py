"""One client of a workload, as a process of its own that may be killed or stopped at any moment.

Its history goes line by line into a file of its own: what ``write`` returned from is in the page
cache and survives SIGKILL. A last line that a kill cut in two is of something that never happened,
or never came to be known. SIGTERM asks it to end its operation and go.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from fencelog.check.history import Event, Recorder
from fencelog_sim.workload import Scale, Workload
from fencelog_sim.workloads import WORKLOADS

ROLES = ("prepare", "client", "settle")
COUNTS = "{:>15} {:>15}\n"
"""Records acknowledged and polled so far: the one line of a client's ``.counts`` file."""


class HistoryFile:
    """Appends events, each with one ``write``, and counts what they say."""

    def __init__(self, path: Path) -> None:
        """Begin a new file; the path must not exist."""
        flags = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY
        self._file = os.open(path, flags, 0o644)
        self._counts = os.open(path.with_suffix(".counts"), os.O_CREAT | os.O_WRONLY, 0o644)
        self._acknowledged = self._polled = 0

    def write(self, event: Event) -> None:
        """Store one event."""
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        assert os.write(self._file, line) == len(line)
        if event["type"] == "ok":
            self._count(event["steps"])

    def _count(self, steps: object) -> None:
        assert isinstance(steps, list)
        for step in steps:
            if step[0] == "send":
                self._acknowledged += 1
            elif step[0] == "poll":
                self._polled += sum(map(len, step[1].values()))
        os.pwrite(self._counts, COUNTS.format(self._acknowledged, self._polled).encode(), 0)


@dataclass
class RealStage:
    """A stage in real time before a real cluster."""

    bootstrap: str
    random: random.Random
    history: Recorder
    scale: Scale
    stopping: bool = False

    def now(self) -> float:
        """The running loop's seconds."""
        return asyncio.get_running_loop().time()

    async def pause(self) -> None:
        """Wait as long as the scale says, randomly."""
        mean_s = self.scale.pause_s
        await asyncio.sleep(self.random.expovariate(1 / mean_s) if mean_s else 0)

    def stop(self) -> None:
        """Ask the client to end."""
        self.stopping = True


async def act(role: str, workload: Workload, stage: RealStage, index: int) -> None:
    """Play one part of a workload."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stage.stop)
    match role:
        case "prepare":
            await workload.prepare(stage)
        case "settle":
            await workload.settle(stage)
        case _:
            await workload.client(stage, index)


def main() -> None:
    """Read what to be from the command line, and be it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("role", choices=ROLES)
    add("--workload", required=True, choices=list(WORKLOADS))
    add("--index", type=int, default=0)
    add("--process", required=True, help="the name in the history")
    add("--bootstrap", required=True)
    add("--history", type=Path, required=True)
    add("--seed", required=True)
    add("--scale", required=True, help="the fields of Scale, as JSON")
    wanted = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    # A client that is cut off again and again has much to say.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    gc.freeze()
    file = HistoryFile(wanted.history)
    stage = RealStage(
        bootstrap=wanted.bootstrap,
        random=random.Random(wanted.seed),
        history=Recorder(wanted.process, now=time.monotonic, write=file.write),
        scale=Scale(**json.loads(wanted.scale)),
    )
    uvloop.run(act(wanted.role, WORKLOADS[wanted.workload](), stage, wanted.index))


if __name__ == "__main__":
    main()
