"""Transaction requests of operators: whole lists, filters, and the producers of a partition."""

import asyncio

import pytest

from fencelog.broker.metadata.catalog import TRANSACTION_TOPIC
from fencelog.errors import ErrorCode, StorageError
from fencelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from fencelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from fencelog.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from fencelog.wire.own import transactional_id
from fencelog_sim.world.gate import Fault
from tests.support.hanging import hang
from tests.support.node import Peer, World, batch, until
from tests.support.transactions import ID, Producer, Run, listed, partition_of, settled


async def described(peer: Peer, name: str) -> TransactionState:
    request = DescribeTransactionsRequest(transactional_ids=[name])
    answer = await peer.ask(request, 0, DescribeTransactionsResponse)
    (found,) = answer.transaction_states
    assert found.transactional_id == name
    return found


async def producers(peer: Peer, topic: str, partition: int = 0) -> PartitionResponse:
    request = DescribeProducersRequest(
        topics=[TopicRequest(name=topic, partition_indexes=[partition])]
    )
    answer = await peer.ask(request, 0, DescribeProducersResponse)
    return answer.topics[0].partitions[0]


async def test_transactions_are_listed_by_state_producer_and_age(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        mine = (ID, producer.producer_id)
        assert await listed(peer) == [(*mine, "Empty")]
        assert await listed(peer, duration_filter=0) == [], "it never began"
        await producer.add("t", 0)
        for version in (0, 1):
            assert await listed(peer, version) == [(*mine, "Ongoing")]
        assert await listed(peer, state_filters=["Ongoing", "Empty"]) == [(*mine, "Ongoing")]
        assert await listed(peer, state_filters=["Empty"]) == []
        assert await listed(peer, producer_id_filters=[mine[1], 77]) == [(*mine, "Ongoing")]
        assert await listed(peer, producer_id_filters=[77]) == []
        assert await listed(peer, duration_filter=60_000) == []
        await asyncio.sleep(0.005)
        assert await listed(peer, duration_filter=1) == [(*mine, "Ongoing")]


async def test_ids_are_listed_by_a_pattern_of_the_whole_id(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        producer = Producer(peer)
        await producer.init()
        mine = [(ID, producer.producer_id, "Empty")]
        for pattern, found in (("or.*", mine), ("or|orders", mine), ("or", []), (None, mine)):
            assert await listed(peer, 2, transactional_id_pattern=pattern) == found
        request = ListTransactionsRequest(transactional_id_pattern="(")
        refused = await peer.ask(request, 2, ListTransactionsResponse)
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_an_unknown_state_filter_is_reported(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await Producer(peer).init()
        request = ListTransactionsRequest(
            state_filters=["Nonsense", "PrepareEpochFence", "Dead", "PrepareCommit"]
        )
        answer = await peer.ask(request, 1, ListTransactionsResponse)
        assert answer.unknown_state_filters == ["Nonsense"]
        assert answer.transaction_states == []


async def test_a_list_is_whole_or_an_error(world: World) -> None:
    def broken(verb: str, path: str, size: int) -> Fault | None:
        return Fault() if verb == "append" and TRANSACTION_TOPIC in path else None

    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        world.disk.gate = broken
        assert await producer.add("t", 0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = await peer.ask(ListTransactionsRequest(), 1, ListTransactionsResponse)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_description_names_where_a_marker_is_still_to_come(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as operator:
        await peer.create_topic("t", 3)
        producer = Producer(peer)
        await producer.init(timeout_ms=54_321)
        found = await described(operator, ID)
        assert (found.transaction_state, found.transaction_start_time_ms) == ("Empty", -1)
        await producer.add("t", 0, 2)
        await producer.produce("t", "a")
        found = await described(operator, ID)
        assert (found.producer_id, found.producer_epoch) == (
            producer.producer_id,
            producer.epoch,
        )
        assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 54_321)
        assert found.transaction_start_time_ms > 0
        assert [(one.topic, one.partitions) for one in found.topics] == [("t", [0, 2])]
        await producer.end(commit=True)
        await settled(node, "t")
        await settled(node, "t", 2)
        assert (await described(operator, ID)).topics == []


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", ErrorCode.INVALID_REQUEST),
        ("nobody", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        (transactional_id("nobody"), ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    ],
)
async def test_an_unknown_transactional_id_is_reported(
    world: World, name: str, error: ErrorCode
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        assert (await described(peer, name)).error_code == error


async def test_a_versioned_transaction_is_listed_for_each_of_its_producers(
    world: World,
) -> None:  # V5
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", 2)
        run, name = Run(peer), transactional_id("app")
        first, second = await run.join(), await run.join()
        await run.write(first, "a")
        await run.write(second, "b", partition=1)
        ids = [first.producer_id, second.producer_id]
        assert await listed(peer) == [(name, each, "Ongoing") for each in ids]
        assert await listed(peer, producer_id_filters=ids[1:]) == [(name, ids[1], "Ongoing")]
        found = await described(peer, name)
        assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
        assert (found.producer_id, found.producer_epoch) == (-1, -1)
        assert [(one.topic, one.partitions) for one in found.topics] == [("t", [0, 1])]
        await run.commit(first)
        await settled(node, "t")
        await settled(node, "t", 1)
        assert await listed(peer) == []
        assert (await described(peer, name)).transaction_state == "Empty"


async def test_producers_are_described_with_the_start_of_what_is_open(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await hang(node, "t", 900, epoch=4, sequence=17)
        (found,) = (await producers(peer, "t")).active_producers
        assert (found.producer_id, found.producer_epoch, found.last_sequence) == (900, 4, 17)
        assert (found.coordinator_epoch, found.current_txn_start_offset) == (-1, 0)


async def test_no_producer_is_described_by_what_is_not_durable(world: World) -> None:  # E16
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        world.disk.hold("t-0")
        peer.send_produce("t", batch("a", producer_id=7, epoch=0, sequence=0))
        await until(lambda: world.disk.waiting > 0, "the record's sync waits")
        asking = asyncio.ensure_future(producers(other, "t"))
        async with Peer.of(node) as third:
            assert (await third.fetch("t", isolation=0)).high_watermark == 0
        assert not asking.done()
        world.disk.release()
        (found,) = (await asking).active_producers
        assert (found.producer_id, found.last_sequence) == (7, 0)


async def test_an_offline_partition_describes_no_producer(world: World) -> None:  # D2, E16
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        partition_of(node, "t").fail(StorageError("a test"))
        answer = await producers(peer, "t")
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "a test" in (answer.error_message or "")


async def test_an_internal_partition_that_was_never_needed_has_no_producers(world: World) -> None:
    async with world.node(internal_partitions=4) as node, Peer.of(node) as peer:
        await Producer(peer).init()
        for partition in range(4):
            found = await producers(peer, TRANSACTION_TOPIC, partition)
            assert (found.error_code, found.active_producers) == (0, [])
        for topic, partition in ((TRANSACTION_TOPIC, 4), ("none", 0)):
            error = (await producers(peer, topic, partition)).error_code
            assert error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
