"""Stock Kafka clients behind one small interface, so that a claim is written once for all three.

Nothing here knows fencelog: the clients are confluent-kafka (librdkafka), kafka-python and aiokafka
as PyPI has them. A client that is told that it is a zombie raises ``Fenced``.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

DEADLINE_S = 10.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Fenced(Exception):  # noqa: N818 - it names a fact, as the clients' own exceptions do
    """The broker refused this producer because a newer one took its place."""


@dataclass(frozen=True)
class Seen:
    """A record as a consumer saw it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


@dataclass(frozen=True)
class ToSend:
    """A record about to be sent."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0


class TransactionalWriter(Protocol):
    """A transactional producer; it has initialised itself when it is made."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, topic: str, value: bytes) -> None:
        """Send to partition 0 and wait for the acknowledgement. Raises Fenced."""

    def commit(self) -> None:
        """Commit. Raises Fenced."""

    def abort(self) -> None:
        """Abort."""

    def close(self) -> None:
        """Let go without committing; safe on a fenced one."""


class StockClient(Protocol):
    """One client library."""

    def write(
        self,
        address: str,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        """Send all, acks=all, and wait until all are acknowledged."""

    def read(self, address: str, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        """Every record of the topic up to what the isolation shows now as its end."""

    def transactional(self, address: str, transactional_id: str) -> TransactionalWriter:
        """A producer with this id; the one before it is fenced from now on."""


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
        told = cause.args[0]
        zombie = {
            KafkaError._FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.PRODUCER_FENCED,
        }
        if told.code() in zombie or (told.fatal() and "fenced" in told.str().lower()):
            raise Fenced(str(told)) from error
        raise


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
                    seen.extend(_seen_by_python(message) for message in messages)
            return seen
        finally:
            consumer.close()

    def transactional(self, address: str, transactional_id: str) -> "KafkaPythonWriter":
        """Make one and initialise it."""
        return KafkaPythonWriter(address, transactional_id)


def _seen_by_python(message: Any) -> Seen:
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
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, linger_ms=0
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


class Aio:
    """aiokafka, driven step by step."""

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
        from aiokafka import AIOKafkaProducer

        async def send_all() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks="all",
                linger_ms=5,
            )
            async with asyncio.timeout(DEADLINE_S), producer:
                waiting = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                for future in waiting:
                    await future

        asyncio.run(send_all())

    def read(self, address: str, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        """Read until the position is at the end offset of the isolation."""
        return asyncio.run(self._read(address, topic, isolation))

    async def _read(self, address: str, topic: str, isolation: str) -> list[Seen]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(
            bootstrap_servers=address,
            group_id=None,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                metadata = await consumer._client.fetch_all_metadata()
                places = [
                    TopicPartition(topic, number)
                    for number in sorted(metadata.partitions_for_topic(topic) or ())
                ]
                assert places, f"topic {topic} is unknown"
                consumer.assign(places)
                await consumer.seek_to_beginning(*places)
                ends = await consumer.end_offsets(places)
                seen: list[Seen] = []
                while [p for p in places if await consumer.position(p) < ends[p]]:
                    for messages in (await consumer.getmany(timeout_ms=200)).values():
                        seen.extend(_seen_by_python(message) for message in messages)
                return seen
        finally:
            await consumer.stop()

    def transactional(self, address: str, transactional_id: str) -> "AioWriter":
        """Make one and initialise it."""
        return AioWriter(address, transactional_id)


class AioWriter:
    """A transactional aiokafka producer with a loop of its own, which runs during calls only."""

    def __init__(self, address: str, transactional_id: str) -> None:
        """Initialise: fences the one before."""
        self._runner = asyncio.Runner()
        try:
            self._producer = self._run(self._start(address, transactional_id))
        except BaseException:
            self._runner.close()
            raise

    @staticmethod
    async def _start(address: str, transactional_id: str) -> Any:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, linger_ms=0
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def _run(self, work: Any) -> Any:
        from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

        async def bounded() -> Any:
            async with asyncio.timeout(DEADLINE_S):
                return await work

        try:
            return self._runner.run(bounded())
        except (ProducerFenced, InvalidProducerEpoch) as error:
            raise Fenced(repr(error)) from error

    def begin(self) -> None:
        """Begin."""
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes) -> None:
        """Send and wait."""
        self._run(self._producer.send_and_wait(topic, value, partition=0))

    def commit(self) -> None:
        """Commit."""
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        """Abort."""
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        """Stop, whatever state it is in."""
        try:
            self._run(self._producer.stop())
        except Fenced:
            pass
        finally:
            self._runner.close()


CLIENTS: dict[str, StockClient] = {
    "confluent-kafka": Confluent(),
    "kafka-python": KafkaPython(),
    "aiokafka": Aio(),
}
