"""Faults of a cluster, drawn from a seed: on its brokers, its etcd, and its clients, in one row."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fencelog.check.history import Recorder
from tests.proofs._chaos_rig import Crew
from tests.support.broker import BrokerProcess
from tests.support.etcd import EtcdMember

SESSION_S = 3.0
"""``broker.session.timeout.ms`` of the brokers."""
STOP_S = 30.0
"""What orchestrators grant between SIGTERM and SIGKILL."""
BACK_S = 60.0
FAULTS = {
    "kill a broker": 5,
    "kill two brokers": 2,
    "kill all brokers": 1,
    "pause a broker": 3,
    "pause beyond the lease": 3,
    "stop a broker": 3,
    "stop the living": 1,
    "kill etcd": 2,
    "pause etcd": 1,
    "kill clients": 3,
    "stop clients": 2,
}
"""How often each is drawn."""
LASTS_S = {
    "pause a broker": (0.1, 2.0),
    "pause beyond the lease": (SESSION_S + 0.5, 2 * SESSION_S),
    "kill etcd": (0.1, 3 * SESSION_S),
    "pause etcd": (0.5, 2 * SESSION_S),
    "stop clients": (0.5, 8.0),
}
"""Seconds, at least and at most."""
DOWN_S = (0.1, 5.0)
"""How long a broker is away before it is started again."""


@dataclass
class ClusterNemesis:
    """Carries out faults until the time is over, and heals everything in the end."""

    brokers: Sequence[BrokerProcess]
    etcd: EtcdMember
    crew: Crew
    seed: str
    diary: Recorder
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is broken yet."""
        self._chosen = random.Random(f"{self.seed}-faults")

    def run(self, kinds: dict[str, int], seconds: float, gap_s: float) -> None:
        """Return after so many seconds and the end of the last fault; all brokers run then."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at and not self.failures:
            time.sleep(min(self._chosen.expovariate(1 / gap_s), 4 * gap_s))
            kind = self._chosen.choices(list(kinds), list(kinds.values()))[0]
            lasts_s = self._chosen.uniform(*LASTS_S.get(kind, (0.0, 0.0)))
            self._act(kind, lasts_s)
            self.counts[kind] += 1

    def _act(self, kind: str, lasts_s: float) -> None:
        print(f"{time.strftime('%H:%M:%S')} {kind} {lasts_s:.1f} s", flush=True)
        match kind.split():
            case ["kill", ("a" | "two" | "all") as number, _]:
                self._kill({"a": 1, "two": 2, "all": len(self.brokers)}[number])
            case ["pause", *_, "broker" | "lease"]:
                self._pause(self._chosen.choice(self.brokers).pid, lasts_s)
            case ["stop", "a", "broker"]:
                self._stop([self._chosen.choice(self.brokers)])
            case ["stop", "the", "living"]:
                dead, *living = self._chosen.sample(self.brokers, len(self.brokers))
                dead.kill()
                self._stop(living)
                self._start([dead])
            case [_, "etcd"]:
                self._without_etcd(kind, lasts_s)
            case [_, "clients"]:
                self._without_clients(kind, lasts_s)

    def _without_etcd(self, kind: str, lasts_s: float) -> None:
        if kind == "pause etcd":
            self.etcd.pause()
            time.sleep(lasts_s)
            self.etcd.resume()
        else:
            self.etcd.kill()
            time.sleep(lasts_s)
            self.etcd.start()
            self.etcd.wait()

    def _without_clients(self, kind: str, lasts_s: float) -> None:
        if kind == "kill clients":
            self.crew.kill(self._chosen, self._chosen.random())
        else:
            victims = self.crew.pause(self._chosen, self._chosen.random())
            time.sleep(lasts_s)
            self.crew.resume(victims)

    def _kill(self, number: int) -> None:
        victims = self._chosen.sample(self.brokers, number)
        for each in victims:
            each.kill()
        time.sleep(self._chosen.uniform(*DOWN_S))
        self._start(victims)

    def _stop(self, victims: Sequence[BrokerProcess]) -> None:
        """SIGTERM to all of them, then wait for each."""
        for each in victims:
            os.kill(each.pid, signal.SIGTERM)
        for each in victims:
            began = time.monotonic()
            try:
                status = each.terminate()
            except AssertionError as error:
                self.failures.append(f"no clean stop in {STOP_S:g} s: {str(error)[-2000:]}")
                continue
            print(f"   stopped with {status} in {time.monotonic() - began:.1f} s", flush=True)
            if status:
                self.failures.append(f"a broker stopped with {status}: {each.stderr[-2000:]}")
        time.sleep(self._chosen.uniform(*DOWN_S))
        self._start(victims)

    def _start(self, victims: Sequence[BrokerProcess]) -> None:
        for each in victims:
            try:
                each.start()
            except AssertionError as error:
                self.failures.append(f"a broker did not come back: {str(error)[-2000:]}")

    @staticmethod
    def _pause(pid: int, lasts_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(lasts_s)
        os.kill(pid, signal.SIGCONT)
