"""WriteTxnMarkers through a whole node: it ends hanging transactions and no others."""

import pytest

from fencelog.broker.metadata.catalog import TRANSACTION_TOPIC
from fencelog.errors import ErrorCode
from fencelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.gate import Fault
from tests.support.hanging import hang
from tests.support.node import Peer, World, visible
from tests.support.transactions import Producer, Run, settled

STRANGER = 900


async def mark(
    peer: Peer,
    producer_id: int,
    *,
    epoch: int = 0,
    commit: bool = False,
    coordinator_epoch: int = 0,
    topic: str = "t",
    partition: int = 0,
) -> ErrorCode:
    """Ask for one marker, as Kafka's Admin does."""
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=coordinator_epoch,
    )
    answer = await peer.ask(WriteTxnMarkersRequest(markers=[marker]), 1, WriteTxnMarkersResponse)
    (result,) = answer.markers
    assert result.producer_id == producer_id
    (of_topic,) = result.topics
    (of_partition,) = of_topic.partitions
    assert (of_topic.name, of_partition.partition_index) == (topic, partition)
    return ErrorCode(of_partition.error_code)


async def test_a_hanging_transaction_is_aborted_and_readers_go_on(world: World) -> None:  # E10, E17
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await hang(node, "t", STRANGER)
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        await producer.produce("t", "a")
        await producer.end(commit=True)
        assert visible(await peer.fetch("t")) == []
        assert await mark(peer, STRANGER) is ErrorCode.NONE
        await settled(node, "t")
        assert visible(await peer.fetch("t")) == [(1, "a")]
        end = node.broker.logs.get("t", 0).log.log_end_offset
        assert await mark(peer, STRANGER) is ErrorCode.NONE, "a retry succeeds"
        assert node.broker.logs.get("t", 0).log.log_end_offset == end, "and writes nothing"
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        assert visible(await peer.fetch("t")) == [(1, "a")]


@pytest.mark.parametrize("commit", [True, False])
async def test_an_open_transaction_is_its_coordinators_to_end(
    world: World, commit: bool
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as operator:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        for values in ((), ("a",)):  # enlisted only, then open on the partition as well
            if values:
                await producer.produce("t", *values)
            refused = await mark(
                operator, producer.producer_id, epoch=producer.epoch, commit=commit
            )
            assert refused is ErrorCode.INVALID_TXN_STATE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert visible(await peer.fetch("t")) == [(0, "a")]


async def test_a_decided_transaction_is_not_ended_the_other_way(world: World) -> None:  # E9, E16
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as operator:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        await producer.produce("t", "a")
        world.disk.hold("t-0/")  # the marker is appended and waits for its sync
        assert await producer.end(commit=True) is ErrorCode.NONE
        refused = await mark(operator, producer.producer_id, epoch=producer.epoch)
        assert refused is ErrorCode.INVALID_TXN_STATE
        world.disk.release()
        await settled(node, "t")
        assert await mark(operator, producer.producer_id) is ErrorCode.INVALID_TXN_STATE
        assert visible(await peer.fetch("t")) == [(0, "a")]


async def test_write_txn_markers_fences_no_producer(world: World) -> None:  # E2, E17
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as operator:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        for value in ("a", "b"):
            await producer.add("t", 0)
            assert await producer.produce("t", value) is ErrorCode.NONE
            assert await producer.end(commit=False) is ErrorCode.NONE
            await settled(node, "t")
            for epoch, coordinator in ((producer.epoch, 2**31 - 1), (32767, 2**31 - 1)):
                answer = await mark(
                    operator,
                    producer.producer_id,
                    epoch=epoch,
                    coordinator_epoch=coordinator,
                )
                assert answer is ErrorCode.NONE, "nothing is open, nothing is written"


async def test_a_partition_that_its_transaction_does_not_name_hangs_and_can_be_ended(
    world: World,
) -> None:  # E17
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as operator:
        await peer.create_topic("t", 2)
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 1)
        await hang(node, "t", producer.producer_id, epoch=producer.epoch)
        assert await producer.produce("t", "a", partition=1) is ErrorCode.NONE
        who, epoch = producer.producer_id, producer.epoch
        assert await mark(operator, who, epoch=epoch) is ErrorCode.NONE
        await settled(node, "t")
        refused = await mark(operator, who, epoch=epoch, partition=1)
        assert refused is ErrorCode.INVALID_TXN_STATE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t", 1)
        assert visible(await peer.fetch("t", partition=1)) == [(0, "a")]


async def test_a_versioned_transaction_is_its_coordinators_to_end(world: World) -> None:  # V1, V5
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as operator:
        await peer.create_topic("t")
        run = Run(peer)
        joined = await run.join()
        assert await run.write(joined, "a") is ErrorCode.NONE
        assert await mark(operator, joined.producer_id) is ErrorCode.INVALID_TXN_STATE
        assert await run.commit(joined) is ErrorCode.NONE
        await settled(node, "t")
        assert visible(await peer.fetch("t")) == [(0, "a")]


async def test_a_partition_that_is_not_there_is_named(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for topic, partition in (("t", 1), ("none", 0)):
            answer = await mark(peer, STRANGER, topic=topic, partition=partition)
            assert answer is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_nothing_is_ended_while_a_coordinator_cannot_be_asked(world: World) -> None:  # E17
    def broken(verb: str, path: str, size: int) -> Fault | None:
        return Fault() if verb == "append" and TRANSACTION_TOPIC in path else None

    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as operator:
        await peer.create_topic("t")
        await hang(node, "t", STRANGER)
        producer = Producer(peer)
        await producer.init()
        world.disk.gate = broken
        assert await producer.add("t", 0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await mark(operator, STRANGER) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        found = await peer.fetch("t")
        assert found.last_stable_offset == 0
