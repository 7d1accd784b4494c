"""Damaged and heavy requests against a broker process over sockets, while bystanders are timed.

Two brokers run side by side, each with a bystander; one of them is attacked. What the machine does
meets both, so the difference between their bystanders is the attack's.
"""

import os
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fencelog.wire.api_versions import ApiKey
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.proofs._fuzz_broker import TELL
from tests.proofs._fuzz_heavy import PARTITIONS, WIDE, heavies
from tests.support.broker import BrokerProcess
from tests.support.bystander import Bystander, ask
from tests.support.damage import SIZE, join, mutated
from tests.support.requests import KEYS_AND_VERSIONS, a_request, frame_of

ROOT = Path(__file__).parent.parent.parent
TURN_MS_MAX = 100.0
LATE_S, LATE_SHARE_MAX = 0.1, 0.001
Latencies = dict[str, list[tuple[float, float]]]
PATIENCE_S = 0.02
"""How long an attacker waits for an answer: many requests rightly wait for something."""
HEAVY_SHARE, SLOW_SHARE = 0.05, 0.02
WRONG = re.compile(r"internal error|Traceback|ERROR")
MALICE = (
    struct.pack(">i", 100 << 20) + bytes(100),
    struct.pack(">i", 99 << 20) + b"\x00\x00\x00\x09" + bytes(1000),
    struct.pack(">i", 1000),
    b"\x00",
    struct.pack(">i", -1),
    b"GET / HTTP/1.1\r\n\r\n",
)
"""Frames that are announced and never come, halves of a size, and what is no frame."""


class MeasuredBroker(BrokerProcess):
    """A broker that says how long its loop was held."""

    def command(self) -> list[str]:
        """The command line that ``start`` runs."""
        plain = super().command()
        return [sys.executable, "-m", "tests.proofs._fuzz_broker", *plain[3:]]

    def longest_turn_ms(self) -> float:
        """CPU time of the longest loop iteration since the last call."""
        lines = self.stderr.count("\n")
        os.kill(self.pid, TELL)
        return float(self.wait_for_line(re.compile(r"^longest iteration (\S+) ms"), since=lines)[1])

    def resident_mib(self) -> float:
        """Memory of the process."""
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


@dataclass
class Live:
    """What a run has shown: of each request the latencies, attacked and quiet, in seconds.

    With each goes for how long the machine had no core for the broker or the bystander meanwhile.
    """

    seconds: float
    sent: Counter[str] = field(default_factory=Counter)
    attacked: Latencies = field(default_factory=dict)
    quiet: Latencies = field(default_factory=dict)
    turn_ms: float = 0.0
    quiet_turn_ms: float = 0.0
    resident_mib: float = 0.0
    resident_before_mib: float = 0.0
    wrong: list[str] = field(default_factory=list)
    wrong_answers: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What may not be."""
        found = [f"the broker's log: {line}" for line in self.wrong[:20]]
        found += [f"the bystander: {each}" for each in self.wrong_answers[:20]]
        if self.turn_ms > TURN_MS_MAX:
            found.append(f"a turn of the loop took {self.turn_ms:.0f} ms of CPU time")
        late, of = late_share(self.attacked), late_share(self.quiet)
        if late > of + LATE_SHARE_MAX:
            found.append(
                f"{100 * late:.2f} % of the bystander's answers came after 100 ms in which the "
                f"broker could run, {100 * of:.2f} % at the broker in peace"
            )
        return found


def late_share(latencies: Latencies) -> float:
    """Share of answers that came later than they may, without the time that the machine took."""
    every = [latency - without for one in latencies.values() for latency, without in one]
    return sum(each > LATE_S for each in every) / max(len(every), 1)


class _Attackers:
    """Threads that send what no good client sends, one connection after the other."""

    def __init__(self, broker: BrokerProcess, seed: int, threads: int, items: int) -> None:
        self._place = (broker.host, broker.port)
        self._heavy = [each.frame for each in heavies(items)]
        self._ended = threading.Event()
        self.sent: Counter[str] = Counter()
        self._held: list[socket.socket] = []
        self._threads = [
            threading.Thread(target=self._run, args=(Random(f"{seed}/{n}"),), daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for held in self._held:
            held.close()

    def _run(self, random: Random) -> None:
        while not self._ended.is_set():
            with suppress(OSError):
                self._one(random)

    def _one(self, random: Random) -> None:
        chosen = random.random()
        connection = socket.create_connection(self._place, 10)
        connection.settimeout(PATIENCE_S)
        if chosen < SLOW_SHARE:
            connection.sendall(random.choice(MALICE))
            self.sent["halves and announcements"] += 1
            # Some stay open: they cost a place, and the sweeper ends them.
            self._held.append(connection)
            if len(self._held) > 50:
                self._held.pop(0).close()
            return
        with connection:
            if chosen < SLOW_SHARE + HEAVY_SHARE:
                connection.settimeout(10)
                stream = join([random.choice(self._heavy)])
                self.sent["heavy"] += 1
            else:
                stream = join([a_request(*random.choice(KEYS_AND_VERSIONS), random)])
                for _ in range(random.choice((1, 1, 2))):
                    stream = mutated(stream, random, 1 << 16)
                self.sent["damaged"] += 1
            connection.sendall(stream)
            with suppress(TimeoutError):
                _read_one(connection)


def _read_one(connection: socket.socket) -> None:
    """Read an answer, or what there is of one until the end."""
    data = connection.recv(1 << 16)
    size = SIZE.size + SIZE.unpack_from(data)[0] if len(data) >= SIZE.size else 0
    received = len(data)
    while data and received < size:
        data = connection.recv(1 << 16)
        received += len(data)


def _prepare(broker: BrokerProcess) -> None:
    """Make the topics that heavy and damaged requests name."""
    compact = [CreatableTopicConfig(name="cleanup.policy", value="compact")]
    topics = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=1, configs=configs)
        for name, count, configs in (
            (WIDE, PARTITIONS, []),
            ("plain", 1, []),
            ("several", 4, []),
            ("compacted", 1, compact),
        )
    ]
    body = CreateTopicsRequest(topics=topics).write(7)
    with socket.create_connection((broker.host, broker.port), 10) as connection:
        ask(connection, frame_of(ApiKey.CREATE_TOPICS, 7, body))


def attack(
    folder: Path, *, seconds: float, seed: int, threads: int = 4, items: int = 10_000
) -> Live:
    """Run two brokers and attack one of them."""
    live = Live(seconds)
    settings = "socket.frame.timeout.ms=5000\nfencelog.max.partitions=400\n"
    with (
        MeasuredBroker(folder / "attacked", settings=settings) as broker,
        MeasuredBroker(folder / "quiet", settings=settings) as quiet,
    ):
        for each in (broker, quiet):
            _prepare(each)
        attackers = _Attackers(broker, seed, threads, items)
        live.resident_before_mib = broker.resident_mib()
        watching = [Bystander(each, "all") for each in (broker, quiet)]
        # From here on: what was before was the start.
        broker.longest_turn_ms()
        quiet.longest_turn_ms()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and broker.running:
            live.resident_mib = max(live.resident_mib, broker.resident_mib())
            time.sleep(0.2)
        attacked, in_peace = (each.ended() for each in watching)
        attackers.end()
        live.sent = attackers.sent
        live.attacked, live.quiet = attacked.latencies, in_peace.latencies
        live.wrong_answers = attacked.wrong
        live.turn_ms, live.quiet_turn_ms = broker.longest_turn_ms(), quiet.longest_turn_ms()
        broker.terminate()
        live.wrong = [line for line in broker.stderr.splitlines() if WRONG.search(line)]
    return live
