"""The producer: a stock confluent-kafka client that loads the flights in transactions.

Every sixth transaction is sent twice: first with marked rows and aborted, then committed. What a
fault makes fail (the broker is killed) is retried as a user would.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fencelog_demo.data import flights
from fencelog_demo.events import write_event
from fencelog_demo.settings import FLIGHTS, PARTITIONS

TRANSACTIONS = 60
ABORT_EACH = 6
WAIT_S = 30.0
TRIES_MAX = 30

Row = tuple[bytes, bytes]
"""Key and value, as they are to be committed."""

COMMIT, ABORT = b'"outcome": "commit"', b'"outcome": "abort"'
"""The mark in a value: how its transaction will end."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to load, where, and how fast."""

    bootstrap_server: str
    folder: Path
    every: int
    seconds: float


def rows(every: int) -> list[Row]:
    """The share's flights in the order of ``time_hour``, keyed by carrier."""
    table = flights(every).drop_columns(["time_hour"])
    result = []
    for flight in table.to_pylist():
        value = json.dumps({**flight, "outcome": "commit"}).encode()
        result.append((flight["carrier"].encode(), value))
    return result


def create_topics(bootstrap_server: str) -> None:
    """Create the demo's topics; fails if one exists, because nothing of an earlier run is read."""
    admin = AdminClient({"bootstrap.servers": bootstrap_server})
    wanted = [
        NewTopic(name, num_partitions=count, replication_factor=-1)
        for name, count in PARTITIONS.items()
    ]
    for created in admin.create_topics(wanted, request_timeout=WAIT_S).values():
        created.result(timeout=WAIT_S)


def connect(bootstrap_server: str) -> Producer:
    """A transactional producer; an older one of the same name is fenced."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_server,
            "transactional.id": "flights-loader",
            "transaction.timeout.ms": 60_000,
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.num.messages": 20_000,
            "reconnect.backoff.max.ms": 500,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


class Loader:
    """Sends transactions and counts; a broken producer is replaced by a new one."""

    def __init__(self, settings: Settings) -> None:
        """Connect."""
        self._settings = settings
        self._producer = connect(settings.bootstrap_server)
        self.aborted_rows = 0
        self.retries = 0

    def load(self, chunk: Sequence[Row]) -> None:
        """Commit these rows in one transaction, however often it takes."""
        for _ in range(TRIES_MAX):
            try:
                self._send(chunk)
                self._persist(self._producer.commit_transaction)
            except KafkaException as problem:
                self._recover(problem)
            else:
                return
        raise TimeoutError(f"a transaction did not commit in {TRIES_MAX} tries")

    def send_and_abort(self, chunk: Sequence[Row]) -> None:
        """Send these rows, marked, in a transaction that is then aborted on purpose."""
        try:
            self._send([(key, value.replace(COMMIT, ABORT)) for key, value in chunk])
            self._producer.flush(WAIT_S)
            self._persist(self._producer.abort_transaction)
            self.aborted_rows += len(chunk)
        except KafkaException as problem:
            self._recover(problem)

    def _send(self, chunk: Sequence[Row]) -> None:
        self._producer.begin_transaction()
        for key, value in chunk:
            while True:
                try:
                    self._producer.produce(FLIGHTS, key=key, value=value)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def _persist(self, end: object) -> None:
        """Repeat a commit or an abort while its error is retriable."""
        assert callable(end)
        deadline = time.monotonic() + 2 * WAIT_S
        while True:
            try:
                end(WAIT_S)
            except KafkaException as problem:
                if not error_of(problem).retriable() or time.monotonic() > deadline:
                    raise
                self.retries += 1
            else:
                return

    def _recover(self, problem: KafkaException) -> None:
        """Abort what failed; if that is impossible, continue with a new producer."""
        self.retries += 1
        write_event(self._settings.folder, "producer-retries", reason=str(problem))
        if error_of(problem).txn_requires_abort():
            try:
                self._persist(self._producer.abort_transaction)
            except KafkaException as worse:
                write_event(self._settings.folder, "producer-replaced", reason=str(worse))
            else:
                return
        self._producer = connect(self._settings.bootstrap_server)


def error_of(problem: KafkaException) -> KafkaError:
    """The client's error inside the exception."""
    error: KafkaError = problem.args[0]
    return error


def chunks(everything: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Cut the rows into the demo's number of transactions."""
    size = max(1, -(-len(everything) // TRANSACTIONS))
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


def run(settings: Settings) -> None:
    """Create the topics and load everything at the given pace; log the progress."""
    create_topics(settings.bootstrap_server)
    write_event(settings.folder, "topics-created", topics=PARTITIONS)
    everything = rows(settings.every)
    loader = Loader(settings)
    begun = time.monotonic()
    sent = 0
    for number, chunk in enumerate(chunks(everything)):
        if number % ABORT_EACH == 1:
            loader.send_and_abort(chunk)
        loader.load(chunk)
        sent += len(chunk)
        facts = {"rows": sent, "aborted": loader.aborted_rows, "retries": loader.retries}
        write_event(settings.folder, "produced", **facts)
        due = begun + settings.seconds * sent / len(everything)
        time.sleep(max(0.0, due - time.monotonic()))
    write_event(settings.folder, "all-produced", rows=sent, aborted=loader.aborted_rows)


def main(arguments: list[str] | None = None) -> int:
    """Load the flights; the exit status says whether all of them are committed."""
    parser = argparse.ArgumentParser(prog="producer", description=__doc__)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    options = parser.parse_args(arguments)
    run(Settings(**vars(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
