"""Faults of a cluster, drawn from a seed, in two rows side by side: processes and network.

Those of the first row hit brokers, their disks, etcd and clients; those of the second cut hosts off
from each other, or delay what they send.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import permutations

from fencelog.check.history import Recorder
from tests.proofs._chaos_disk import FullDisk
from tests.proofs._chaos_nemesis import Fault, plan
from tests.proofs._chaos_rig import Crew
from tests.support.broker import BrokerProcess
from tests.support.etcd import EtcdMember
from tests.support.network import Network, between

SESSION_S = 3.0
"""``broker.session.timeout.ms`` of the brokers."""
STOP_S = 30.0
"""What orchestrators grant between SIGTERM and SIGKILL."""
BACK_S = 60.0
PROCESSES = {
    "kill a broker": 5,
    "kill two brokers": 2,
    "kill all brokers": 1,
    "pause a broker": 3,
    "pause beyond the lease": 3,
    "stop a broker": 3,
    "stop the living": 1,
    "fill a disk": 3,
    "kill etcd's leader": 2,
    "pause etcd's leader": 1,
    "kill all of etcd": 1,
    "kill clients": 3,
    "stop clients": 2,
}
"""How often each is drawn."""
NETWORK = {
    "cut in halves": 3,
    "cut one way": 3,
    "cut in a ring": 2,
    "cut a broker from etcd": 3,
    "cut etcd's leader from etcd": 1,
    "narrow a broker's link": 3,
}
FAULTS = {"process": PROCESSES, "network": NETWORK}
AWAY_S = (0.1, 5.0)
BEYOND_S = (SESSION_S + 0.5, 2 * SESSION_S)
LASTS_S = {
    **dict.fromkeys(PROCESSES, AWAY_S),
    **dict.fromkeys(NETWORK, (0.5, 3 * SESSION_S)),
    "pause a broker": (0.1, 2.0),
    "pause beyond the lease": BEYOND_S,
    "kill all of etcd": (0.1, 3 * SESSION_S),
    "pause etcd's leader": (0.5, 2 * SESSION_S),
}
"""Seconds, at least and at most; of who is killed or stopped, until it is started again."""


def lasts(fault: Fault) -> float:
    """How many seconds a fault lasts."""
    least, most = LASTS_S[fault.kind]
    return least + fault.strength * (most - least)


def part(chosen: random.Random, brokers: Sequence[str], members: Sequence[str]) -> set[str]:
    """The smaller half of the brokers, with none to all but one of etcd's members."""
    return {
        *chosen.sample(brokers, (len(brokers) - 1) // 2),
        *chosen.sample(members, chosen.randrange(len(members))),
    }


def ring(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each hears the one before it, and not the one behind it."""
    return list(zip(names, [*names[1:], names[0]], strict=True))


@dataclass
class ClusterNemesis:
    """Carries out the plans of both rows, and heals everything in the end."""

    brokers: Sequence[BrokerProcess]
    disks: Sequence[FullDisk]
    """One for each broker."""
    etcd: Sequence[EtcdMember]
    network: Network | None
    """Hosts b1… and e1…; without one nothing is cut or delayed."""
    crew: Crew
    seed: str
    diary: Recorder
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is broken yet."""
        self._chosen = random.Random(f"{self.seed}-targets")
        self._cut = random.Random(f"{self.seed}-cuts")
        self._over = threading.Event()

    def run(self, seconds: float, gap_s: float) -> None:
        """Return after so many seconds and the end of the last faults; all brokers run then."""
        rows = [threading.Thread(target=self._row, args=("process", seconds, gap_s, self._strike))]
        if self.network is not None:
            rows.append(
                threading.Thread(target=self._row, args=("network", seconds, gap_s, self._disturb))
            )
        for row in rows:
            row.start()
        self._over.wait(seconds)
        self._over.set()
        for row in rows:
            row.join()

    def _row(
        self, name: str, seconds: float, gap_s: float, carry_out: Callable[[str, float], None]
    ) -> None:
        try:
            for fault in plan(f"{self.seed}-{name}", FAULTS[name], 2 * seconds, gap_s):
                if self._over.wait(fault.after_s):
                    return
                lasts_s = lasts(fault)
                self.diary.fault(fault.kind, until=time.monotonic() + lasts_s)
                carry_out(fault.kind, lasts_s)
                self.counts[fault.kind] += 1
        except Exception as error:  # noqa: BLE001  # a thread that dies must end the chapter
            self.failures.append(f"the faults cannot go on: {error!r}")
            self._over.set()

    # --- network

    def _disturb(self, kind: str, lasts_s: float) -> None:
        assert self.network is not None
        try:
            if kind == "narrow a broker's link":
                self.network.narrow(self._cut.choice(self._broker_hosts))
            else:
                self.network.cut(self._ways(kind))
            self._over.wait(lasts_s)
        finally:
            self.network.heal()

    @property
    def _broker_hosts(self) -> list[str]:
        return [f"b{number}" for number, _ in enumerate(self.brokers, 1)]

    def _ways(self, kind: str) -> list[tuple[str, str]]:
        brokers = self._broker_hosts
        members = [f"e{number}" for number, _ in enumerate(self.etcd, 1)]
        match kind:
            case "cut in halves":
                some = part(self._cut, brokers, members)
                return between(some, {*brokers, *members} - some)
            case "cut one way":
                return [self._cut.choice(list(permutations(brokers, 2)))]
            case "cut in a ring":
                return ring(self._cut.sample(brokers, len(brokers)))
            case "cut a broker from etcd":
                return between([self._cut.choice(brokers)], members)
            case _:
                leader = members[list(self.etcd).index(self._leader(self._cut))]
                return between([leader], members)

    # --- processes

    def _strike(self, kind: str, lasts_s: float) -> None:
        match kind.split():
            case ["kill", ("a" | "two" | "all") as number, ("broker" | "brokers")]:
                self._kill({"a": 1, "two": 2, "all": len(self.brokers)}[number], lasts_s)
            case ["pause", *_, "broker" | "lease"]:
                self._pause(self._chosen.choice(self.brokers).pid, lasts_s)
            case ["stop", "a", "broker"]:
                self._stop([self._chosen.choice(self.brokers)], lasts_s)
            case ["stop", "the", "living"]:
                dead, *living = self._chosen.sample(self.brokers, len(self.brokers))
                dead.kill()
                self._stop(living, lasts_s)
                self._start([dead])
            case ["fill", *_]:
                self._fill(lasts_s)
            case [_, "clients"]:
                self._without_clients(kind, lasts_s)
            case _:
                self._without_etcd(kind, lasts_s)

    def _without_etcd(self, kind: str, lasts_s: float) -> None:
        victims = self.etcd if kind == "kill all of etcd" else [self._leader(self._chosen)]
        if kind == "pause etcd's leader":
            victims[0].pause()
            self._over.wait(lasts_s)
            victims[0].resume()
            return
        for each in victims:
            each.kill()
        self._over.wait(lasts_s)
        for each in victims:
            each.start()

    def _leader(self, chosen: random.Random) -> EtcdMember:
        """The member that leads; any, where none says that it does."""
        return next((each for each in self.etcd if each.leads), chosen.choice(self.etcd))

    def _without_clients(self, kind: str, lasts_s: float) -> None:
        if kind == "kill clients":
            self.crew.kill(self._chosen, self._chosen.random())
        else:
            victims = self.crew.pause(self._chosen, self._chosen.random())
            self._over.wait(lasts_s)
            self.crew.resume(victims)

    def _fill(self, lasts_s: float) -> None:
        """A full disk needs no restart, but a broker may give up on one."""
        number = self._chosen.randrange(len(self.brokers))
        broker, disk = self.brokers[number], self.disks[number]
        pid = broker.pid
        disk.fill(pid)
        self._over.wait(lasts_s)
        with suppress(ProcessLookupError):
            disk.free(pid)
        if not broker.running:
            self.counts["brokers that ended on a full disk"] += 1
            broker.kill()
            self._start([broker])

    def _kill(self, number: int, away_s: float) -> None:
        victims = self._chosen.sample(self.brokers, number)
        for each in victims:
            each.kill()
        self._over.wait(away_s)
        self._start(victims)

    def _stop(self, victims: Sequence[BrokerProcess], away_s: float) -> None:
        """SIGTERM to all of them, then wait for each."""
        for each in victims:
            os.kill(each.pid, signal.SIGTERM)
        for each in victims:
            try:
                status = each.terminate()
            except AssertionError as error:
                self.failures.append(f"no clean stop in {STOP_S:g} s: {str(error)[-2000:]}")
                continue
            if status:
                self.failures.append(f"a broker stopped with {status}: {each.stderr[-2000:]}")
        self._over.wait(away_s)
        self._start(victims)

    def _start(self, victims: Sequence[BrokerProcess]) -> None:
        for each in victims:
            self._start_one(each)

    def _start_one(self, broker: BrokerProcess) -> None:
        """Again and again, as an orchestrator does: without etcd a broker does not start."""
        ends_at = time.monotonic() + BACK_S
        while True:
            try:
                broker.start()
            except AssertionError as error:
                if time.monotonic() > ends_at:
                    self.failures.append(f"a broker did not come back: {str(error)[-2000:]}")
                    return
                self.counts["starts without etcd"] += 1
            else:
                return

    def _pause(self, pid: int, lasts_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._over.wait(lasts_s)
        os.kill(pid, signal.SIGCONT)
