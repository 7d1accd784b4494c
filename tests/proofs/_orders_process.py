"""A worker that copies records in chunks and says where it is, so that it can be killed there.

``python -m tests.proofs._orders_process OPTIONS-AS-JSON``: reads the input from its group's
position on, and for each chunk writes the output and commits the position, in one of the orders of
``Order``. At the chosen chunk it prints the chosen point and waits to be killed. A worker that
reaches the end of the input says ``done``.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Protocol

from fencelog.client.blocking import Client
from fencelog.client.model import Joined
from fencelog.types import TopicPartition

CALL_S = 30.0
OUTPUT_FIRST, OFFSETS_FIRST = "output, then offsets", "offsets, then output"
BETWEEN, BEFORE_END, AFTER_END = "between the two", "before the commit", "after the commit"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a worker."""

    client: str
    bootstrap: str
    source: str
    target: str
    name: str
    """Of its group, its transactional id, its app."""
    is_transaction: bool
    order: str
    chunk: int
    records: int
    """In the input."""
    stop_at: int = -1
    """Number of the chunk in which it waits to be killed; -1: in none."""
    stop_when: str = ""

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


class Worker(Protocol):
    """What a client library is asked to do, in a transaction or without one."""

    def position(self) -> int:
        """How far its group has come."""

    def read(self, start: int) -> list[bytes]:
        """The chunk that begins there."""

    def begin(self) -> None:
        """Begin a transaction, where there are any."""

    def write(self, values: list[bytes]) -> None:
        """Write, and wait until all is acknowledged."""

    def commit_position(self, position: int) -> None:
        """Commit the position, in the transaction where there is one."""

    def end(self) -> None:
        """Commit the transaction, where there is one."""


class ConfluentWorker:
    """confluent-kafka: the offsets are its group's, the transaction Kafka's."""

    def __init__(self, options: Options) -> None:
        """Begin as a consumer that has this partition, and as the only producer of its name."""
        from confluent_kafka import Consumer, Producer
        from confluent_kafka import TopicPartition as Place

        self._options, self._place = options, Place
        common = {"bootstrap.servers": options.bootstrap, "log_level": 2}
        self._consumer = Consumer(
            {
                **common,
                "group.id": options.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        named = {"transactional.id": options.name} if options.is_transaction else {}
        self._producer = Producer({**common, "linger.ms": 0, "enable.idempotence": True, **named})
        if options.is_transaction:
            self._producer.init_transactions(CALL_S)

    def position(self) -> int:
        (found,) = self._consumer.committed([self._place(self._options.source, 0)], CALL_S)
        return max(int(found.offset), 0)

    def read(self, start: int) -> list[bytes]:
        options = self._options
        self._consumer.assign([self._place(options.source, 0, start)])
        found = []
        for _ in range(min(options.chunk, options.records - start)):
            message = self._consumer.poll(CALL_S)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message.value())
        return found

    def begin(self) -> None:
        if self._options.is_transaction:
            self._producer.begin_transaction()

    def write(self, values: list[bytes]) -> None:
        for value in values:
            self._producer.produce(self._options.target, value, partition=0)
        assert self._producer.flush(CALL_S) == 0

    def commit_position(self, position: int) -> None:
        places = [self._place(self._options.source, 0, position)]
        if self._options.is_transaction:
            metadata = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(places, metadata, CALL_S)
        else:
            self._consumer.commit(offsets=places, asynchronous=False)

    def end(self) -> None:
        if self._options.is_transaction:
            self._producer.commit_transaction(CALL_S)


class OwnWorker:
    """fencelog's client: without a transaction a group's offsets, with one the app's version.

    Version N of the app is chunk N: the output of a chunk and how far the app has come are one
    decision, so there are no offsets to commit, and no order.
    """

    def __init__(self, options: Options) -> None:
        """Connect."""
        self._options = options
        self._client = Client(options.bootstrap)
        self._place = TopicPartition(options.source, 0)
        self._chunk = -1
        self._writer: Any = None if options.is_transaction else self._client.producer()

    def position(self) -> int:
        if not self._options.is_transaction:
            return self._client.committed_offsets(self._options.name).get(self._place, 0)
        last = self._client.describe_app(self._options.name).last_version
        return (last + 1) * self._options.chunk

    def read(self, start: int) -> list[bytes]:
        options = self._options
        self._chunk = start // options.chunk
        found = self._client.fetch(self._place, start)
        return [record.value or b"" for record in islice(found, options.chunk)]

    def begin(self) -> None:
        if self._options.is_transaction:
            joined = self._client.join_transaction(
                self._options.name, "query", "run", self._chunk, takeover=True
            )
            assert isinstance(joined, Joined), joined
            self._writer = self._client.versioned_writer(joined, topic=self._options.target)
            self._producer_ids = [joined.producer_id]

    def write(self, values: list[bytes]) -> None:
        if self._options.is_transaction:
            import pyarrow as pa

            self._writer.write(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}))
            self._writer.flush()
        else:
            for value in values:
                self._writer.send(self._options.target, value, partition=0)
            self._writer.flush()

    def commit_position(self, position: int) -> None:
        if not self._options.is_transaction:
            self._client.commit_offsets(self._options.name, {self._place: position})

    def end(self) -> None:
        if self._options.is_transaction:
            self._client.commit_transaction(
                self._options.name, "query", "run", self._chunk, b"", self._producer_ids
            )
            self._writer.close()


WORKERS: Mapping[str, Callable[[Options], Worker]] = {
    "confluent-kafka": ConfluentWorker,
    "fencelog": OwnWorker,
}


def work(worker: Worker, options: Options) -> None:
    """Copy chunk after chunk to the end of the input."""
    position = worker.position()
    while position < options.records:

        def point(when: str, number: int = position // options.chunk) -> None:
            if number == options.stop_at and when == options.stop_when:
                print(when, flush=True)
                sys.stdin.read()

        values = worker.read(position)
        after = position + len(values)
        steps: list[Callable[[], None]] = [
            lambda values=values: worker.write(values),  # type: ignore[misc]
            lambda after=after: worker.commit_position(after),  # type: ignore[misc]
        ]
        first, second = steps if options.order == OUTPUT_FIRST else reversed(steps)
        worker.begin()
        first()
        point(BETWEEN)
        second()
        point(BEFORE_END)
        worker.end()
        point(AFTER_END)
        position = after
    print("done", flush=True)


if __name__ == "__main__":
    options = Options(**json.loads(sys.argv[1]))
    work(WORKERS[options.client](options), options)
