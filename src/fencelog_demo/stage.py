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

from fencelog_demo import cluster
from fencelog_demo.events import Event, Follower, write_event
from fencelog_demo.plan import CLUSTER_PLAN, EXACTLY_ONCE, PIPELINES, PLAN, Fault
from fencelog_demo.processes import exit_status, send, tree
from fencelog_demo.settings import MAX_OFFSETS, STAGE_FOLDER

LISTENING = re.compile(r"listening on (\S+:\d+)")
START_S = 40.0
"""Until each broker listens, etcd's start included."""
SILENCE_S = 90.0
STOP_S = 30.0
ZOMBIE_S = 15.0
UNPLANNED_RESTARTS_MAX = 3

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
    etcd: str = ""
    """The program; with it there are three brokers."""
    streams: bool = False
    """Flights and events are streams, whose segments split and merge all the time."""
    fencelog: Sequence[str] = (sys.executable, "-m", "fencelog")

    @property
    def brokers(self) -> int:
        """How many there are."""
        return cluster.BROKERS if self.etcd else 1

    @property
    def plan(self) -> tuple[Fault, ...]:
        """The faults."""
        return CLUSTER_PLAN if self.etcd else PLAN

    @property
    def batch_rows(self) -> int:
        """Rows that a micro-batch has at most: each fault needs a batch of its own."""
        return -(-self.rows // (len(self.plan) + 1))


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
        """Begin in a folder that must be new."""
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
        self._etcd = cluster.EtcdAddress() if setup.etcd else None
        self._brokers: dict[int, Child] = {}
        self._addresses: dict[int, str] = {}
        if self._etcd is not None:
            command = self._etcd.command(setup.etcd, setup.folder / "etcd")
            self._start("etcd", command)
        self._driver: Child | None = None
        self._zombie: Child | None = None
        self.done = False

    # --- events

    def step(self) -> list[Event]:
        """Handle what happened; return the new events. Raises StageError."""
        ended = self._ended()  # first: who has killed them has logged it before
        new = list(self._follower.new())
        for event in new:
            self._last_event_at = time.monotonic()
            self.events.append(event)
            self.tally.count(event)
            self._act(event)
        if not self.done:
            self._check_brokers()
            self._check_children(ended)
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

    def _check_brokers(self) -> None:
        """Start the brokers, and all the others once each broker listens."""
        if self.address:
            return
        if not self._brokers and (self._etcd is None or self._etcd.is_healthy):
            for node in range(1, self.setup.brokers + 1):
                self._start_broker(node)
        for node, broker in self._brokers.items():
            log = broker.log.read_text(encoding="utf-8", errors="replace")
            if found := LISTENING.search(log):
                self._addresses[node] = found.group(1)
        if len(self._addresses) == self.setup.brokers:
            self.address = ",".join(self._addresses[node] for node in sorted(self._addresses))
            self._begin()
        elif time.monotonic() - self._begun > START_S:
            raise StageError(f"the stage did not start in {START_S:.0f} s; see {self.setup.folder}")

    def _begin(self) -> None:
        self._log_event("broker-ready", address=self.address)
        folder = ["--folder", str(self.setup.folder)]
        etcd = [] if self._etcd is None else ["--etcd", self._etcd.clients]
        self._start("killer", [sys.executable, "-m", "fencelog_demo.killer", *folder, *etcd])
        self._start_producer(folder)
        if self.setup.streams:
            self._start("resizer", [sys.executable, "-m", "fencelog_demo.resizer", *folder])
        # Spark takes seconds to start; the topics are there by then.
        self._driver = self._start_driver()

    def _ended(self) -> list[Child]:
        """Return the children that have ended and are not seen to yet."""
        return [
            child
            for child in self._children
            if child.status is None and child.process.poll() is not None
        ]

    def _check_children(self, ended: Sequence[Child]) -> None:
        for child in ended:
            child.status = status = child.process.wait()
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
        node = next((node for node, each in self._brokers.items() if each is child), None)
        if child.role in {"broker", "etcd"} and self.done:
            return
        if node is not None and child.is_target:
            self._start_broker(node)
        elif child.role in {"broker", "etcd"}:
            raise StageError(f"{child.label} ended with {status}; its log is {child.log}")
        elif child is self._driver and self._stopping_since is None:
            if not child.is_target:
                self._unplanned += 1
                self._log_event("unplanned-restart", label=child.label, status=status)
            if self._unplanned > UNPLANNED_RESTARTS_MAX:
                raise StageError(f"the driver failed repeatedly; its log is {child.log}")
            self._driver = self._start_driver()
        elif child.role in {"producer", "killer", "resizer"} and status != 0:
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
            if self.tally.faults < len(self.setup.plan):
                raise StageError(
                    f"all flights are delivered, but only {self.tally.faults} of "
                    f"{len(self.setup.plan)} faults were injected"
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

    def _start_broker(self, node: int) -> None:
        listen = self._addresses.get(node, "127.0.0.1:0")
        data = str(self.setup.folder / f"data-{node}")
        command = [*self.setup.fencelog, "serve", "--data-dir", data, "--listen", listen]
        # Only members commit for a group that has any (E8); those of the pipelines record progress.
        environment = {"FENCELOG_GROUP_FENCE": "required"}
        if self._etcd is not None:
            command += self._etcd.serve_arguments(node)
            environment |= cluster.SETTINGS
        facts = {} if self._etcd is None else {"node": node}
        self._brokers[node] = self._start("broker", command, environment, **facts)

    def _start_producer(self, folder: list[str]) -> None:
        server = ["--bootstrap-server", self.address]
        share = ["--every", str(self.setup.every), "--seconds", str(self.setup.produce_s)]
        if self.setup.streams:
            share.append("--streams")
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
            MAX_OFFSETS: str(setup.batch_rows),
        }
        return self._start("driver", command, environment)

    def _start(
        self,
        role: str,
        command: list[str],
        environment: Mapping[str, str] | None = None,
        **facts: object,
    ) -> Child:
        self._labels[role] += 1
        label = f"{role} {facts.get('node', self._labels[role])}"
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
        self._log_event("started", role=role, label=label, pid=process.pid, **facts)
        return child

    def _log_event(self, kind: str, **facts: object) -> None:
        write_event(self.setup.folder, kind, **facts)

    def close(self) -> None:
        """End the brokers as an operator does, with SIGTERM, and wait for all processes."""
        for broker in self._brokers.values():
            broker.process.terminate()
        for child in self._children:
            # Brokers that stop need their etcd.
            if child.status is None and child.role != "etcd":
                child.process.wait(STOP_S)
        for child in self._children:
            if child.role == "etcd":
                child.process.terminate()
                child.process.wait(STOP_S)
        self._check_children(self._ended())
        self.events.extend(self._follower.new())
