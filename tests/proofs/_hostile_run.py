"""One attack on a broker process while a bystander is timed and the broker's memory is watched."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.broker import BrokerProcess
from tests.support.bystander import Bystander, Watched
from tests.support.faults import ROOT

REQUESTS_MIB, RESPONSES_MIB = 64, 128
ROOM_MIB = 96
"""Beside both budgets: one response as it is read and copied, buffers of connections, the heap's
fragmentation."""
SETTINGS = (
    f"queued.max.request.bytes={REQUESTS_MIB << 20}\n"
    f"queued.max.response.bytes={RESPONSES_MIB << 20}\n"
    "fencelog.max.partitions=12000\n"
    "socket.frame.timeout.ms=10000\n"
)
DELAY_MS_MAX = 100.0
"""What a bystander's answer may take beyond what the machine takes."""
WRONG = re.compile(r"internal error|Traceback|ERROR|MemoryError")
START_S, END_S = 180.0, 60.0
SAMPLE_S = 0.05


@dataclass
class Row:
    """What one attack has shown."""

    attack: str
    seconds: float
    done: int = 0
    watched: Watched = field(default_factory=Watched)
    memory_before_mib: float = 0.0
    memory_mib: float = 0.0
    log: list[str] = field(default_factory=list)
    """Lines of the broker's log that say that something is wrong."""
    broke: str = ""
    """What ended the run early."""

    @property
    def memory_mib_max(self) -> float:
        """What the configuration allows."""
        return self.memory_before_mib + REQUESTS_MIB + RESPONSES_MIB + ROOM_MIB

    @property
    def broken(self) -> list[str]:
        """What is wrong whatever the machine does: answers, the log, memory."""
        found = [f"the broker's log: {line[:300]}" for line in self.log[:5]]
        found += [f"the bystander: {each[:300]}" for each in self.watched.wrong[:5]]
        if self.broke:
            found.append(self.broke)
        if self.memory_mib > self.memory_mib_max:
            found.append(
                f"memory {self.memory_mib:.0f} MiB, above the {self.memory_mib_max:.0f} MiB that "
                "the configuration allows"
            )
        return [f"{self.attack}: {each}" for each in found]

    @property
    def problems(self) -> list[str]:
        """All that is wrong."""
        found = self.broken
        if self.delay_ms > DELAY_MS_MAX:
            found.append(
                f"{self.attack}: an answer to the bystander took {self.delay_ms:.0f} ms more than "
                "the machine"
            )
        return found

    @property
    def delays_ms(self) -> list[float]:
        """Of each answer to the bystander, how long it took without the machine's delay."""
        every = self.watched.latencies.get("produce", [])
        return sorted(1e3 * (latency - machine) for latency, machine in every)

    @property
    def delay_ms(self) -> float:
        """The longest of them."""
        return max(self.delays_ms, default=0.0)


def resident_mib(pid: int) -> float:
    """Memory of a process; 0 where it is gone. Pages of files and of shared memory do not count."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return 0.0
    found = re.search(r"RssAnon:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else 0.0


def run(
    attack: str,
    folder: Path,
    *,
    seconds: float,
    size: float = 1.0,
    seed: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Row:
    """Attack a broker of its own for so long."""
    row = Row(attack, seconds)
    place = folder / attack.replace(" ", "-").replace("=", "-")
    with BrokerProcess(place, settings=SETTINGS, environment=environment) as broker:
        try:
            _attack(broker, row, [str(size), str(seed)])
        except (OSError, ValueError, AssertionError, subprocess.TimeoutExpired) as error:
            row.broke = f"the run broke: {error!r}"
        running = broker.running
        broker.kill()
        if not running:
            row.broke = f"the broker ended with {broker.exit_statuses[-1]}"
        row.log = [line for line in broker.stderr.splitlines() if WRONG.search(line)]
    return row


def _attack(broker: BrokerProcess, row: Row, how: Sequence[str]) -> None:
    command = [sys.executable, "-m", "tests.proofs._hostile_attacks", row.attack]
    with subprocess.Popen(
        [*command, broker.host, str(broker.port), *how],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as attackers:
        stuck = threading.Timer(START_S, attackers.kill)
        stuck.start()
        try:
            assert attackers.stdin is not None
            assert attackers.stdout is not None
            said = attackers.stdout.readline()
            stuck.cancel()
            assert said == "ready\n", f"the attack was not prepared within {START_S} s"
            row.memory_before_mib = resident_mib(broker.pid)
            with Bystander(broker) as bystander:
                attackers.stdin.write("begin\n")
                attackers.stdin.flush()
                ends = time.monotonic() + row.seconds
                while time.monotonic() < ends and broker.running:
                    row.memory_mib = max(row.memory_mib, resident_mib(broker.pid))
                    time.sleep(SAMPLE_S)
                row.watched = bystander.ended()
            said, _ = attackers.communicate("", timeout=END_S)
            row.done = int(said)
        finally:
            stuck.cancel()
            attackers.kill()
