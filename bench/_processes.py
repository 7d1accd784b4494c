"""Brokers in processes of their own, and what they cost: CPU time and memory from ``/proc``."""

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench._report import ROOT
from tests.support.broker import BrokerProcess


class Rig(BrokerProcess):
    """``python -m bench._rigs KIND``: a broker that leaves a part of the work undone."""

    def __init__(self, kind: str, data_dir: Path) -> None:
        """Describe it; ``kind`` is one of ``bench._rigs``."""
        super().__init__(data_dir)
        self._kind = kind

    def command(self) -> list[str]:
        """The command line that ``start`` runs."""
        listen = f"{self.host}:{self.port}"
        return [sys.executable, "-m", "bench._rigs", self._kind, str(self.data_dir), listen]

    def syncs(self) -> int:
        """How many files the ``counting`` broker has synced until now."""
        lines = self.stderr.count("\n")
        os.kill(self.pid, signal.SIGUSR1)
        return int(self.wait_for_line(re.compile(r"^syncs (\d+)"), since=lines)[1])


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the disk of the checkout, which is what a user's broker writes to."""
    place = ROOT / ".cache"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as directory:
        yield Path(directory)


def touch_memory(place: Path, size: int) -> None:
    """Let the next ``size`` bytes of page cache be memory that this machine really has.

    A virtual machine may have given free memory back to its host; the first touch of each page then
    costs more than all that a broker does with it, and whoever writes first would pay.
    """
    path = place / "touched"
    with path.open("wb", buffering=0) as file:
        # In writes like a batch's: the kernel takes other pages for other sizes.
        block = bytes(1_000_137)
        for _ in range(size // len(block)):
            file.write(block)
    path.unlink()


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads that a process has now."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            continue
    return total_ns / 1e9


def kernel_s(pid: int) -> float:
    """CPU seconds that a process has spent in the kernel, in steps of the clock's tick."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[12]) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
