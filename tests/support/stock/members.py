"""Members of groups: the three stock clients' subscribing consumers behind one small interface.

A member lives by ``poll``; who is not polled does not take part in rebalances. ``work`` is what an
exactly-once worker does with what it read: output and offsets in one transaction.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from tests.support.stock.aio import AioWriter
from tests.support.stock.confluent import ConfluentWriter, fenced_by_confluent
from tests.support.stock.interface import DEADLINE_S, Fenced, Seen
from tests.support.stock.kafka_python import (
    KafkaPythonWriter,
    fenced_by_kafka_python,
    seen_by_python,
)

SESSION_MS = 6_000
HEARTBEAT_MS = 200


class Member(Protocol):
    """A consumer that subscribes."""

    def poll(self) -> list[Seen]:
        """What came within a moment."""

    def assignment(self) -> set[int]:
        """The partitions of its topic that it reads now."""

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit these offsets by partition, and wait."""

    def committed(self, partition: int) -> int | None:
        """What the group has committed there."""

    def seek(self, partition: int, offset: int) -> None:
        """Read on from there."""

    def metadata(self) -> Any:
        """Who it is, for a transaction: its group, and its generation where it is known."""

    def close(self) -> None:
        """Leave the group."""


def polled_until(condition: Callable[[], bool], *members: Any) -> list[Any]:
    """Poll these members in turn until the condition holds; what came meanwhile."""
    came: list[Any] = []
    ends_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < ends_at, [each.assignment() for each in members]
        for each in members:
            came += each.poll()
    return came


class ConfluentMember:
    """librdkafka; ``settings`` are its own, for what only it has."""

    def __init__(
        self, address: str, group: str, topic: str, *, instance: str | None = None, **settings: Any
    ) -> None:
        """Subscribe; it joins when it is polled."""
        from confluent_kafka import Consumer

        self._topic = topic
        named = {} if instance is None else {"group.instance.id": instance}
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "log_level": 2,
                **named,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.revoked: list[int] = []
        self.consumer.subscribe([topic], on_revoke=self._on_revoke)

    def _on_revoke(self, _consumer: Any, places: Iterable[Any]) -> None:
        self.revoked += [place.partition for place in places]

    def poll(self) -> list[Seen]:
        messages = self.consumer.consume(num_messages=20, timeout=0.1)
        return [
            Seen(m.partition(), m.offset(), m.key(), m.value(), (), m.timestamp()[1])
            for m in messages
            if m.error() is None
        ]

    def assignment(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    def commit(self, offsets: Mapping[int, int]) -> None:
        with fenced_by_confluent():
            self.consumer.commit(offsets=self.places(offsets), asynchronous=False)

    def places(self, offsets: Mapping[int, int]) -> list[Any]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(self._topic, number, to) for number, to in offsets.items()]

    def committed(self, partition: int) -> int | None:
        (found,) = self.consumer.committed(self.places({partition: 0}), DEADLINE_S)
        return found.offset if found.offset >= 0 else None

    def seek(self, partition: int, offset: int) -> None:
        (place,) = self.places({partition: offset})
        self.consumer.seek(place)

    def metadata(self) -> Any:
        return self.consumer.consumer_group_metadata()

    def close(self) -> None:
        self.consumer.close()


class KafkaPythonMember:
    """kafka-python, with a thread of its own: a rebalance must fit into one call of its ``poll``.

    Version 3.0.12 sends no heartbeats any more when a join goes on after the poll that began it, as
    it would where members in one thread wait for each other.
    """

    POLL_MS = 2_000

    def __init__(
        self, address: str, group: str, topic: str, *, instance: str | None = None
    ) -> None:
        """Subscribe; it joins when it is polled."""
        from kafka import KafkaConsumer

        self._topic = topic
        self._thread = ThreadPoolExecutor(1)
        self._polling: Future[Any] | None = None
        self._closed = False
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )

    def poll(self) -> list[Seen]:
        if self._polling is None:
            self._polling = self._thread.submit(self.consumer.poll, self.POLL_MS, 20)
        try:
            found = self._polling.result(0.1)
        except TimeoutError:
            return []
        self._polling = None
        return [seen_by_python(message) for some in found.values() for message in some]

    def _do(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return self._thread.submit(call, *arguments).result(DEADLINE_S)

    def assignment(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    def places(self, offsets: Mapping[int, int]) -> dict[Any, Any]:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        return {
            TopicPartition(self._topic, number): OffsetAndMetadata(to, "", -1)
            for number, to in offsets.items()
        }

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._do(self.consumer.commit, self.places(offsets))

    def committed(self, partition: int) -> int | None:
        (place,) = self.places({partition: 0})
        found: int | None = self._do(self.consumer.committed, place)
        return found

    def seek(self, partition: int, offset: int) -> None:
        (place,) = self.places({partition: 0})
        if self._polling is not None:
            self._polling.result(DEADLINE_S).pop(place, None)  # of before the seek
        self._do(self.consumer.seek, place, offset)

    def metadata(self) -> Any:
        return self.consumer.group_metadata()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._do(self.consumer.close)
            self._thread.shutdown()


class AioMember:
    """aiokafka, on a loop of its own that runs all the time, as its heartbeats need it."""

    def __init__(
        self,
        address: str,
        group: str,
        topic: str,
        *,
        instance: str | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        """Join."""
        self._topic = topic
        self._group = group
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.consumer = self.run(self._start(address, instance, session_ms))

    async def _start(self, address: str, instance: str | None, session_ms: int) -> Any:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=address,
            group_id=self._group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        await consumer.start()
        return consumer

    def run(self, work: Any) -> Any:
        """Do this on its loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def poll(self) -> list[Seen]:
        found = self.run(self.consumer.getmany(timeout_ms=100, max_records=20))
        return [seen_by_python(message) for some in found.values() for message in some]

    def assignment(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    def _places(self, offsets: Mapping[int, int]) -> dict[Any, int]:
        from aiokafka import TopicPartition

        return {TopicPartition(self._topic, number): to for number, to in offsets.items()}

    def commit(self, offsets: Mapping[int, int]) -> None:
        self.run(self.consumer.commit(self._places(offsets)))

    def committed(self, partition: int) -> int | None:
        (place,) = self._places({partition: 0})
        found: int | None = self.run(self.consumer.committed(place))
        return found

    def seek(self, partition: int, offset: int) -> None:
        (place,) = self._places({partition: 0})
        self.consumer.seek(place, offset)

    def metadata(self) -> Any:
        return self._group

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.run(self.consumer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


MEMBERS: dict[str, Callable[..., Any]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AioMember,
}


class Worker:
    """A member and its producer: reads, writes what it read to ``output``, commits both at once.

    confluent-kafka and kafka-python name their member in the transaction (TxnOffsetCommit 3), so
    one transactional id each will do. A refused transaction is not a worker's end: it aborts, and
    reads again from what is committed.
    """

    def __init__(self, member: Any, writer: Any, output: str) -> None:
        """Join them."""
        self.member = member
        self.writer = writer
        self.output = output

    def turn(self) -> int:
        """One poll and its transaction; returns how many records were committed."""
        seen = self.member.poll()
        if not seen:
            return 0
        return self.commit(seen, self.member.metadata())

    def commit(self, seen: Sequence[Seen], metadata: Any) -> int:
        """Write what was seen and commit it in the name of this member."""
        ends = {each.partition: each.offset + 1 for each in seen}
        self.writer.begin()
        try:
            for each in seen:
                assert each.value is not None
                self.writer.send(self.output, each.value)
            self.take_offsets(ends, metadata)
            self.writer.commit()
        except Refused:
            self.writer.abort()
            if isinstance(self.writer, KafkaPythonWriter):
                self.writer.close()
                self.writer.renew()
            self._rewind(seen)
            return 0
        return len(seen)

    def _rewind(self, seen: Sequence[Seen]) -> None:
        for partition in {each.partition for each in seen} & self.member.assignment():
            committed = self.member.committed(partition)
            self.member.seek(partition, committed or 0)

    def take_offsets(self, ends: Mapping[int, int], metadata: Any) -> None:
        """sendOffsetsToTransaction; Refused where the group fences this member."""
        producer, places = self.writer._producer, self.member.places(ends)
        if isinstance(self.writer, ConfluentWriter):
            from confluent_kafka import KafkaException

            try:
                producer.send_offsets_to_transaction(places, metadata, DEADLINE_S)
            except KafkaException as error:
                failure = error.args[0]
                if not failure.txn_requires_abort():
                    raise
                raise Refused(failure.name()) from error
        else:
            from kafka import errors

            refusals = (
                errors.IllegalGenerationError,
                errors.UnknownMemberIdError,
                errors.FencedInstanceIdError,
                errors.CommitFailedError,
            )
            try:
                with fenced_by_kafka_python():
                    producer.send_offsets_to_transaction(places, metadata)
            except (Fenced, *refusals) as error:
                raise Refused(type(error).__name__) from error

    def close(self) -> None:
        """Leave, and drop the producer."""
        with contextlib.suppress(Fenced):
            self.writer.close()
        self.member.close()


class AioWorker:
    """A worker whose client cannot name its member in a transaction (TxnOffsetCommit 0).

    One transactional id for each input partition fences the owner before: whoever is given a
    partition initialises its id, and reads on from what is committed after that. A rebalance in the
    middle of a transaction sets its position back to before it, with no other owner in between:
    what it has committed itself it remembers and skips.
    """

    def __init__(
        self, address: str, group: str, topic: str, output: str, *, session_ms: int = SESSION_MS
    ) -> None:
        """Join."""
        self._address = address
        self._group = group
        self._output = output
        self.member = AioMember(address, group, topic, session_ms=session_ms)
        self._writers: dict[int, AioWriter] = {}
        self._committed: dict[int, int] = {}

    def turn(self) -> int:
        """One poll and a transaction for each partition; how many records were committed."""
        seen = self.member.poll()
        mine = self.member.assignment()
        for lost in self._writers.keys() - mine:
            self._writers.pop(lost).close()
        for new in mine - self._writers.keys():
            self._writers[new] = AioWriter(self._address, f"{self._group}-{new}")
            self._committed[new] = self.member.committed(new) or 0
            self.member.seek(new, self._committed[new])
            seen = [each for each in seen if each.partition != new]
        seen = [each for each in seen if each.offset >= self._committed.get(each.partition, 0)]
        done = 0
        for partition in {each.partition for each in seen} & mine:
            done += self._copy([each for each in seen if each.partition == partition])
        return done

    def _copy(self, seen: Sequence[Seen]) -> int:
        writer = self._writers[seen[0].partition]
        writer.begin()
        for each in seen:
            assert each.value is not None
            writer.send(self._output, each.value)
        ends = {seen[0].partition: seen[-1].offset + 1}
        places = self.member._places(ends)
        writer._run(writer._producer.send_offsets_to_transaction(places, self._group))
        writer.commit()
        self._committed |= ends
        return len(seen)

    def close(self) -> None:
        """Leave, and drop the producers."""
        for writer in self._writers.values():
            writer.close()
        self.member.close()


class Refused(Exception):  # noqa: N818 - it is what happened to the worker
    """The group does not take this member's offsets: the transaction must be aborted."""


WRITERS: dict[str, Callable[[str, str], Any]] = {
    "confluent-kafka": ConfluentWriter,
    "kafka-python": KafkaPythonWriter,
}
