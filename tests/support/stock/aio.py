"""aiokafka, driven step by step."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.support.stock.interface import DEADLINE_S, Fenced, Seen, ToSend
from tests.support.stock.kafka_python import seen_by_python


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
                        seen.extend(seen_by_python(message) for message in messages)
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
