"""The producer of the asyncio client once it is closed, and where a caller gives a call up."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

import fencelog.aio
from fencelog.client import sender
from fencelog.client.asynchronous import Producer
from fencelog.client.partition_sender import PartitionSender
from fencelog.client.records_buffer import RECORD_OVERHEAD
from fencelog.errors import FencelogError, RequestError
from fencelog.rpc.connection import Connection
from fencelog.testing import LocalBroker
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.batch import read_header
from fencelog.wire.messages.end_txn import EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdResponse
from fencelog.wire.records import read_records
from tests.unit.client.fake_broker import Answer, FakeBroker

DEADLINE_S = 10
REQUESTS_MAX = 30
"""More than any of these sends."""
Call = Callable[[Producer], Awaitable[object]]
CALLS: dict[str, Call] = {
    "send": lambda producer: producer.send("t", b"v"),
    "flush": lambda producer: producer.flush(),
    "begin": lambda producer: producer.begin(),
    "commit": lambda producer: producer.commit(),
}


class Held:
    """The next answer to a kind of request: it comes once it is let go, or the test is over."""

    def __init__(self, broker: FakeBroker, api_key: ApiKey, answer: Answer = None) -> None:
        """``answer`` None breaks the connection."""
        self._asked, self._over = threading.Event(), threading.Event()
        self._answer = answer
        broker.script[api_key].append(self._wait)

    async def asked(self) -> None:
        """Wait until the request is there."""
        assert await asyncio.to_thread(self._asked.wait, DEADLINE_S)

    def let_go(self) -> None:
        """Let the answer go."""
        self._over.set()

    def _wait(self, version: int, body: memoryview) -> Answer:
        self._asked.set()
        self._over.wait(DEADLINE_S)
        return self._answer


@asynccontextmanager
async def transaction(broker: FakeBroker) -> AsyncIterator[Producer]:
    """A producer in epoch 1, in a transaction that has one acknowledged record."""
    fresh(broker, 1)
    async with await fencelog.aio.connect(broker.address) as log:
        producer = await log.producer(transactional_id="x")
        await producer.begin()
        await producer.send("t", b"first")
        await producer.flush()
        yield producer
        await producer.close()


def fresh(broker: FakeBroker, epoch: int) -> None:
    broker.next(
        ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=5, producer_epoch=epoch)
    )


def ended(broker: FakeBroker, epoch: int) -> None:
    broker.next(ApiKey.END_TXN, EndTxnResponse(producer_id=5, producer_epoch=epoch))


def written(broker: FakeBroker) -> list[tuple[int, int]]:
    """Epoch and first sequence of each batch."""
    return [
        (header.producer_epoch, header.base_sequence)
        for request in broker.produced
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None and (header := read_header(records))
    ]


def values(broker: FakeBroker) -> list[bytes | None]:
    """Of all records that were sent."""
    return [
        record.value
        for request in broker.produced
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None
        for record in read_records(records)
    ]


async def give_up(call: Awaitable[object], once: Awaitable[object]) -> None:
    """Cancel a call as soon as something has happened."""
    task = asyncio.ensure_future(call)
    await once
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def only_an_abort_is_accepted(producer: Producer) -> None:
    for call in CALLS.values():
        with pytest.raises(FencelogError, match="call abort"):
            await call(producer)


@pytest.mark.parametrize("call", [*CALLS.values(), Producer.abort], ids=[*CALLS, "abort"])
def test_a_closed_producer_says_so_and_writes_nothing(call: Call) -> None:  # E4
    async def main(broker: FakeBroker) -> None:
        async with transaction(broker) as producer:
            await producer.close()
            await producer.close()
            with pytest.raises(FencelogError, match="this writer is closed"):
                await call(producer)

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        assert written(broker) == [(1, 0)]


def test_a_producer_that_was_closed_inside_its_block_leaves_it_without_an_error() -> None:
    async def main(broker: FakeBroker) -> None:
        async with transaction(broker) as producer, producer:
            await producer.close()

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        assert ApiKey.END_TXN not in broker.asked


def test_after_a_commit_that_was_cancelled_only_an_abort_is_accepted() -> None:  # E4, E14
    async def main(broker: FakeBroker) -> None:
        async with transaction(broker) as producer:
            end = Held(broker, ApiKey.END_TXN)
            await give_up(producer.commit(), end.asked())
            await only_an_abort_is_accepted(producer)
            end.let_go()
            fresh(broker, 2)
            await producer.abort()
            await producer.begin()
            await producer.send("t", b"second")
            ended(broker, 3)
            await producer.commit()

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        assert written(broker) == [(1, 0), (2, 0)]


def test_an_end_that_was_cancelled_before_it_was_sent_counts_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # E4
    stopping = asyncio.Event()

    async def never(_: PartitionSender) -> None:
        stopping.set()
        await asyncio.Event().wait()

    async def main(broker: FakeBroker) -> None:
        async with transaction(broker) as producer:
            with monkeypatch.context() as patched:
                patched.setattr(PartitionSender, "ended", never)
                await give_up(producer.commit(), stopping.wait())
            await only_an_abort_is_accepted(producer)
            fresh(broker, 2)
            await producer.abort()
            await producer.begin()
            await producer.send("t", b"second")
            await producer.flush()

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        assert ApiKey.END_TXN not in broker.asked
        assert written(broker) == [(1, 0), (2, 0)]


def test_an_abort_that_was_cancelled_is_asked_for_again() -> None:  # E7, E14
    async def main(broker: FakeBroker) -> None:
        async with transaction(broker) as producer:
            end = Held(broker, ApiKey.END_TXN)
            await give_up(producer.abort(), end.asked())
            epoch = Held(broker, ApiKey.INIT_PRODUCER_ID)
            end.let_go()
            await give_up(producer.abort(), epoch.asked())
            await only_an_abort_is_accepted(producer)
            epoch.let_go()
            fresh(broker, 3)
            await producer.abort()
            await producer.begin()
            await producer.send("t", b"second")
            await producer.flush()

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        assert written(broker) == [(1, 0), (3, 0)]


def test_a_commit_that_was_cancelled_while_it_flushed_can_be_asked_for_again() -> None:  # E14
    async def main(broker: FakeBroker) -> None:
        async with transaction(broker) as producer:
            write = Held(broker, ApiKey.PRODUCE)
            await producer.send("t", b"second")
            await give_up(producer.commit(), write.asked())
            await producer.send("t", b"third")
            write.let_go()
            ended(broker, 2)
            await producer.commit()

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        # What was in flight is not in the list: its connection broke without an answer.
        assert written(broker) == [(1, 0), (1, 1), (1, 2)]
        assert broker.asked.count(ApiKey.END_TXN) == 1


def test_nothing_is_written_while_a_transaction_is_being_ended() -> None:  # E4
    async def main(broker: FakeBroker) -> None:
        async with transaction(broker) as producer:
            end = Held(broker, ApiKey.END_TXN, EndTxnResponse(producer_id=5, producer_epoch=2))
            committing = asyncio.create_task(producer.commit())
            await end.asked()
            for name in ("send", "flush", "begin"):
                with pytest.raises(FencelogError, match="wait until that has returned"):
                    await CALLS[name](producer)
            aborting = asyncio.create_task(producer.abort())
            await asyncio.sleep(0)
            end.let_go()
            await committing
            with pytest.raises(FencelogError, match="no transaction is open"):
                await aborting
            await producer.begin()

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        assert written(broker) == [(1, 0)]


@pytest.mark.parametrize("end", [Producer.abort, Producer.close], ids=["abort", "close"])
def test_a_flush_ends_with_an_error_where_another_task_drops_what_it_waits_for(end: Call) -> None:
    async def main(broker: FakeBroker) -> None:
        async with transaction(broker) as producer:
            write = Held(broker, ApiKey.PRODUCE)
            await producer.send("t", b"second")
            flushing = asyncio.create_task(producer.flush())
            await write.asked()
            ended(broker, 2)
            dropping = asyncio.ensure_future(end(producer))
            with pytest.raises(FencelogError, match="records were dropped"):
                await asyncio.wait_for(flushing, DEADLINE_S)
            write.let_go()
            await dropping

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_an_unanswered_commit_says_to_what_it_comes_and_what_to_do() -> None:  # E14
    async def main(broker: FakeBroker) -> None:
        fresh(broker, 1)
        broker.next(ApiKey.END_TXN, *[None] * 30)
        async with await fencelog.aio.connect(broker.address, request_timeout_s=0.5) as log:
            producer = await log.producer(transactional_id="x")
            await producer.begin()
            await producer.send("t", b"first")
            with pytest.raises(RequestError, match="NETWORK_EXCEPTION"):
                await producer.commit()
            await only_an_abort_is_accepted(producer)
            await producer.close()

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_a_send_that_is_cancelled_while_it_waits_for_room_drops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # E13
    monkeypatch.setattr(sender, "WAITING_BYTES_MAX", 0)

    async def main(broker: FakeBroker) -> list[bytes]:
        fresh(broker, 1)
        sent: list[bytes] = []
        async with (
            await fencelog.aio.connect(broker.address) as log,
            await log.producer(batch_bytes=3 * RECORD_OVERHEAD) as producer,
        ):
            write = Held(broker, ApiKey.PRODUCE)
            for number in range(10):
                value = b"%d" % number
                sending = asyncio.ensure_future(producer.send("t", value))
                await asyncio.wait([sending], timeout=0.2)
                if not sending.done():
                    break
                sent.append(value)
            await give_up(sending, write.asked())
            write.let_go()
        return sent

    with FakeBroker() as broker:
        sent = asyncio.run(main(broker))
        assert len(sent) < 10
        assert values(broker) == sent


@pytest.mark.slow
@pytest.mark.parametrize("end", [Producer.commit, Producer.abort], ids=["commit", "abort"])
def test_an_end_that_is_cancelled_at_any_request_leaves_all_or_nothing(
    fencelog_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, end: Call
) -> None:  # E4, E10, E14
    start = Connection.start
    victim: asyncio.Task[object] | None = None
    left = 0

    def counted(self: Connection, *args: object) -> object:
        nonlocal left
        left -= 1
        if left == 0 and victim is not None:
            victim.cancel()
        return start(self, *args)  # type: ignore[arg-type]

    async def main() -> None:
        nonlocal victim, left
        monkeypatch.setattr(Connection, "start", counted)
        async with await fencelog.aio.connect(fencelog_broker.bootstrap) as log:
            for number in range(1, REQUESTS_MAX):
                topic = f"t{number}"
                await log.create_topic(topic)
                producer = await log.producer(transactional_id="x")
                await producer.begin()
                await producer.send(topic, b"first")
                await producer.flush()
                await producer.send(topic, b"second")
                victim, left = asyncio.create_task(end(producer)), number  # type: ignore[arg-type]
                await asyncio.wait([victim])
                was_cancelled, victim = victim.cancelled(), None
                if was_cancelled:
                    await producer.abort()
                await producer.begin()
                await producer.send(topic, b"third")
                await producer.commit()
                await producer.close()
                place = TopicPartition(topic, 0)
                ends = await log.offsets([place], "latest", "replicated")  # markers follow
                found = [each.value async for each in log.fetch(place, 0, ends[place])]
                assert found in ([b"third"], [b"first", b"second", b"third"]), number
                if not was_cancelled:
                    break
        assert 1 < number < REQUESTS_MAX - 1, number

    asyncio.run(main())
