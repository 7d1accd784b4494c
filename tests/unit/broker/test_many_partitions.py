"""What one client does to thousands of partitions is done in steps, so that nobody waits for it."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from fencelog.broker.network.time_slices import ITEMS_PER_SLICE
from fencelog.broker.partitions.log_flusher import PARTITIONS_PER_SLICE
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode
from fencelog.wire import hot
from tests.support.node import PRODUCE, Peer, World, batch, until
from tests.support.version_2 import PRODUCE_VERSION, Producer2

PARTITIONS = 3 * ITEMS_PER_SLICE


class Iterations:
    """Counts the calls of a method in each iteration of the loop."""

    def __init__(self) -> None:
        self._number = 0
        self.calls: Counter[int] = Counter()

    def called(self) -> None:
        """Count a call in the current iteration."""
        self.calls[self._number] += 1

    async def run(self) -> None:
        """Count iterations until cancelled."""
        while True:
            self._number += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("method", "most", "total"),
    [
        ("append", ITEMS_PER_SLICE, PARTITIONS),
        ("append_markers", ITEMS_PER_SLICE, PARTITIONS),
        ("write", PARTITIONS_PER_SLICE, 2 * PARTITIONS),
    ],
)
async def test_a_transaction_over_many_partitions_is_written_in_time_slices(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, most: int, total: int
) -> None:
    iterations = Iterations()
    real = getattr(Partition, method)

    def counted(partition: Partition, *args: object, **named: object) -> object:
        if partition.name.topic == "t":
            iterations.called()
        return real(partition, *args, **named)

    async with world.node(durability="os") as node, Peer.of(node) as peer:
        await peer.create_topic("t", PARTITIONS)
        producer = Producer2(peer)
        assert await producer.init() is ErrorCode.NONE
        monkeypatch.setattr(Partition, method, counted)
        counting = asyncio.create_task(iterations.run())
        one = batch(
            "a",
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            sequence=0,
            transactional=True,
        )
        parts = [(index, one) for index in range(PARTITIONS)]
        request = hot.write_produce_request(PRODUCE_VERSION, "orders", -1, 30_000, [("t", parts)])
        peer.send(PRODUCE, PRODUCE_VERSION, *request)
        answer = await peer.answer(PRODUCE, PRODUCE_VERSION)
        topics, *_ = hot.read_produce_response(answer, PRODUCE_VERSION)
        assert {result.error for result in topics[0][1]} == {ErrorCode.NONE}
        assert await producer.end(commit=True) is ErrorCode.NONE
        await until(
            lambda: all(
                partition.log.last_stable_offset == 2
                for partition in node.logs.partitions()
                if partition.name.topic == "t"
            ),
            "every partition has its marker",
        )
        counting.cancel()
        with suppress(asyncio.CancelledError):
            await counting
    assert iterations.calls.total() >= total
    assert max(iterations.calls.values()) <= most
