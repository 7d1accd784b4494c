"""One copier: reads committed records, writes them on, output and offsets in one transaction.

``python -m tests.proofs._copier_process OPTIONS-AS-JSON``. Each transaction takes up to so many
records; some are aborted on purpose and done again. SIGTERM ends it after its transaction; SIGKILL
is the point of it. On stdout it says one letter and a newline per transaction: ``c`` committed,
``a`` aborted.
"""

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

CALL_S = 20.0
HANGS = 75  # the exit status of a copier whose client does not answer any more
POLL_S = 0.1
POLLS_MAX = 3
"""Polls without a record after which a transaction is not filled any further."""
ABORT_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one copier."""

    client: str
    bootstrap: str
    source: str
    target: str
    target_partitions: int
    group: str
    transactional_id: str
    size: int
    """Records in a transaction, at most."""
    partitions: tuple[int, ...] | None
    """Read these and name no member in the transaction; None: subscribe, and name oneself."""
    seed: str
    transaction_timeout_ms: int
    session_timeout_ms: int

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Options":
        """From the command line."""
        fields = json.loads(text)
        partitions = fields.pop("partitions")
        return cls(partitions=None if partitions is None else tuple(partitions), **fields)


class Taken(NamedTuple):
    """A record that was read."""

    partition: int
    offset: int
    value: bytes


class AbortError(Exception):
    """This transaction must be aborted; the next one may do."""


class Copier(Protocol):
    """What a client library is asked to do."""

    def take(self, count: int) -> list[Taken]:
        """Up to so many records, of partitions that are its own when it returns."""

    def begin(self) -> None:
        """Begin a transaction."""

    def write(self, records: Sequence[Taken], offsets: Mapping[int, int]) -> None:
        """Send each record on, and the offsets, in the transaction. Raises AbortError."""

    def flush(self) -> None:
        """Wait until the records are in the log."""

    def commit(self) -> None:
        """Commit. Raises AbortError."""

    def abort(self) -> None:
        """Abort."""

    def rewind(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets again, as far as they are its own."""

    def close(self) -> None:
        """Leave."""


class ConfluentCopier:
    """confluent-kafka."""

    def __init__(self, options: Options) -> None:
        """Subscribe or assign, and fence the copier before."""
        from confluent_kafka import Consumer, Producer, TopicPartition

        self._options = options
        self._place = TopicPartition
        self._mine: list[Taken] = []
        common = {"bootstrap.servers": options.bootstrap, "log_level": 2, "error_cb": _quiet}
        common |= {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
        # Bootstrapped anew, librdkafka 2.16 may wait for ever on a coordinator that it let go
        # (confluentinc/librdkafka#5511).
        common["metadata.recovery.strategy"] = "none"
        self._consumer = Consumer(
            {
                **common,
                "group.id": options.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": options.session_timeout_ms,
                "heartbeat.interval.ms": options.session_timeout_ms // 8,
                "fetch.wait.max.ms": 50,
            }
        )
        self._producer = Producer(
            {
                **common,
                "transactional.id": options.transactional_id,
                "transaction.timeout.ms": options.transaction_timeout_ms,
                "linger.ms": 5,
            }
        )
        self._until_done(self._producer.init_transactions, CALL_S)
        if options.partitions is None:
            self._consumer.subscribe([options.source], on_revoke=self._drop, on_lost=self._drop)
        else:
            self._consumer.assign([TopicPartition(options.source, p) for p in options.partitions])

    def _drop(self, _consumer: Any, places: Iterable[Any]) -> None:
        """What was read of partitions that are given away is another member's now."""
        gone = {place.partition for place in places}
        self._mine = [each for each in self._mine if each.partition not in gone]

    def take(self, count: int) -> list[Taken]:
        self._mine, polls = [], 0
        while len(self._mine) < count and polls < POLLS_MAX:
            message = self._consumer.poll(POLL_S)
            if message is None:
                polls += 1
            elif message.error() is None:
                self._mine.append(Taken(message.partition(), message.offset(), message.value()))
            if polls and self._mine:
                break
        return self._mine

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, records: Sequence[Taken], offsets: Mapping[int, int]) -> None:
        options, producer = self._options, self._producer
        for each in records:
            producer.produce(
                options.target,
                each.value,
                partition=int(each.value) % options.target_partitions,
            )
        producer.poll(0)
        self._until_done(
            producer.send_offsets_to_transaction,
            [self._place(options.source, p, offset) for p, offset in offsets.items()],
            self._consumer.consumer_group_metadata(),
            CALL_S,
        )

    def flush(self) -> None:
        self._producer.flush(CALL_S)

    def commit(self) -> None:
        self._until_done(self._producer.commit_transaction, CALL_S)

    def abort(self) -> None:
        self._until_done(self._producer.abort_transaction, CALL_S)

    def rewind(self, offsets: Mapping[int, int]) -> None:
        mine = {place.partition for place in self._consumer.assignment()}
        for partition, offset in offsets.items():
            if partition in mine:
                self._consumer.seek(self._place(self._options.source, partition, offset))

    def close(self) -> None:
        self._consumer.close()
        self._producer.flush(1)

    @staticmethod
    def _until_done(call: Callable[..., Any], *arguments: Any) -> None:
        """As librdkafka wants it: again where that is allowed, abort where it asks for that."""
        from confluent_kafka import KafkaException

        while True:
            try:
                call(*arguments)
            except KafkaException as error:
                failure = error.args[0]
                if failure.txn_requires_abort():
                    raise AbortError(str(failure)) from error
                if not failure.retriable():
                    raise
            else:
                return


class KafkaPythonCopier:
    """kafka-python."""

    def __init__(self, options: Options) -> None:
        """Subscribe or assign, and fence the copier before."""
        from kafka import KafkaConsumer, TopicPartition
        from kafka.structs import OffsetAndMetadata

        self._options = options
        self._place, self._offset = TopicPartition, OffsetAndMetadata
        common = {"bootstrap_servers": options.bootstrap, "reconnect_backoff_ms": 20}
        common |= {"reconnect_backoff_max_ms": 200, "retry_backoff_ms": 20}
        self._common = common
        self._refused = False
        self._begin_anew()
        self._consumer = KafkaConsumer(
            **common,
            group_id=options.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.session_timeout_ms // 8,
            fetch_max_wait_ms=50,
        )
        if options.partitions is None:
            self._consumer.subscribe([options.source])
        else:
            self._consumer.assign([TopicPartition(options.source, p) for p in options.partitions])

    def _begin_anew(self) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            **self._common,
            transactional_id=self._options.transactional_id,
            transaction_timeout_ms=self._options.transaction_timeout_ms,
            linger_ms=5,
        )
        self._within_limit(self._producer.init_transactions)

    def take(self, count: int) -> list[Taken]:
        # One poll: records of two may lie on both sides of a rebalance.
        for _ in range(POLLS_MAX):
            found = self._consumer.poll(int(1000 * POLL_S), max_records=count)
            if found:
                return [
                    Taken(record.partition, record.offset, record.value)
                    for records in found.values()
                    for record in records
                ]
        return []

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, records: Sequence[Taken], offsets: Mapping[int, int]) -> None:
        options = self._options
        with _aborted_by_kafka_python():
            waiting = [
                self._producer.send(
                    options.target,
                    each.value,
                    partition=int(each.value) % options.target_partitions,
                )
                for each in records
            ]
            places = {
                self._place(options.source, p): self._offset(offset, "", -1)
                for p, offset in offsets.items()
            }
            named = self._consumer.group_metadata() if options.partitions is None else options.group
            # Records first: version 3.0.12 may forget to enlist their partition while it sends
            # offsets, and then waits for ever.
            for each in waiting:
                each.get(CALL_S)
            self._refused = True
            self._within_limit(self._producer.send_offsets_to_transaction, places, named)
            self._refused = False

    def flush(self) -> None:
        self._producer.flush(CALL_S)

    def commit(self) -> None:
        with _aborted_by_kafka_python():
            self._within_limit(self._producer.commit_transaction)

    def abort(self) -> None:
        self._within_limit(self._producer.abort_transaction)
        if self._refused:
            # Version 3.0.12 remembers offsets that were refused, and commits them with the next
            # transaction: records would be skipped.
            self._refused = False
            self._producer.close(1)
            self._begin_anew()

    def rewind(self, offsets: Mapping[int, int]) -> None:
        mine = self._consumer.assignment()
        for partition, offset in offsets.items():
            if (place := self._place(self._options.source, partition)) in mine:
                self._consumer.seek(place, offset)

    def close(self) -> None:
        self._consumer.close()
        self._producer.close(1)

    @staticmethod
    def _within_limit(call: Callable[..., None], *arguments: Any) -> None:
        """Call it; end this process with ``HANGS`` where that does not return within ``CALL_S``.

        Version 3.0.12 forgets a transactional request when it cannot connect to the coordinator,
        and waits for its answer for ever. Nobody knows then what the broker has carried out: the
        next producer of the same id settles it, and its consumer starts at the committed offsets.
        """
        failed: list[Exception] = []

        def run() -> None:
            try:
                call(*arguments)
            except Exception as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(CALL_S)
        if thread.is_alive():
            os.write(2, f"{call.__name__} does not return\n".encode())
            os._exit(HANGS)
        if failed:
            raise failed[0]


@contextmanager
def _aborted_by_kafka_python() -> Iterator[None]:
    """Every refusal ends the transaction; what is fatal shows when the abort fails too."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        raise AbortError(repr(error)) from error


COPIERS: Mapping[str, Callable[[Options], Copier]] = {
    "confluent-kafka": ConfluentCopier,
    "kafka-python": KafkaPythonCopier,
}


def _quiet(_error: Any) -> None:
    """Each call raises its own errors; connections that broke are what the proof is about."""


class _Stop:
    """Whether SIGTERM came, or whoever started this process is gone."""

    def __init__(self) -> None:
        self._came = False
        self._parent = os.getppid()
        signal.signal(signal.SIGTERM, self._come)

    def _come(self, _number: int, _frame: object) -> None:
        self._came = True

    @property
    def asked(self) -> bool:
        return self._came or os.getppid() != self._parent


def copy(copier: Copier, options: Options) -> None:
    """Copy until SIGTERM."""
    stop, chosen = _Stop(), random.Random(options.seed)
    while not stop.asked:
        records = list(copier.take(options.size))
        if not records:
            continue
        starts: dict[int, int] = {}
        for each in records:
            starts.setdefault(each.partition, each.offset)
        ends = {each.partition: each.offset + 1 for each in records}
        copier.begin()
        try:
            copier.write(records, ends)
            is_kept = chosen.random() >= ABORT_SHARE
            if is_kept:
                copier.commit()
            else:
                copier.flush()
        except AbortError:
            is_kept = False
        if not is_kept:
            copier.abort()
            copier.rewind(starts)
        os.write(1, b"c\n" if is_kept else b"a\n")
    copier.close()


def main() -> None:
    """Be the copier that the command line describes."""
    options = Options.from_json(sys.argv[1])
    copy(COPIERS[options.client](options), options)


if __name__ == "__main__":
    main()
