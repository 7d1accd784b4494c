"""Takeovers before a real broker: an owner is struck, another one takes over, the first comes back.

The owner writes in a loop. It is killed, stopped beyond its lease, stopped while another claimant
severs it, or severed while it runs; and the broker may be killed at any step of the next grant.
Then the history of all claimants and the logs are judged as in the simulator.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fencelog.check.history import Event, key_of
from fencelog.client.blocking import Client
from fencelog.client.cluster import parse_address
from fencelog.rpc.connection import connect
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicPartition
from fencelog_sim.workloads.owned_log import rows_of
from fencelog_sim.workloads.owned_requests import fetch
from fencelog_sim.workloads.owners_history import problems_of
from tests.proofs._takeovers_process import KINDS
from tests.support.broker import BrokerProcess
from tests.support.waiting import wait_until

TOPIC = "taken"
PARTITIONS = 2
LEASE_MS = 1_000
LIMIT_S = 180.0
"""Idle priority on a busy machine is slow."""
GRANT_S = 0.06
"""The broker is killed within so many seconds of the request: before, in or after the grant."""

Note = dict[str, Any]


@dataclass(frozen=True)
class Strike:
    """What happens to the owner, and how the next one claims."""

    name: str
    how: signal.Signals | None
    waits: bool
    """The next one waits for the end of the claim, or severs the owner."""
    kills_broker: bool = False


STRIKES = (
    Strike("killed", signal.SIGKILL, waits=True),
    Strike("stopped beyond its lease", signal.SIGSTOP, waits=True),
    Strike("stopped and severed", signal.SIGSTOP, waits=False),
    Strike("severed while it writes", None, waits=False),
    Strike("killed, the broker too", signal.SIGKILL, waits=True, kills_broker=True),
    Strike("stopped, the broker killed", signal.SIGSTOP, waits=False, kills_broker=True),
    Strike("severed, the broker killed", None, waits=False, kills_broker=True),
)


@dataclass(frozen=True)
class Takeover:
    """One takeover, as it went."""

    strike: Strike
    kinds: tuple[str, str]
    """The owner's client, and the next one's."""
    seconds: float
    """From the strike, or where nothing struck from the claim, to the first accepted write."""
    broker_killed: str = ""
    """Where in the grant."""


@dataclass
class Verdict:
    """All takeovers, and what was found in the logs."""

    takeovers: list[Takeover] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    accepted: int = 0
    refused: int = 0
    """Writes that were refused, zombies' all."""
    records: int = 0


class Worker:
    """A claimant's process."""

    def __init__(self, name: str, kind: str, *, waits: bool, address: str, folder: Path) -> None:
        """Start it."""
        self.name, self.kind = name, kind
        self.path = folder / f"{name}.jsonl"
        self._events: list[Event] = []
        self._read = 0
        command = [sys.executable, "-m", "tests.proofs._takeovers_process", *_resources()]
        command += ["--kind", kind, "--process", name, "--bootstrap", address]
        command += ["--history", str(self.path), "--lease-ms", str(LEASE_MS)]
        self._errors = (folder / f"{name}.stderr").open("wb")
        self.process = subprocess.Popen(
            [*command, *(["--waits"] if waits else [])], stderr=self._errors
        )

    def events(self) -> list[Event]:
        """What it has written so far."""
        if self.path.exists():
            with self.path.open("rb") as lines:
                lines.seek(self._read)
                whole = lines.read().rpartition(b"\n")[0]
            self._events += map(json.loads, whole.splitlines())
            self._read += len(whole) + bool(whole)
        return self._events

    def wait_for(self, what: Callable[[Note], bool], said: str) -> Note:
        """Return the first note of this kind, once it is there."""
        return wait_until(
            lambda: next((each for each in self.events() if what(each)), None),
            deadline_s=LIMIT_S,
            what=f"{said} of {self.name}",
        )

    def accepted_after(self, at: float) -> Callable[[Note], bool]:
        """Whether a note says that a write was accepted after this time."""
        return lambda note: note.get("what") in {"wrote", "ended"} and note["time"] > at

    def signal(self, how: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(how)

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._errors.close()


class Rig:
    """A broker, its claimants, and one takeover after the other."""

    def __init__(self, folder: Path, broker: BrokerProcess, random: Random) -> None:
        """Make the topic; the broker runs."""
        self._folder, self._broker, self._random = folder, broker, random
        self._owner: Worker | None = None
        self._workers: list[Worker] = []
        self.verdict = Verdict()
        with Client(broker.address) as client:
            client.create_topic(TOPIC, PARTITIONS, {"ownership": "required"})

    def take_over(self, strike: Strike, kind: str) -> Takeover:
        """Strike the owner and wait for the next one's first accepted write."""
        owner = self._owner or self._start(KINDS[0], waits=False)
        owner.wait_for(owner.accepted_after(0.0), "the first write")
        at = time.monotonic()
        if strike.waits:
            following = self._start(kind, waits=True)
            following.wait_for(lambda note: note.get("what") == "waiting", "a place")
            at = self._strike(owner, strike)
        else:
            at = self._strike(owner, strike)
            following = self._start(kind, waits=False)
            asked = following.wait_for(lambda note: note.get("what") == "own", "a claim")
            at = float(asked["time"])
        where = self._kill_broker(following) if strike.kills_broker else ""
        first = following.wait_for(following.accepted_after(at), "the first write")
        owner.signal(signal.SIGCONT)
        if strike.how is not signal.SIGKILL:
            owner.wait_for(lambda note: note.get("what") == "over", "the end")
        owner.end()
        self._owner = following
        seconds = float(first["time"]) - at
        takeover = Takeover(strike, (owner.kind, kind), seconds, where)
        self.verdict.takeovers.append(takeover)
        return takeover

    def _strike(self, owner: Worker, strike: Strike) -> float:
        if strike.how is not None:
            owner.signal(strike.how)
        return time.monotonic()

    def _kill_broker(self, following: Worker) -> str:
        """Kill the broker around the grant and start it again; says where the grant was."""
        time.sleep(self._random.uniform(0.0, GRANT_S))
        self._broker.kill()
        killed = time.monotonic()
        self._broker.start()
        told = [str(each.get("what")) for each in following.events() if each["time"] < killed]
        if "wrote" in told or "ended" in told:
            return "after the first write"
        return "after the answer" if "granted" in told else "before the answer"

    def _start(self, kind: str, *, waits: bool) -> Worker:
        worker = Worker(
            f"w{len(self._workers)}",
            kind,
            waits=waits,
            address=self._broker.address,
            folder=self._folder,
        )
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """Kill all claimants."""
        for each in self._workers:
            each.end()

    def judge(self) -> None:
        """Read the logs, and compare them with what all claimants were told."""
        if self._owner is not None:
            self._owner.end()
        events = [event for worker in self._workers for event in worker.events()]
        events.sort(key=lambda each: float(str(each["time"])))
        told = [str(each.get("what")) for each in events]
        topic: Event = {"type": "meta", "what": "topic", "ownership": "required"}
        logs = [self._log(TopicPartition(TOPIC, number)) for number in range(PARTITIONS)]
        verdict = self.verdict
        verdict.problems += problems_of([topic, *events, *logs])
        verdict.accepted = told.count("wrote") + sum(
            len(event["values"])  # type: ignore[arg-type]
            for event in events
            if event.get("what") == "ended"
        )
        verdict.refused = told.count("write refused") + told.count("stock refused")
        verdict.records = sum(len(each["rows"]) for each in logs)  # type: ignore[arg-type]

    def _log(self, partition: TopicPartition) -> Event:
        """All rows of a partition, as a note."""
        with Client(self._broker.address) as client:
            end = client.offsets([partition], "latest", "replicated")[partition]

        async def read() -> list[list[object]]:
            address = parse_address(self._broker.address)
            connection = await connect(*address, "judge", Deadline(LIMIT_S))
            rows: list[list[object]] = []
            position = 0
            while position < end:
                found, position = rows_of(await fetch(connection, partition, position), position)
                rows += found
            connection.close()
            return rows

        rows = asyncio.run(read())
        return {"type": "meta", "what": "log", "partition": key_of(*partition), "rows": rows}


def _resources() -> Sequence[str]:
    return [key_of(TOPIC, number) for number in range(PARTITIONS)]


def run(
    folder: Path,
    *,
    takeovers: int,
    seed: int,
    strikes: Sequence[Strike] = STRIKES,
    progress: Callable[[], None] = lambda: None,
) -> Verdict:
    """Play so many takeovers before a broker that syncs, and judge them."""
    random = Random(seed)
    with BrokerProcess(folder / "data", durability="fsync") as broker:
        broker.start_deadline_s = LIMIT_S
        rig = Rig(folder, broker, random)
        try:
            for number in range(takeovers):
                rig.take_over(strikes[number % len(strikes)], random.choice(KINDS))
                progress()
            rig.judge()
        finally:
            rig.close()
    return rig.verdict
