"""Transaction version 2 (KIP-890) through a whole node, request by request."""

import asyncio

import pytest

from fencelog.errors import ErrorCode, StorageError
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest
from fencelog_sim.world.disk import Loss
from tests.support.groups import FAST, committed
from tests.support.node import Peer, World, until, visible
from tests.support.transactions import Producer, Worker, offsets_settled, partition_of, settled
from tests.support.version_2 import Producer2, age


class Gates:
    """Syncs of some logs, each of which a test can hold back and let go by itself."""

    def __init__(self, *parts: str) -> None:
        self._gates = {part: asyncio.Event() for part in parts}
        for part in parts:
            self.open(part)

    def close(self, part: str) -> None:
        self._gates[part].clear()

    def open(self, part: str) -> None:
        self._gates[part].set()

    async def wait(self, verb: str, path: str, size: int) -> None:
        for part, gate in self._gates.items():
            if verb == "sync" and part in path and path.endswith(".log"):
                await gate.wait()


async def test_version_2_is_offered_whole_or_not_at_all(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        for version in (3, 4):
            answer = await peer.ask(ApiVersionsRequest(), version, ApiVersionsResponse)
            (finalized,) = answer.finalized_features
            assert (finalized.name, finalized.max_version_level) == ("transaction.version", 2)
            assert answer.finalized_features_epoch >= 0
            # Clients of before version 4 fail over a feature that begins at 0 (KAFKA-17011).
            ranges = [(each.min_version, each.max_version) for each in answer.supported_features]
            assert ranges == ([] if version == 3 else [(0, 2)])
            spoken = {each.api_key: each.max_version for each in answer.api_keys}
            assert spoken[ApiKey.PRODUCE] == 12
            assert spoken[ApiKey.END_TXN] == spoken[ApiKey.TXN_OFFSET_COMMIT] == 5
        answer = await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
        assert len(answer.api_keys) == len(SUPPORTED)


async def test_a_first_write_enlists_its_partition_and_an_end_takes_the_next_epoch(
    world: World,
) -> None:  # E10, E14
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        producer = Producer2(peer)
        await producer.init()
        first = producer.epoch
        for number, commit in enumerate((True, False, True)):
            assert producer.epoch == first + number
            assert await producer.produce("t", f"{number}a") is ErrorCode.NONE
            producer.sequence = 0
            assert await producer.produce("t", f"{number}b", partition=1) is ErrorCode.NONE
            assert await producer.end(commit=commit) is ErrorCode.NONE
        for partition, letter in ((0, "a"), (1, "b")):
            await settled(node, "t", partition)
            values = [v for _, v in visible(await peer.fetch("t", partition=partition))]
            assert values == [f"0{letter}", f"2{letter}"]
        # Its marker has an epoch above that of its data.
        (state,) = partition_of(node, "t").log.producers()
        assert state.producer_epoch == first + 3


async def test_nothing_is_written_before_the_enlistment_is_durable(
    world: World,
) -> None:  # E14, E16
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer2(peer)
        await producer.init()
        world.disk.hold("__transaction_state")
        producer.send("t", "early")
        await until(lambda: world.disk.waiting > 0, "the enlistment's sync waits")
        assert partition_of(node, "t").log.log_end_offset == 0
        world.disk.release()
        assert (await peer.produced(12)).error is ErrorCode.NONE
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        producer.peer = peer
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert visible(await peer.fetch("t")) == [(0, "early")]


async def test_a_repeated_end_is_answered_with_the_same_epoch_before_and_after_a_crash(
    world: World,
) -> None:  # E7, E14
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer2(peer)
        await producer.init()
        await producer.produce("t", "a")
        decided, given = await producer.ask_to_end(commit=True)
        assert decided is ErrorCode.NONE
        await settled(node, "t")
        assert await producer.ask_to_end(commit=True) == (ErrorCode.NONE, given)
        contrary, _ = await producer.ask_to_end(commit=False)
        assert contrary is ErrorCode.INVALID_TXN_STATE
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        producer.peer = peer
        assert await producer.ask_to_end(commit=True) == (ErrorCode.NONE, given)
        producer.producer_id, producer.epoch = given
        producer.sequence = 0
        assert await producer.produce("t", "b") is ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
async def test_a_decision_of_version_2_is_carried_out_after_a_crash(
    world: World, commit: bool
) -> None:  # E9, E16
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer2(peer)
        await producer.init()
        await producer.produce("t", "a")
        world.disk.hold("t-0")  # The markers cannot become durable: the crash comes first.
        assert await producer.end(commit=commit) is ErrorCode.NONE
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        assert visible(await peer.fetch("t")) == ([(0, "a")] if commit else [])
        producer.peer = peer
        assert await producer.produce("t", "b") is ErrorCode.NONE


async def test_a_first_write_waits_for_the_markers_of_the_last_transaction(
    world: World,
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer2(peer)
        await producer.init()
        await producer.produce("t", "a")
        world.disk.hold("t-0")
        assert await producer.end(commit=True) is ErrorCode.NONE
        await until(lambda: world.disk.waiting > 0, "the marker's sync waits")
        producer.send("t", "b")
        async with Peer.of(node) as other:
            await other.fetch("t")
        assert partition_of(node, "t").log.log_end_offset == 2, "a, and its marker"
        world.disk.release()
        assert (await peer.produced(12)).error is ErrorCode.NONE


async def test_a_first_write_misses_no_step_of_its_coordinator(world: World) -> None:  # E14
    async with (
        world.node(internal_partitions=1, markers_wait_s=60.0) as node,
        Peer.of(node) as peer,
        Peer.of(node) as other,
    ):
        await peer.create_topic("t")
        producer = Producer2(peer)
        await producer.init()
        await producer.produce("t", "a")
        gates = Gates("t-0", "__transaction_state")
        world.disk.delay = gates.wait
        (loaded,) = node.broker.transactions.loaded()
        gates.close("t-0")
        assert await producer.end(commit=True) is ErrorCode.NONE
        gates.close("__transaction_state")
        end = loaded.partition.log.log_end_offset
        stranger = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        other.send(stranger.API_KEY, 4, stranger.write(4))
        await until(lambda: loaded.partition.log.log_end_offset == end + 1, "a stranger")
        # What it sees is not committed yet, and the last markers come in meanwhile.
        producer.send("t", "b")
        await until(lambda: partition_of(node, "t").log._guards, "the write waits")
        gates.open("t-0")
        await until(lambda: loaded.partition.log.log_end_offset == end + 2, "completed")
        gates.open("__transaction_state")
        assert (await peer.produced(12)).error is ErrorCode.NONE


async def test_a_first_write_gets_a_retriable_error_while_markers_cannot_be_written(
    world: World,
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        await peer.create_topic("bad")
        producer = Producer2(peer)
        await producer.init()
        await producer.produce("bad", "a")
        partition_of(node, "bad").fail(StorageError("a test"))
        assert await producer.end(commit=True) is ErrorCode.NONE
        assert await producer.produce("t", "b") is ErrorCode.CONCURRENT_TRANSACTIONS


async def test_an_abort_where_nothing_is_open_fences_what_is_still_on_its_way(
    world: World,
) -> None:  # E14
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer, late = Producer2(peer), Producer2(peer)
        await producer.init()
        late.producer_id, late.epoch = producer.producer_id, producer.epoch
        nothing, _ = await producer.ask_to_end(commit=True)
        assert nothing is ErrorCode.INVALID_TXN_STATE
        assert await producer.end(commit=False) is ErrorCode.NONE
        assert producer.epoch == late.epoch + 1
        assert await late.produce("t", "late") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await producer.produce("t", "x") is ErrorCode.NONE


async def test_a_version_2_producer_without_state_begins_at_0_only(world: World) -> None:  # E5
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer2(peer)
        await producer.init()
        producer.sequence = 5
        assert await producer.produce("t", "x") is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        producer.sequence = 0
        assert await producer.produce("t", "x") is ErrorCode.NONE


async def test_offsets_of_version_2_enlist_their_partition(world: World) -> None:  # E8, E14
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer2(peer)
        await producer.init()
        refused = await producer.commit_offset(3, version=4)
        assert refused is ErrorCode.TRANSACTION_ABORTABLE
        assert await producer.commit_offset(3, version=3) is ErrorCode.INVALID_TXN_STATE
        for offset, commit, seen in ((3, False, -1), (4, True, 4)):
            assert await producer.commit_offset(offset) is ErrorCode.NONE
            assert await producer.end(commit=commit) is ErrorCode.NONE
            await offsets_settled(node)
            assert await committed(peer) == seen


async def test_an_offset_of_an_ended_epoch_is_refused(world: World) -> None:  # E2, E14
    async with world.node(**FAST) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer, late = Producer2(peer), Producer2(peer)
        await producer.init()
        late.producer_id, late.epoch = producer.producer_id, producer.epoch
        await producer.commit_offset(3)
        await producer.end(commit=True)
        await producer.commit_offset(4)
        assert await late.commit_offset(3) is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_clients_of_both_transaction_versions_work_at_once(world: World) -> None:  # E14
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        old, new = Worker(peer), Producer2(other)
        await old.init()
        for number in range(3):
            await old.add("t", 0)
            assert await old.produce("t", f"old {number}") is ErrorCode.NONE
            assert await old.end(commit=number != 1) is ErrorCode.NONE
        # The same id upgraded: its first end takes the next epoch, within the same incarnation.
        new.producer_id, new.epoch, new.sequence = old.producer_id, old.epoch, old.sequence
        for number in range(3):
            assert await new.produce("t", f"new {number}") is ErrorCode.NONE
            assert await new.end(commit=number != 1) is ErrorCode.NONE
        # And downgraded.
        again = Producer(peer)
        await again.init()
        assert again.epoch > new.epoch
        await again.add("t", 0)
        assert await again.produce("t", "again") is ErrorCode.NONE
        assert await again.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        values = [value for _, value in visible(await peer.fetch("t"))]
        assert values == ["old 0", "old 2", "new 0", "new 2", "again"]


async def test_after_the_last_epoch_a_producer_goes_on_under_a_new_id(world: World) -> None:  # E7
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer2(peer)
        await producer.init()
        await age(node, 32766)
        producer.epoch, before = 32766, producer.producer_id
        assert await producer.produce("t", "last") is ErrorCode.NONE
        _, given = await producer.ask_to_end(commit=True)
        assert given[0] > before
        assert given[1] == 0
        await settled(node, "t")
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        producer.peer = peer
        assert await producer.ask_to_end(commit=True) == (ErrorCode.NONE, given)
        delayed = await producer.produce("t", "delayed")
        assert delayed is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        producer.producer_id, producer.epoch = given
        producer.sequence = 0
        assert await producer.produce("t", "first") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert [v for _, v in visible(await peer.fetch("t"))] == ["last", "first"]
