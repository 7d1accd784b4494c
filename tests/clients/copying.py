"""Two copiers of each client in one group, killed and restarted while they copy; what came out.

A case is one client: its members join, are killed in the middle of a transaction, leave and come
back, while the broker that all cases share is killed as well. A copier that gives up is started
again, as an operator would.
"""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO

from fencelog.client.blocking import Client
from fencelog.errors import FencelogError
from tests.support.broker import BrokerProcess
from tests.support.stock import Confluent, ToSend
from tests.support.waiting import wait_until

PARTITIONS = 4
CHUNK = 120
SESSION_MS = 5_000
STEP_S = 150.0
RESTARTS_MAX = 40
PAUSE_S = 0.1
SAID_CHARACTERS = 4_000


class Copier:
    """One process, restarted when it gives up, until it is asked to leave."""

    def __init__(self, command: Sequence[str], folder: Path | None, log: IO[bytes]) -> None:
        """Start it."""
        self._command = command
        self._folder = folder
        self._log = log
        self.restarts = 0
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    def watch(self) -> None:
        """Start it again if it has given up."""
        if self.process.poll() is not None:
            self.restarts += 1
            assert self.restarts <= RESTARTS_MAX, f"{self._command} gives up again and again"
            self._start()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        """SIGTERM, and wait; a copier that cannot leave any more is killed."""
        self.process.terminate()
        try:
            self.process.wait(STEP_S / 3)
        except subprocess.TimeoutExpired:
            self.kill()


class Case:
    """One client's group, from an input topic to an output topic."""

    open_kills = 2
    """How often a member is killed with a transaction open."""

    def __init__(
        self, client: str, broker: BrokerProcess, log: Path, *, step_s: float = STEP_S
    ) -> None:
        """Name everything after the client; each step may take so long."""
        self.client = client
        self.step_s = step_s
        self.group = f"{client}-copiers"
        self.source, self.target = f"{client}-in", f"{client}-out"
        self.values: list[bytes] = []
        self.killed_open = 0
        self.log = log
        self.address = broker.address
        self._copiers: list[Copier] = []

    def options(self, member: str) -> str:
        """The options of a copier, as JSON."""
        return json.dumps(
            {
                "client": self.client,
                "bootstrap": self.address,
                "source": self.source,
                "target": self.target,
                "target_partitions": PARTITIONS,
                "group": self.group,
                "transactional_id": f"{self.group}-{member}",
                "size": 10,
                "partitions": None,
                "seed": member,
                "transaction_timeout_ms": 30_000,
                "session_timeout_ms": SESSION_MS,
            }
        )

    def prepare(self, admin: Client) -> None:
        """Create the topics."""
        for topic in (self.source, self.target):
            admin.create_topic(topic, PARTITIONS)

    def run(self, command: Callable[[str], Sequence[str]], folder: Path | None) -> None:
        """Run the group from start to end; raises AssertionError where it does not get on."""
        with self.log.open("wb") as log, Client(self.address) as admin:

            def start(member: str) -> Copier:
                copier = Copier(command(self.options(member)), folder, log)
                self._copiers.append(copier)
                return copier

            try:
                self.prepare(admin)
                self.live(admin, start)
            finally:
                for each in self._copiers:
                    each.kill()

    def live(self, admin: Client, start: Callable[[str], Copier]) -> None:
        """The lives of the group's members."""
        first = start("first")
        self.feed(admin, first)
        second = start("second")  # joins
        self.feed(admin, first, second)
        self.kill_open(admin, first, second)
        self.feed(admin, first, second)  # is started again by its watcher, under the same id
        second.leave()
        self.feed(admin, first)
        second = start("second")
        self.feed(admin, first, second)
        self.kill_open(admin, second, first)
        self.feed(admin, first, second)
        for each in (first, second):
            each.leave()

    def feed(self, admin: Client, *members: Copier) -> None:
        """More input; wait until it is copied."""
        values = [b"%d" % (len(self.values) + number) for number in range(CHUNK)]
        sent = [ToSend(value, partition=at % PARTITIONS) for at, value in enumerate(values)]
        Confluent().write(self.address, self.source, sent, idempotent=True)
        self.values += values

        def holds() -> bool:
            for each in members:
                each.watch()
            return self.copied(admin)

        wait_until(holds, deadline_s=self.step_s, every_s=PAUSE_S, what=f"{self.client} to get on")

    def copied(self, admin: Client) -> bool:
        """Whether all input is copied, by what the group has committed."""
        try:
            committed = admin.committed_offsets(self.group)
        except FencelogError:  # the broker is away, or the group's offsets are pending
            return False
        read = sum(offset for place, offset in committed.items() if place.topic == self.source)
        return read == len(self.values)

    def kill_open(self, admin: Client, victim: Copier, *others: Copier) -> None:
        """Write input, and kill this one while a transaction of its group is open."""
        for other in others:  # so that the open transaction is of the killed one
            other.process.send_signal(signal.SIGSTOP)
        try:
            values = [b"%d" % (len(self.values) + number) for number in range(CHUNK * 4)]
            sent = [ToSend(value, partition=at % PARTITIONS) for at, value in enumerate(values)]
            Confluent().write(self.address, self.source, sent, idempotent=True)
            self.values += values
            wait_until(
                lambda: self._stopped_open(admin, victim),
                deadline_s=self.step_s,
                every_s=0.001,
                what=f"an open transaction of {self.client}",
            )
            victim.kill()
        finally:
            for other in others:
                other.process.send_signal(signal.SIGCONT)

    def _stopped_open(self, admin: Client, victim: Copier) -> bool:
        """Stop it, and say whether that left a transaction open; else let it go on."""
        victim.watch()
        try:
            if not self._open(admin):
                return False
            victim.process.send_signal(signal.SIGSTOP)
            if self._open(admin):
                self.killed_open += 1
                return True
        except FencelogError:
            pass
        victim.process.send_signal(signal.SIGCONT)
        return False

    def _open(self, admin: Client) -> list[str]:
        return [
            each.transactional_id
            for each in admin.list_transactions()
            if each.transactional_id.startswith(self.group) and each.state == "Ongoing"
        ]

    def check(self) -> None:
        """Each input record once in the output, and nothing left open. Raises AssertionError."""
        with Client(self.address) as admin:
            wait_until(
                lambda: not self._open(admin), deadline_s=self.step_s, what="nothing left open"
            )
        found = Counter(each.value for each in Confluent().read(self.address, self.target))
        wanted = Counter(self.values)
        assert not wanted - found, f"lost: {wanted - found}"
        assert not found - wanted, f"doubled or aborted: {found - wanted}"
        assert self.killed_open == self.open_kills


class Arena:
    """All cases at once, on one broker that is killed meanwhile."""

    def __init__(self, broker: BrokerProcess, kills: int, every_s: float) -> None:
        """Kill the broker so often, with so long between."""
        self.broker = broker
        self.kills = kills
        self._every_s = every_s
        self._ends: dict[str, Future[None]] = {}

    def run(
        self, cases: Sequence[tuple[Case, Callable[[str], Sequence[str]], Path | None]]
    ) -> None:
        """Run them until all have ended, well or not."""
        with ThreadPoolExecutor(len(cases)) as pool:
            for case, command, folder in cases:
                self._ends[case.client] = pool.submit(case.run, command, folder)
            for _ in range(self.kills):
                wait(self._ends.values(), self._every_s)
                self.broker.restart()

    def failure(self, client: str) -> BaseException | None:
        """What this client's case died of."""
        return self._ends[client].exception()

    def ended(self, case: Case) -> Case:
        """Return the case. Raises AssertionError, with what its copiers said, if it died."""
        if failure := self.failure(case.client):
            said = case.log.read_text(errors="replace")[-SAID_CHARACTERS:]
            raise AssertionError(f"{case.client} said:\n{said}") from failure
        return case


def python(module: str) -> Callable[[str], Sequence[str]]:
    """The command of a copier in Python."""
    return lambda options: [sys.executable, "-m", module, options]
