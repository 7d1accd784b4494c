"""The stage: broker, producer, killer and drivers, run by an operator who restarts what ended.

Nothing here blocks. ``step`` handles what happened since the last call; it is called often.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fencelog_demo.events import Event, Follower, write_event
from fencelog_demo.plan import EXACTLY_ONCE, PIPELINES, PLAN
from fencelog_demo.processes import exit_status, send, tree
from fencelog_demo.settings import MAX_OFFSETS, STAGE_FOLDER

LISTENING = re.compile(r"listening on (\S+:\d+)")
BROKER_START_S = 20.0
SILENCE_S = 90.0
STOP_S = 30.0
ZOMBIE_S = 15.0
UNPLANNED_RESTARTS_MAX = 3
BATCHES = 6
"""Micro-batches that the whole share makes at least: each fault needs one of its own."""

SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "fencelog_demo.daemon",
    # The compiler that warms up fast: no driver of this demo runs for long.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class StageError(Exception):
    """The stage cannot continue; the message says why and which log to read."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a stage is made of."""

    every: int
    rows: int
    folder: Path
    produce_s: float
    fencelog: Sequence[str] = (sys.executable, "-m", "fencelog")


@dataclass(kw_only=True)
class Child:
    """A process that this stage started."""

    role: str
    label: str
    process: "subprocess.Popen[bytes]"
    log: Path
    status: int | None = None
    is_target: bool = False


@dataclass(kw_only=True)
class Tally:
    """What is known to be done, counted from the event log."""

    produced: int = 0
    all_produced: bool = False
    batches: dict[str, dict[int, int]] = field(
        default_factory=lambda: {name: {} for name in PIPELINES}
    )
    totals: int = 0
    faults: int = 0

    def delivered(self, pipeline: str) -> int:
        """Flights in committed batches of a pipeline, each batch once."""
        return sum(self.batches[pipeline].values())

    def count(self, event: Event) -> None:
        """Take one event into account."""
        match event.kind:
            case "produced":
                self.produced = event.number("rows")
            case "all-produced":
                self.all_produced = True
            case "totals-committed":
                self.totals = max(self.totals, event.number("tally"))
            case "injected":
                self.faults += 1
            case "reached" if event.text("point") == "after-commit":
                batches, batch = self.batches[event.text("pipeline")], event.number("batch")
                batches[batch] = max(batches.get(batch, 0), event.number("tally"))
            case _:
                pass


def lay_out_spark(home: Path) -> None:
    """A Spark home of links to the installed one, without its zipped copy of PySpark.

    Each of Spark's Python processes would prefer the zip and compile PySpark out of it anew, half
    a second each, a dozen for every driver; without it they take the installed package.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StageError("PySpark is not installed: ./dev setup brings it")
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(spec.origin).parent / name)


class Stage:
    """Runs everything from an empty data directory to the last committed batch."""

    def __init__(self, setup: Setup) -> None:
        """Start the broker in a folder that must be new."""
        self.setup = setup
        self.tally = Tally()
        self.events: list[Event] = []
        self.address = ""
        setup.folder.mkdir(parents=True)
        lay_out_spark(setup.folder / "spark-home")
        self._follower = Follower(setup.folder)
        self._children: list[Child] = []
        self._labels: Counter[str] = Counter()
        self._orphans: dict[int, str] = {}
        self._begun = self._last_event_at = time.monotonic()
        self._stopping_since: float | None = None
        self._complete_since: float | None = None
        self._unplanned = 0
        self._broker = self._start_broker()
        self._driver: Child | None = None
        self._zombie: Child | None = None
        self.done = False

    # --- events

    def step(self) -> list[Event]:
        """Handle what happened; return the new events. Raises StageError."""
        new = list(self._follower.new())
        for event in new:
            self._last_event_at = time.monotonic()
            self.events.append(event)
            self.tally.count(event)
            self._act(event)
        if not self.done:
            self._check_broker()
            self._check_children()
            self._check_orphans()
            self._check_progress()
        return new

    def _act(self, event: Event) -> None:
        match event.kind:
            case "injected":
                self._orphans.update(dict.fromkeys(map(int, self._pids(event)), event.text("role")))
                self._mark_targets(event)
                if event.text("signal") == "SIGSTOP":
                    # It is silent now, so its operator considers it dead.
                    self._zombie, self._driver = self._driver, self._start_driver()
            case _:
                pass

    def _pids(self, event: Event) -> list[str]:
        pids = event.facts["pids"]
        assert isinstance(pids, dict)
        return list(pids)

    def _mark_targets(self, event: Event) -> None:
        pids = set(self._pids(event))
        for child in self._children:
            if str(child.process.pid) in pids:
                child.is_target = True
                self._orphans.pop(child.process.pid, None)

    # --- checks

    def _check_broker(self) -> None:
        if self.address:
            return
        found = LISTENING.search(self._broker.log.read_text(encoding="utf-8", errors="replace"))
        if found:
            self.address = found.group(1)
            self._log_event("broker-ready", address=self.address)
            folder = ["--folder", str(self.setup.folder)]
            self._start("killer", [sys.executable, "-m", "fencelog_demo.killer", *folder])
            self._start_producer(folder)
            # Spark takes seconds to start; the topics are there by then.
            self._driver = self._start_driver()
        elif time.monotonic() - self._begun > BROKER_START_S:
            raise StageError(f"the broker did not start; its log is {self._broker.log}")

    def _check_children(self) -> None:
        for child in self._children:
            if child.status is None and (status := child.process.poll()) is not None:
                child.status = status
                self._log_event(
                    "exited",
                    role=child.role,
                    label=child.label,
                    pid=child.process.pid,
                    status=status,
                )
                self._replace(child, status)

    def _replace(self, child: Child, status: int) -> None:
        """Restart what ended; any other unexpected end fails the stage."""
        if child is self._broker:
            if self.done:
                return
            if not child.is_target:
                raise StageError(f"the broker ended with {status}; its log is {child.log}")
            self._broker = self._start_broker()
        elif child is self._driver and self._stopping_since is None:
            if not child.is_target:
                self._unplanned += 1
                self._log_event("unplanned-restart", label=child.label, status=status)
            if self._unplanned > UNPLANNED_RESTARTS_MAX:
                raise StageError(f"the driver failed repeatedly; its log is {child.log}")
            self._driver = self._start_driver()
        elif child.role in {"producer", "killer"} and status != 0:
            raise StageError(f"the {child.role} ended with {status}; its log is {child.log}")

    def _check_orphans(self) -> None:
        """Log how adopted processes ended; Spark's daemon logs how workers ended."""
        for pid, role in list(self._orphans.items()):
            try:
                status = exit_status(pid)
            except ChildProcessError:
                continue  # not ours yet, or its daemon has seen it
            if status is not None:
                del self._orphans[pid]
                self._log_event("exited", role=role, pid=pid, status=status)

    def _check_progress(self) -> None:
        if time.monotonic() - self._last_event_at > SILENCE_S:
            raise StageError(f"nothing happened for {SILENCE_S:.0f} s; see {self.setup.folder}")
        if self._stopping_since is not None:
            self._check_stop(self._stopping_since)
        elif self._complete():
            if self.tally.faults < len(PLAN):
                raise StageError(
                    f"all flights are delivered, but only {self.tally.faults} of {len(PLAN)} "
                    "faults were injected"
                )
            if not self._zombie_runs():
                assert self._driver is not None
                self._driver.process.send_signal(signal.SIGTERM)
                self._stopping_since = time.monotonic()

    def _zombie_runs(self) -> bool:
        """Whether the zombie still runs; after ZOMBIE_S it is killed."""
        if self._zombie is None or self._zombie.status is not None:
            return False
        self._complete_since = self._complete_since or time.monotonic()
        if time.monotonic() - self._complete_since > ZOMBIE_S:
            send(signal.SIGKILL, tree(self._zombie.process.pid))
        return True

    def _complete(self) -> bool:
        rows, tally = self.setup.rows, self.tally
        done = all(tally.delivered(name) >= rows for name in PIPELINES)
        return tally.all_produced and done and tally.totals >= rows

    def _check_stop(self, since: float) -> None:
        driver = self._driver
        assert driver is not None
        if driver.status is None and time.monotonic() - since > STOP_S:
            raise StageError(f"the driver did not stop; its log is {driver.log}")
        producers = [child for child in self._children if child.role == "producer"]
        if driver.status is not None and all(child.status is not None for child in producers):
            self._log_event("over", delivered=self.tally.delivered(EXACTLY_ONCE))
            self.done = True

    # --- starting and ending

    def _start_broker(self) -> Child:
        listen = self.address or "127.0.0.1:0"
        data = str(self.setup.folder / "data")
        command = [*self.setup.fencelog, "serve", "--data-dir", data, "--listen", listen]
        # Only members commit for a group that has any (E8); those of the pipelines record progress.
        return self._start("broker", command, {"FENCELOG_GROUP_FENCE": "required"})

    def _start_producer(self, folder: list[str]) -> None:
        server = ["--bootstrap-server", self.address]
        share = ["--every", str(self.setup.every), "--seconds", str(self.setup.produce_s)]
        module = "fencelog_demo.producer"
        self._start("producer", [sys.executable, "-m", module, *folder, *server, *share])

    def _start_driver(self) -> Child:
        setup = self.setup
        command = [*setup.fencelog, "run", str(Path(__file__).with_name("pipeline.py"))]
        command += ["--bootstrap-server", self.address, "--master", "local[2,4]"]
        command += ["--checkpoint", str(setup.folder / "checkpoint")]
        settings = {**SPARK, "spark.local.dir": str(setup.folder / "spark-local")}
        for name, value in settings.items():
            command += ["-X", f"{name}={value}"]
        environment = {
            "TMPDIR": str(setup.folder),
            "SPARK_HOME": str(setup.folder / "spark-home"),
            STAGE_FOLDER: str(setup.folder),
            MAX_OFFSETS: str(-(-setup.rows // BATCHES)),
        }
        return self._start("driver", command, environment)

    def _start(
        self, role: str, command: list[str], environment: Mapping[str, str] | None = None
    ) -> Child:
        self._labels[role] += 1
        label = f"{role} {self._labels[role]}"
        log = self.setup.folder / f"{role}-{self._labels[role]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.setup.folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        child = Child(role=role, label=label, process=process, log=log)
        self._children.append(child)
        self._log_event("started", role=role, label=label, pid=process.pid)
        return child

    def _log_event(self, kind: str, **facts: object) -> None:
        write_event(self.setup.folder, kind, **facts)

    def close(self) -> None:
        """End the broker as an operator does, with SIGTERM, and wait for all processes."""
        self._broker.process.terminate()
        for child in self._children:
            if child.status is None:
                child.process.wait(STOP_S)
        self._check_children()
        self.events.extend(self._follower.new())
