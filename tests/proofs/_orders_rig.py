"""One case of the crash orders: a worker that is killed, another one after it, and the output."""

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace

from fencelog.client.blocking import Client
from fencelog.types import TopicPartition
from tests.proofs._orders_process import (
    AFTER_END,
    BEFORE_END,
    BETWEEN,
    OFFSETS_FIRST,
    OUTPUT_FIRST,
    WORKERS,
    Options,
)

RECORDS, CHUNK, KILLED_CHUNK = 40, 10, 2
LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """Who copies how, and where it is killed."""

    client: str
    is_transaction: bool
    order: str
    killed: str

    @property
    def doubled(self) -> int:
        """How many records must be there twice: without a transaction, what the crash cost."""
        return CHUNK if not self.is_transaction and self.order == OUTPUT_FIRST else 0

    @property
    def lost(self) -> int:
        """How many records must be missing."""
        return CHUNK if not self.is_transaction and self.order == OFFSETS_FIRST else 0

    @property
    def name(self) -> str:
        """In words."""
        how = "in a transaction" if self.is_transaction else "without a transaction"
        return f"{self.client}, {how}, {self.order}, killed {self.killed}"


def _cases() -> list[Case]:
    found = []
    for client in WORKERS:
        found += [
            Case(client=client, is_transaction=False, order=order, killed=BETWEEN)
            for order in (OUTPUT_FIRST, OFFSETS_FIRST)
        ]
        # Our own transaction has no offsets to commit: one order is all.
        orders = (OUTPUT_FIRST,) if client == "fencelog" else (OUTPUT_FIRST, OFFSETS_FIRST)
        found += [
            Case(client=client, is_transaction=True, order=order, killed=killed)
            for order in orders
            for killed in (BETWEEN, BEFORE_END, AFTER_END)
        ]
    return found


CASES = tuple(_cases())


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the output was found to be."""

    case: Case
    doubled: int
    lost: int
    strange: int

    @property
    def is_as_expected(self) -> bool:
        """Whether the crash cost exactly what the order says, or nothing in a transaction."""
        wanted = (self.case.doubled, self.case.lost, 0)
        return (self.doubled, self.lost, self.strange) == wanted


def run(case: Case, address: str, name: str) -> Result:
    """Copy with a kill, on topics of this name, before a broker that runs."""
    source, target = f"{name}-in", f"{name}-out"
    with Client(address) as client:
        for topic in (source, target):
            client.create_topic(topic)
        with client.producer() as producer:
            for number in range(RECORDS):
                producer.send(source, b"%d" % number, partition=0)
        whole = Options(
            client=case.client,
            bootstrap=address,
            source=source,
            target=target,
            name=name,
            is_transaction=case.is_transaction,
            order=case.order,
            chunk=CHUNK,
            records=RECORDS,
        )
        _work(replace(whole, stop_at=KILLED_CHUNK, stop_when=case.killed), case.killed)
        _work(whole, "done")
        place = TopicPartition(target, 0)
        end = client.offsets([place], "latest")[place]
        seen = Counter(int(each.value or b"-1") for each in client.fetch(place, 0, end))
    return Result(
        case=case,
        doubled=sum(times - 1 for times in seen.values()),
        lost=sum(1 for number in range(RECORDS) if number not in seen),
        strange=sum(1 for number in seen if not 0 <= number < RECORDS),
    )


def _work(options: Options, said: str) -> None:
    """Run a worker until it says this, and kill it."""
    command = [sys.executable, "-m", "tests.proofs._orders_process", options.to_json()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline().strip()
        finally:
            process.kill()
        _, errors = process.communicate(timeout=LIMIT_S)
    assert line == said, f"the worker said {line!r} instead of {said!r}: {errors[-2000:]}"
