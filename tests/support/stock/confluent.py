"""confluent-kafka (librdkafka)."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.stock.interface import DEADLINE_S, Fenced, Seen, ToSend


class Confluent:
    """confluent-kafka: librdkafka."""

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
        from confluent_kafka import Producer

        failures: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": address,
                "log_level": 2,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 5,
            }
        )
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=lambda error, _m: failures.append(error) if error else None,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
            )
        assert producer.flush(DEADLINE_S) == 0, "not all were acknowledged in time"
        assert not failures, failures

    def read(self, address: str, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        """Read each partition until its end is reported."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "log_level": 2,
                "group.id": "reads-by-assignment",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "auto.offset.reset": "error",
            }
        )
        try:
            partitions = set(consumer.list_topics(topic, DEADLINE_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
            seen: list[Seen] = []
            while partitions:
                message = consumer.poll(DEADLINE_S)
                assert message is not None, f"no record and no end within {DEADLINE_S} s"
                error = message.error()
                if error is None:
                    seen.append(_seen_by_confluent(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    partitions.discard(message.partition())
                else:
                    raise AssertionError(error)
            return seen
        finally:
            consumer.close()

    def transactional(self, address: str, transactional_id: str) -> "ConfluentWriter":
        """Make one and initialise it."""
        return ConfluentWriter(address, transactional_id)


def _seen_by_confluent(message: Any) -> Seen:
    return Seen(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
    )


class ConfluentWriter:
    """A transactional librdkafka producer."""

    def __init__(self, address: str, transactional_id: str) -> None:
        """Initialise: fences the one before."""
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "log_level": 2,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 0,
                "error_cb": lambda _error: None,  # each call raises its own; this would twice
            }
        )
        with fenced_by_confluent():
            self._producer.init_transactions(DEADLINE_S)

    def begin(self) -> None:
        """Begin."""
        with fenced_by_confluent():
            self._producer.begin_transaction()

    def send(self, topic: str, value: bytes) -> None:
        """Send and wait for the delivery report."""
        from confluent_kafka import KafkaException

        reports: list[Any] = []
        with fenced_by_confluent():
            self._producer.produce(
                topic, value, partition=0, on_delivery=lambda error, _m: reports.append(error)
            )
            assert self._producer.flush(DEADLINE_S) == 0
            if reports[0] is not None:
                raise KafkaException(reports[0])

    def commit(self) -> None:
        """Commit."""
        with fenced_by_confluent():
            self._producer.commit_transaction(DEADLINE_S)

    def abort(self) -> None:
        """Abort."""
        with fenced_by_confluent():
            self._producer.abort_transaction(DEADLINE_S)

    def close(self) -> None:
        """Drop what is queued."""
        self._producer.purge()
        with contextlib.suppress(Fenced), fenced_by_confluent():
            self._producer.flush(1)


@contextmanager
def fenced_by_confluent() -> Iterator[None]:
    """librdkafka says fenced by several codes, and afterwards by a fatal error."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
    except (KafkaException, SystemError) as error:
        # The binding leaves a fatal error set while it calls a delivery report: a SystemError.
        cause = error if isinstance(error, KafkaException) else error.__cause__
        if not isinstance(cause, KafkaException):
            raise
        failure = cause.args[0]
        zombie = {
            KafkaError._FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.PRODUCER_FENCED,
        }
        if failure.code() in zombie or (failure.fatal() and "fenced" in failure.str().lower()):
            raise Fenced(str(failure)) from error
        raise
