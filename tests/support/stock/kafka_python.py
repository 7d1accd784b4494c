"""kafka-python."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.stock.interface import DEADLINE_S, Fenced, Seen, ToSend


class KafkaPython:
    """kafka-python."""

    def write(
        self,
        address: str,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        """Send all and wait."""
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=5,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            for future in futures:
                future.get(DEADLINE_S)
        finally:
            producer.close(5)

    def read(self, address: str, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        """Read until the position is at the end offset of the isolation."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=address,
            group_id=None,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            numbers = consumer.partitions_for_topic(topic)
            assert numbers, f"topic {topic} is unknown"
            places = [TopicPartition(topic, number) for number in sorted(numbers)]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            ends = consumer.end_offsets(places)
            seen: list[Seen] = []
            rounds = 0
            while any(consumer.position(place) < ends[place] for place in places):
                rounds += 1
                assert rounds < DEADLINE_S * 5, f"not at {ends} after {DEADLINE_S} s"
                for messages in consumer.poll(timeout_ms=200).values():
                    seen.extend(seen_by_python(message) for message in messages)
            return seen
        finally:
            consumer.close()

    def transactional(self, address: str, transactional_id: str) -> "KafkaPythonWriter":
        """Make one and initialise it."""
        return KafkaPythonWriter(address, transactional_id)


def seen_by_python(message: Any) -> Seen:
    return Seen(
        message.partition,
        message.offset,
        message.key,
        message.value,
        tuple(message.headers or ()),
        message.timestamp,
    )


class KafkaPythonWriter:
    """A transactional kafka-python producer."""

    def __init__(self, address: str, transactional_id: str) -> None:
        """Initialise: fences the one before."""
        self._address = address
        self._id = transactional_id
        self.renew()

    def renew(self) -> None:
        """Begin anew, under the same id.

        Version 3.0.12 remembers offsets that a group refused, and sends them with the next
        transaction: records that nobody has processed would be skipped.
        """
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=self._address, transactional_id=self._id, linger_ms=0
        )
        try:
            with fenced_by_kafka_python():
                self._producer.init_transactions()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Begin."""
        with fenced_by_kafka_python():
            self._producer.begin_transaction()

    def send(self, topic: str, value: bytes) -> None:
        """Send and wait."""
        with fenced_by_kafka_python():
            self._producer.send(topic, value=value, partition=0).get(DEADLINE_S)

    def commit(self) -> None:
        """Commit."""
        with fenced_by_kafka_python():
            self._producer.commit_transaction()

    def abort(self) -> None:
        """Abort."""
        with fenced_by_kafka_python():
            self._producer.abort_transaction()

    def close(self) -> None:
        """Close at once."""
        self._producer.close(0)


@contextmanager
def fenced_by_kafka_python() -> Iterator[None]:
    """kafka-python has an exception class for each error code."""
    from kafka import errors

    zombie = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
    try:
        yield
    except errors.KafkaError as error:
        causes = (error, error.__cause__, *error.args)
        if any(isinstance(cause, zombie) for cause in causes):
            raise Fenced(repr(error)) from error
        raise
