"""Faults drawn from a seed: one row that hits processes and the disk, one that hits the network.

The rows run side by side, each one fault after the other, so a cut may meet a kill.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fencelog.check.history import Recorder
from tests.proofs._chaos_disk import FullDisk
from tests.proofs._chaos_holds import ADD_PARTITIONS, END, PRODUCE
from tests.proofs._chaos_rig import Crew, ProxyProcess
from tests.support.broker import BrokerProcess

FAULTS = {
    "process": {
        "kill the broker": 4,
        "kill the broker twice": 1,
        "stop the broker": 2,
        "kill clients": 4,
        "stop clients": 3,
        "fill the disk": 2,
    },
    "network": {
        "delay": 2,
        "cut requests": 2,
        "cut answers": 2,
        "cut both": 1,
        "reset": 2,
        "lose answers": 3,
        f"hold {PRODUCE}": 3,
        f"hold {ADD_PARTITIONS}": 3,
        f"hold {END}": 3,
    },
}
"""How often each is drawn, within its row."""
LASTS_S = {
    "kill the broker twice": (0.1, 0.8),
    "stop the broker": (0.3, 5.0),
    "stop clients": (0.5, 8.0),
    "fill the disk": (0.5, 3.0),
    "delay": (1.0, 5.0),
    "cut requests": (0.3, 4.0),
    "cut answers": (0.3, 4.0),
    "cut both": (0.3, 4.0),
    "lose answers": (0.5, 3.0),
    f"hold {PRODUCE}": (0.3, 1.5),
    f"hold {ADD_PARTITIONS}": (0.3, 1.5),
    f"hold {END}": (0.3, 1.5),
}
"""Seconds, at least and at most; the others are over at once."""
PATIENCE_S, LOOK_S = 60.0, 0.2
"""How much longer a chapter may take until it is enough, and how often it is looked at."""
HOLDS_AT_ONCE = 3
HELD_S_MAX = 12.0
"""By then it is delivered, also where its producer began no later transaction."""
Faults = Mapping[str, Mapping[str, int]]


def number_of(counts: Mapping[str, int]) -> int:
    """How many faults these counts are, what each one hit left out."""
    return sum(counts.get(kind, 0) for row in FAULTS.values() for kind in row)


@dataclass(frozen=True)
class Fault:
    """One fault: so many seconds after the end of the row's last one."""

    kind: str
    after_s: float
    lasts_s: float
    strength: float
    """From 0 to 1: how many clients, how long a delay, how likely a loss."""


def plan(seed: str, kinds: Mapping[str, int], seconds: float, gap_s: float) -> list[Fault]:
    """The faults of one row: about so many seconds of them, ``gap_s`` the mean time between."""
    chosen = random.Random(seed)
    faults, at = [], 0.0
    while kinds and at < seconds:
        kind = chosen.choices(list(kinds), list(kinds.values()))[0]
        after_s = min(chosen.expovariate(1 / gap_s), 4 * gap_s)
        lasts_s = chosen.uniform(*LASTS_S.get(kind, (0.0, 0.0)))
        faults.append(Fault(kind, after_s, lasts_s, chosen.random()))
        at += after_s + lasts_s
    return faults


class _Row(Protocol):
    """Carries out the faults of one row."""

    def __call__(self, fault: Fault) -> None:
        """Begin the fault, wait, end it."""
        ...


@dataclass
class Nemesis:
    """Carries out the plans of both rows, and heals everything in the end."""

    broker: BrokerProcess
    crew: Crew
    proxy: ProxyProcess
    disk: FullDisk
    seed: str
    diary: Recorder
    """Every fault is written down here, for charts."""
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is broken yet."""
        self._over = threading.Event()
        self._chosen = random.Random(f"{self.seed}-targets")

    def run(
        self,
        faults: Faults,
        seconds: float,
        gap_s: float,
        *,
        is_enough: Callable[[], bool] = lambda: True,
    ) -> None:
        """Return after so many seconds, with everything healed.

        A machine that is busy with something else gets more time, until ``is_enough``.
        """
        rows: list[tuple[str, _Row]] = [("process", self._process), ("network", self._network)]
        threads = [
            threading.Thread(
                target=self._row,
                args=(plan(f"{self.seed}-{name}", faults[name], 2 * seconds, gap_s), carry_out),
            )
            for name, carry_out in rows
        ]
        for thread in threads:
            thread.start()
        self._over.wait(seconds)
        ends_at = time.monotonic() + PATIENCE_S
        while not (is_enough() or time.monotonic() > ends_at or self._over.wait(LOOK_S)):
            pass
        self._over.set()
        for thread in threads:
            thread.join()
        self.proxy.tell("heal")

    def _row(self, faults: list[Fault], carry_out: _Row) -> None:
        try:
            for fault in faults:
                if self._over.wait(fault.after_s):
                    return
                self.diary.fault(fault.kind, until=time.monotonic() + fault.lasts_s)
                carry_out(fault)
                self.counts[fault.kind] += 1
        except Exception as error:  # noqa: BLE001  # a thread that dies must end the chapter
            self.failures.append(f"the faults cannot go on: {error!r}")
            self._over.set()

    def _wait(self, fault: Fault) -> None:
        self._over.wait(fault.lasts_s)

    def _process(self, fault: Fault) -> None:
        if not self.broker.running:
            self.failures.append(f"the broker ended by itself:\n{self.broker.stderr[-2000:]}")
            self._over.set()
            return
        match fault.kind:
            case "kill the broker":
                self.broker.restart()
            case "kill the broker twice":
                self.broker.kill()
                self._kill_in_recovery(fault.lasts_s)
            case "stop the broker":
                os.kill(self.broker.pid, signal.SIGSTOP)
                self._wait(fault)
                os.kill(self.broker.pid, signal.SIGCONT)
            case "kill clients":
                self.counts["clients killed"] += self.crew.kill(self._chosen, fault.strength**2)
            case "stop clients":
                stopped = self.crew.pause(self._chosen, fault.strength**2)
                self.counts["clients stopped"] += len(stopped)
                self._wait(fault)
                self.crew.resume(stopped)
            case _:
                assert fault.kind == "fill the disk", fault
                self._fill(fault)

    def _kill_in_recovery(self, after_s: float) -> None:
        """Kill a broker that starts; it may have been ready or not."""
        pids: list[int] = []

        def shoot() -> None:
            try:
                os.kill(self.broker.pid, signal.SIGKILL)
            except (AssertionError, ProcessLookupError):
                return
            pids.append(1)

        timer = threading.Timer(after_s, shoot)
        timer.start()
        try:
            self.broker.start()
        except AssertionError:
            self.counts["of them before the broker was ready"] += 1
        timer.join()
        self.broker.restart()

    def _fill(self, fault: Fault) -> None:
        """A failed write takes partitions out of service until the next start (D2)."""
        pid = self.broker.pid
        self.disk.fill(pid)
        self._wait(fault)
        self.counts["brokers that ended on a full disk"] += not self.broker.running
        self.broker.kill()
        self.disk.free(pid)
        self.broker.start()

    def _network(self, fault: Fault) -> None:
        tell = self.proxy.tell
        match fault.kind.split():
            case ["delay"]:
                tell("delay", most_s=0.005 + 0.3 * fault.strength**2)
                self._wait(fault)
                tell("resume")
            case ["cut", which]:
                ways = {"requests": ["up"], "answers": ["down"], "both": ["up", "down"]}[which]
                tell("cut", ways=ways)
                self._wait(fault)
                if fault.strength < 0.5:
                    tell("reset", share=1.0)
                tell("resume")
            case ["reset"]:
                tell("reset", share=fault.strength)
            case ["lose", "answers"]:
                tell("lose", chance=0.02 + 0.3 * fault.strength**2)
                self._wait(fault)
                tell("lose", chance=0.0)
            case ["hold", kind]:
                self._hold(kind, fault)
            case _:
                raise AssertionError(fault)

    def _hold(self, kind: str, fault: Fault) -> None:
        for _ in range(1 + int(HOLDS_AT_ONCE * fault.strength)):
            self.proxy.tell(
                "hold",
                kind=kind,
                wait=self._chosen.random() < 0.3,
                most_s=HELD_S_MAX,
            )
        self._wait(fault)
