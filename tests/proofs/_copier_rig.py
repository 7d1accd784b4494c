"""One run of one cell: copiers and a reader before a broker, kills, and what came out.

The input holds the numbers from 0 on. Where one partition is copied the output must be these
numbers in order; where several are, each of them once, those of one input partition in order on
each output partition. A concurrent reader of committed data and one that comes last must both see
exactly that, the group must have committed the input's ends, and no transaction may be left open.
"""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.proofs._compare import check_ends, read_all
from tests.proofs._copier_process import HANGS, Options
from tests.support.broker import BrokerProcess
from tests.support.waiting import wait_until

SOURCE, TARGET, GROUP = "copier-in", "copier-out", "copiers"
PARTITIONS = 3
"""Of input and output where the cell has several."""
COPIERS = 2
BOUNCES = 3
DEADLINE_S = 120.0
STOP_S = 40.0
SESSION_MS = 2_000
TRANSACTION_MS = 30_000
CONFIG = """\
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One field of the matrix."""

    target: str
    """Who is bounced: ``broker`` or ``clients``."""
    how: str
    """``hard``: SIGKILL, ``clean``: SIGTERM."""
    names_member: bool
    """Whether the transaction's offsets name the member (group metadata), or are plain."""
    partitions: int
    client: str

    @property
    def name(self) -> str:
        """In words."""
        metadata = "group metadata" if self.names_member else "plain"
        return f"{self.target}, {self.how}, {metadata}, {self.partitions} partition(s)"


def cells(clients: Sequence[str]) -> list[Cell]:
    """The whole matrix for each of these clients."""
    return [
        Cell(
            target=target, how=how, names_member=names_member, partitions=partitions, client=client
        )
        for client in clients
        for target in ("broker", "clients")
        for how in ("hard", "clean")
        for names_member in (True, False)
        for partitions in (1, PARTITIONS)
    ]


@dataclass(kw_only=True)
class Result:
    """What one run came to."""

    cell: Cell
    seed: int
    records: int
    bounces: int = 0
    lives: int = 0
    """Copier processes started."""
    committed: int = 0
    aborted: int = 0
    """Transactions that the copiers say they committed and aborted."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """From plain values."""
        return cls(**{**fields, "cell": Cell(**fields["cell"])})


class Reader:
    """A concurrent confluent-kafka consumer of committed data, in a thread of its own."""

    def __init__(self, address: str, partitions: int) -> None:
        """Start to read everything."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer
        from confluent_kafka import TopicPartition as Place

        self.found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.count = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "log_level": 2,
                "error_cb": lambda _error: None,
                "group.id": "reads-by-assignment",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.assign([Place(TARGET, p, OFFSET_BEGINNING) for p in range(partitions)])
        self._stopping = threading.Event()
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        from confluent_kafka import KafkaException

        while not self._stopping.is_set():
            try:
                messages = self._consumer.consume(1_000, 0.05)
            except KafkaException as error:
                self.errors.append(f"the reader failed: {error}")
                return
            for message in messages:
                trouble = message.error()
                if trouble is None:
                    self.found[message.partition()].append((message.offset(), message.value()))
                    self.count += 1
                elif not trouble.retriable():
                    self.errors.append(f"the reader got: {trouble}")

    def close(self) -> None:
        """Stop."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()


class Crew:
    """The copier processes of a run; each place is filled again when its copier is gone."""

    def __init__(self, cell: Cell, address: str, seed: int, size: int, folder: Path) -> None:
        """Describe them; nothing runs yet."""
        self._cell, self._folder, self._seed = cell, folder, seed
        self.lives = 0
        self.ended: Counter[str] = Counter()
        self.failures: list[str] = []
        places = COPIERS if cell.names_member else min(COPIERS, cell.partitions)
        self._options = [
            Options(
                client=cell.client,
                bootstrap=address,
                source=SOURCE,
                target=TARGET,
                target_partitions=cell.partitions,
                group=GROUP,
                transactional_id=f"copier-{place}",
                size=size,
                partitions=None
                if cell.names_member
                else tuple(range(place, cell.partitions, places)),
                seed="",
                transaction_timeout_ms=TRANSACTION_MS,
                session_timeout_ms=SESSION_MS,
            )
            for place in range(places)
        ]
        self._processes: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}

    def start(self) -> None:
        """Start all that do not run."""
        for place, options in enumerate(self._options):
            if place in self._processes:
                continue
            self.lives += 1
            said = self._folder / f"copier-{self.lives}.out"
            fields = {**asdict(options), "seed": f"{self._seed}-{self.lives}"}
            command = [sys.executable, "-m", "tests.proofs._copier_process"]
            with said.open("wb") as out, said.with_suffix(".err").open("wb") as err:
                process = subprocess.Popen(
                    [*command, Options(**fields).to_json()],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
            self._processes[place] = (process, said)

    def keep(self) -> None:
        """Take note of those that ended by themselves, and fill their places.

        One whose client hangs is started again, as an operator would do it.
        """
        for place, (process, said) in list(self._processes.items()):
            if process.poll() is not None:
                self._note(place)
                if process.returncode == HANGS:
                    continue
                tail = said.with_suffix(".err").read_text(errors="replace").splitlines()[-3:]
                self.failures.append(f"copier ended with {process.returncode}: {' / '.join(tail)}")
        self.start()

    def bounce(self, how: str, chosen: random.Random) -> None:
        """End one or all of them, and start them again."""
        places = list(self._processes)
        self.end(how, chosen.sample(places, chosen.randint(1, len(places))))
        self.start()

    def end(self, how: str, places: Sequence[int] | None = None) -> None:
        """Kill them or ask them to go, and wait."""
        chosen = list(self._processes) if places is None else places
        number = signal.SIGKILL if how == "hard" else signal.SIGTERM
        for place in chosen:
            process, _ = self._processes[place]
            if process.poll() is None:
                os.kill(process.pid, number)
        for place in chosen:
            process, _ = self._processes[place]
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self.failures.append(f"a copier did not end within {STOP_S:.0f} s of SIGTERM")
            self._note(place)

    def _note(self, place: int) -> None:
        _, said = self._processes.pop(place)
        self.ended.update(said.read_text(encoding="ascii").split())


def run(cell: Cell, folder: Path, *, seed: int, records: int, size: int) -> Result:
    """Copy so many records through this cell's bounces; returns what is wrong with the output."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    began = time.monotonic()
    result = Result(cell=cell, seed=seed, records=records)
    with BrokerProcess(folder / "data", settings=CONFIG) as broker:
        with Client(broker.address) as admin:
            for topic in (SOURCE, TARGET):
                admin.create_topic(topic, cell.partitions)
        _fill(broker.address, cell.partitions, records)
        crew = Crew(cell, broker.address, seed, size, folder)
        reader = Reader(broker.address, cell.partitions)
        try:
            crew.start()
            _bounce(cell, broker, crew, reader, result)
            _wait(crew, reader, records)
        except AssertionError as error:
            result.problems.append(f"stuck: {str(error)[:200]}")
        finally:
            crew.end("clean")
            reader.close()
        _check(cell, broker.address, reader, result)
    result.problems += [*reader.errors, *crew.failures]
    result.lives = crew.lives
    result.committed, result.aborted = crew.ended["c"], crew.ended["a"]
    result.seconds = time.monotonic() - began
    return result


def _fill(address: str, partitions: int, records: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 20})
    for number in range(records):
        producer.produce(SOURCE, b"%d" % number, partition=number % partitions)
    assert producer.flush(30) == 0


def _bounce(cell: Cell, broker: BrokerProcess, crew: Crew, reader: Reader, result: Result) -> None:
    """Bounces spread over the work, each at a moment of its own within a transaction."""
    chosen = random.Random(result.seed)
    for number in range(BOUNCES):
        _wait(crew, reader, result.records * (number + 1) // (BOUNCES + 2))
        time.sleep(chosen.uniform(0, 0.1))
        if cell.target == "clients":
            crew.bounce(cell.how, chosen)
        else:
            broker.restart(kill=cell.how == "hard")
        result.bounces += 1


def _wait(crew: Crew, reader: Reader, records: int) -> None:
    """Until the reader has seen so many."""

    def seen() -> bool:
        crew.keep()
        return reader.count >= records or bool(reader.errors)

    wait_until(seen, deadline_s=DEADLINE_S, what=f"{records} records are visible")


def _check(cell: Cell, address: str, reader: Reader, result: Result) -> None:
    """Compare both readers' records with the input, and look for what is left open."""
    found = read_all(address, TARGET, cell.partitions)
    problems = check_copies(found, cell.partitions, result.records)
    problems += [
        f"read meanwhile: {each}"
        for each in check_copies(reader.found, cell.partitions, result.records)
    ]
    problems += check_ends(address, TARGET, cell.partitions)
    problems += check_ends(address, SOURCE, cell.partitions)
    places = [TopicPartition(SOURCE, p) for p in range(cell.partitions)]
    with Client(address) as admin:
        ends = admin.offsets(places, "latest", "replicated")
        committed = admin.committed_offsets(GROUP)
        if committed != ends:
            problems.append(f"the group has committed {committed}, the input ends at {ends}")
        open_ones = [each for each in admin.list_transactions() if each.state in OPEN_STATES]
        problems += [f"left open: {each}" for each in open_ones]
    result.problems += problems


OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


def check_copies(
    found: Mapping[int, Sequence[tuple[int, bytes]]], partitions: int, records: int
) -> list[str]:
    """What is wrong with an output, given that the input holds the numbers below ``records``."""
    seen = Counter(int(value) for each in found.values() for _, value in each)
    problems = []
    if missing := [number for number in range(records) if number not in seen]:
        problems.append(f"{len(missing)} records are lost, the first is {missing[0]}")
    if doubled := [number for number, times in seen.items() if times > 1]:
        problems.append(f"{len(doubled)} records are doubled, one is {min(doubled)}")
    if strange := [number for number in seen if not 0 <= number < records]:
        problems.append(f"{len(strange)} records were never in the input: {strange[:3]}")
    for partition, each in found.items():
        for source in range(partitions):
            numbers = [n for n in (int(value) for _, value in each) if n % partitions == source]
            wrong = sum(1 for earlier, later in pairwise(numbers) if later < earlier)
            if wrong:
                problems.append(
                    f"partition {partition} has those of input partition {source} out of order "
                    f"in {wrong} places"
                )
    return problems


def main() -> int:
    """Run one cell in a process of its own: the cell as JSON in, the result as JSON out."""
    wanted = json.loads(sys.argv[1])
    result = run(
        Cell(**wanted["cell"]),
        Path(wanted["folder"]),
        seed=wanted["seed"],
        records=wanted["records"],
        size=wanted["size"],
    )
    print(json.dumps(result.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
