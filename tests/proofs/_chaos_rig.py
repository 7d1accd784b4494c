"""The processes of a chapter of chaos: a proxy, and a crew of clients that are restarted."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fencelog_sim.workload import Scale
from tests.support.closing import Closing

POLL_S = 0.05
TAIL_LINES = 12


class ProxyProcess(Closing):
    """``_chaos_proxy`` as a process; a context manager that ends it."""

    def __init__(self, seed: int, log: Path) -> None:
        """Start it and read its port."""
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proofs._chaos_proxy", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._lock = threading.Lock()
        self.port = self._answer()["port"]

    def tell(self, do: str, **more: object) -> Counter[str]:
        """Give a command; return the counts since the start."""
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
            self._process.stdin.flush()
            return self._answer()

    def _answer(self) -> Counter[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the proxy died: {tail(Path(self._log.name))}"
        return Counter(json.loads(line))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._log.close()


def tail(path: Path) -> str:
    """The last lines of a log."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])


@dataclass(frozen=True, kw_only=True)
class Play:
    """What the clients of a chapter get."""

    workload: str
    bootstrap: str
    folder: Path
    seed: int
    scale: Scale

    def start(self, role: str, process: str, index: int = 0) -> "subprocess.Popen[bytes]":
        """Start a client process; its history and its stderr are named after it."""
        command = [sys.executable, "-m", "tests.proofs._chaos_client", role]
        command += ["--workload", self.workload, "--index", str(index), "--process", process]
        command += ["--bootstrap", self.bootstrap, "--seed", f"{self.seed}-{process}"]
        command += ["--history", str(self.folder / f"{process}.jsonl")]
        command += ["--scale", json.dumps(asdict(self.scale))]
        with self.log(process).open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self, process: str) -> Path:
        """Where that client's stderr is."""
        return self.folder / f"{process}.log"

    def run(self, role: str, process: str, deadline_s: float) -> str | None:
        """Run a client to its end; returns what went wrong, or None."""
        running = self.start(role, process)
        try:
            status = running.wait(deadline_s)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            return f"{role} did not end within {deadline_s:.0f} s: {tail(self.log(process))}"
        return f"{role} failed: {tail(self.log(process))}" if status else None

    def counts(self) -> tuple[int, int]:
        """Records acknowledged and records polled so far, over all clients."""
        acknowledged = polled = 0
        for path in self.folder.glob("*.counts"):
            # A client that is just writing its first line has nothing to add yet.
            numbers = path.read_text(encoding="ascii").split()
            if len(numbers) == 2:
                acknowledged += int(numbers[0])
                polled += int(numbers[1])
        return acknowledged, polled


@dataclass
class _Slot:
    """A client's place: who fills it now, and how many have."""

    index: int
    life: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    name: str = ""
    start_at: float = 0.0
    killed: bool = False


@dataclass
class Crew:
    """Restarts every client that ended, under a new name, until it is stopped."""

    play: Play
    gave_up: list[str] = field(default_factory=list)
    """What clients that ended by themselves said."""
    lives: int = 0

    def __post_init__(self) -> None:
        """Nothing runs yet."""
        self._slots = [_Slot(index) for index in range(self.play.scale.clients)]
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        """Start all."""
        self._keeper.start()

    def kill(self, chosen: random.Random, share: float) -> int:
        """SIGKILL some, at least one; returns how many."""
        victims = self._choose(chosen, share)
        for slot in victims:
            slot.killed = True
            slot.start_at = time.monotonic() + chosen.uniform(0, 1)
            self._signal(slot, signal.SIGKILL)
        return len(victims)

    def pause(self, chosen: random.Random, share: float) -> list[_Slot]:
        """SIGSTOP some; give them to ``resume``."""
        victims = self._choose(chosen, share)
        for slot in victims:
            self._signal(slot, signal.SIGSTOP)
        return victims

    def resume(self, victims: Sequence[_Slot]) -> None:
        """SIGCONT."""
        for slot in victims:
            self._signal(slot, signal.SIGCONT)

    def stop(self, deadline_s: float) -> list[str]:
        """Ask all to end and wait; returns who had to be killed."""
        self._stopping.set()
        self._keeper.join()
        deadline = time.monotonic() + deadline_s
        stuck = []
        for slot in self._slots:
            self._signal(slot, signal.SIGTERM)
        for slot in self._slots:
            if slot.process is None:
                continue
            try:
                status = slot.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                slot.process.kill()
                slot.process.wait()
                stuck.append(f"{slot.name} did not end within {deadline_s:.0f} s of the last fault")
                continue
            if status not in (0, -signal.SIGTERM) and not slot.killed:
                self.gave_up.append(f"{slot.name}: {tail(self.play.log(slot.name))}")
        return stuck

    def close(self) -> None:
        """Kill what still runs."""
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()
                slot.process.wait()

    def _keep(self) -> None:
        while not self._stopping.wait(POLL_S):
            for slot in self._slots:
                with self._lock:
                    self._look_at(slot)

    def _look_at(self, slot: _Slot) -> None:
        if slot.process is not None and slot.process.poll() is not None:
            if not slot.killed:
                self.gave_up.append(f"{slot.name}: {tail(self.play.log(slot.name))}")
                slot.start_at = time.monotonic() + 1.0
            slot.process = None
        if slot.process is None and time.monotonic() >= slot.start_at:
            slot.life += 1
            self.lives += 1
            slot.killed = False
            slot.name = f"{self.play.workload}-{slot.index}-{slot.life}"
            slot.process = self.play.start("client", slot.name, slot.index)

    def _choose(self, chosen: random.Random, share: float) -> list[_Slot]:
        with self._lock:
            alive = [slot for slot in self._slots if slot.process is not None and not slot.killed]
        if not alive:
            return []
        return chosen.sample(alive, max(1, round(share * len(alive))))

    def _signal(self, slot: _Slot, number: signal.Signals) -> None:
        with self._lock:
            if slot.process is not None and slot.process.poll() is None:
                os.kill(slot.process.pid, number)
