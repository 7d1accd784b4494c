"""The loader of topics: a stock confluent-kafka client that commits the flights in transactions."""

import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fencelog_demo.events import write_event
from fencelog_demo.settings import FLIGHTS, PARTITIONS

WAIT_S = 30.0
TRIES_MAX = 30

Row = tuple[bytes, bytes]
"""Key and value, as they are to be committed."""

COMMIT, ABORT = b'"outcome": "commit"', b'"outcome": "abort"'
"""The mark in a value: how its transaction will end."""


def to_abort(chunk: Sequence[Row]) -> list[Row]:
    """These rows with the mark of a transaction that is going to be aborted."""
    return [(key, value.replace(COMMIT, ABORT)) for key, value in chunk]


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

    def __init__(self, bootstrap_server: str, folder: Path) -> None:
        """Create the topics and connect; ``folder`` has the event log."""
        create_topics(bootstrap_server)
        self._server, self._folder = bootstrap_server, folder
        self._producer = connect(bootstrap_server)
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
            self._send(to_abort(chunk))
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
        write_event(self._folder, "producer-retries", reason=str(problem))
        if error_of(problem).txn_requires_abort():
            try:
                self._persist(self._producer.abort_transaction)
            except KafkaException as worse:
                write_event(self._folder, "producer-replaced", reason=str(worse))
            else:
                return
        self._producer = connect(self._server)


def error_of(problem: KafkaException) -> KafkaError:
    """The client's error inside the exception."""
    error: KafkaError = problem.args[0]
    return error
