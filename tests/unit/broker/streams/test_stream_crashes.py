"""A resize that a crash interrupts goes on at the next start, wherever that was (R1, R2)."""

import asyncio
from contextlib import suppress
from itertools import product
from random import Random

import pytest

from fencelog.broker.metadata.controller import NewTopic
from fencelog.broker.metadata.streams import stream_of
from fencelog.coordination.streams.model import SegmentState, Stream
from fencelog.coordination.streams.rules import created
from fencelog.errors import RequestError
from fencelog.node import Node
from fencelog.types import Offset
from fencelog_sim.world.disk import READING, Loss
from fencelog_sim.world.gate import Fault
from tests.support.node import World, batch
from tests.support.streams import states_on
from tests.unit.broker.test_topic_batches import READING_METADATA, Machine

SEEDS = 2


def stream_on(node: Node) -> Stream:
    topic = node.broker.catalog.get("s")
    assert topic is not None
    return stream_of(topic)


async def resize_and_cut(machine: Machine, segments: list[int], at: int, seed: int) -> bool:
    """Resize; cut the power at the n-th write, whoever makes it. False if there was none."""
    assert machine.node is not None
    streams, left, cut = machine.node.broker.streams, at, asyncio.Event()

    def gate(verb: str, _path: str, _size: int) -> Fault | None:
        nonlocal left
        if verb in READING or verb in READING_METADATA:
            return None
        left -= 1
        if left >= 0:
            return None
        cut.set()
        return Fault(done=seed)

    async def whole() -> None:
        with suppress(RequestError):
            topic, successors = await streams.resize("s", segments)
            await streams.opened(topic.topic_id, successors)

    machine.disk.gate = machine.metadata.gate = gate
    tasks = [asyncio.create_task(whole()), asyncio.create_task(cut.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for each in tasks:
        each.cancel()
    await World._drop(machine.node)
    machine.metadata = machine.metadata.power_loss(Random(seed))
    machine.disk = machine.disk.power_loss(Loss.TORN, Random(seed))
    return left < 0


async def cut_everywhere(segments: list[int]) -> set[tuple[str, ...]]:
    """Cut the power at each write of a resize; return the states that the next start finds."""
    found: set[tuple[str, ...]] = set()
    for at, seed in product(range(1_000), range(SEEDS)):
        machine = Machine()
        node = await machine.start()
        stream = created(2)
        assert isinstance(stream, Stream)
        await node.broker.controller.create_topics([NewTopic("s", 2, {}, stream=stream)])
        for partition in node.logs.partitions():
            partition.append_records(memoryview(batch("kept")), now_ms=0)
            await partition.committed(Offset(1))
        was_cut = await resize_and_cut(machine, segments, at, seed)
        node = await machine.start()
        found.add(tuple(states_on(node)))
        assert not node.logs.offline()
        streams = node.broker.streams
        if len(stream_on(node).segments) == 2:
            await streams.resize("s", segments)
        topic = node.broker.catalog.get("s")
        assert topic is not None
        async with asyncio.timeout(10):
            await streams.opened(topic.topic_id, range(topic.partitions))
        stream = stream_on(node)
        assert stream.problem() is None
        assert len(stream.segments) == 2 + (2 if len(segments) == 1 else 1)
        for index in segments:
            assert stream.segments[index].state is SegmentState.SEALED
            partition = node.logs.get("s", index)
            assert partition is not None
            assert stream.segments[index].end == partition.log.sealed_at == 1
            assert partition.log.high_watermark == 2
        await machine.stop()
        if not was_cut:
            return found
    raise AssertionError("the resize never ends")


@pytest.mark.slow  # many power cuts
@pytest.mark.parametrize("segments", [[0], [0, 1]], ids=["split", "merge"])
def test_a_resize_goes_on_after_a_power_cut_at_any_write(segments: list[int]) -> None:  # R1, R2
    found = asyncio.run(cut_everywhere(segments))
    assert ("open", "open") in found
    assert any("opening" in each for each in found)
    assert any("sealed" in each for each in found)
