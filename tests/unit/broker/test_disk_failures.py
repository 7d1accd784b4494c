"""A disk that fails, under a whole broker: only what failed gets an error (D2).

Each fault meets each kind of file: a partition's log, the logs of the coordinators, the metadata
and the checkpoints. What was acknowledged before is there after the next start; nothing is
acknowledged by what failed; the rest of the broker serves on.
"""

import asyncio
from collections.abc import Callable

import pytest

from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.errors import ErrorCode, StorageError
from fencelog.log import layout
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.gate import Fault
from tests.support.node import Peer, World, batch, visible

FAULTS = {
    "a failed write": ("append", Fault(done=5)),
    "a failed fsync": ("sync", Fault()),
}
GONE = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}


@pytest.fixture(params=FAULTS, ids=lambda name: name.replace(" ", "_"))
def fail(request: pytest.FixtureRequest, world: World) -> Callable[[str], None]:
    """Let this fault meet every file whose path contains a text, from now on."""
    wanted, fault = FAULTS[request.param]

    def on(part: str) -> None:
        world.disk.gate = lambda verb, path, size: (
            fault if verb == wanted and part in path else None
        )

    return on


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


async def init(peer: Peer, transactional_id: str | None = "id") -> ErrorCode:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000
    )
    answer = await peer.ask(request, 4, InitProducerIdResponse)
    return ErrorCode(answer.error_code)


async def commit(peer: Peer, offset: int) -> ErrorCode:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="t", partitions=[part])
    answer = await peer.ask(
        OffsetCommitRequest(group_id="g", topics=[topic]), 8, OffsetCommitResponse
    )
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def committed(peer: Peer) -> int:
    answer = await peer.ask(OffsetFetchRequest(group_id="g", topics=None), 7, OffsetFetchResponse)
    return answer.topics[0].partitions[0].committed_offset


async def create(peer: Peer, name: str) -> ErrorCode:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    answer = await peer.ask(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
    return ErrorCode(answer.topics[0].error_code)


async def delete_records(peer: Peer, offset: int) -> ErrorCode:
    asked = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[asked])
    answer = await peer.ask(DeleteRecordsRequest(topics=[topic]), 2, DeleteRecordsResponse)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_a_data_partition_is_out_of_service_and_the_others_serve(
    world: World, fail: Callable[[str], None]
) -> None:  # D1, D2
    async def scenario() -> None:
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t", partitions=2)
            assert (await peer.produce("t", batch("kept"))).error is ErrorCode.NONE
            fail("t-0/")
            refused = await peer.produce("t", batch("x"))
            assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
            world.disk.gate = None  # well again; what it has of the partition is not known
            for acks in (-1, 1):
                again = await peer.produce("t", batch("y"), acks=acks)
                assert again.error is ErrorCode.KAFKA_STORAGE_ERROR
            assert (await peer.produce("t", batch("z"), partition=1)).error is ErrorCode.NONE
            assert visible(await peer.fetch("t")) == [(0, "kept")]
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            assert visible(await peer.fetch("t")) == [(0, "kept")]
            assert visible(await peer.fetch("t", partition=1)) == [(0, "z")]
            assert (await peer.produce("t", batch("after"))).error is ErrorCode.NONE

    run(scenario)


def test_a_transaction_coordinator_with_a_failed_log_is_unavailable_until_a_restart(
    world: World, fail: Callable[[str], None]
) -> None:  # D2, E7
    async def scenario() -> None:
        async with world.node(crash=True, internal_partitions=2) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            assert await init(peer) is ErrorCode.NONE
            fail("__transaction_state")
            for _ in range(2):
                assert await init(peer) in GONE
            assert await init(peer, None) is ErrorCode.NONE, "nobody is asked for it"
            assert (await peer.produce("t", batch("plain"))).error is ErrorCode.NONE
            assert await commit(peer, 1) is ErrorCode.NONE, "another coordinator"
            world.disk.gate = None
            assert await init(peer) in GONE, "until the next start"
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            request = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
            answer = await peer.ask(request, 4, InitProducerIdResponse)
            assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 1)

    run(scenario)


def test_a_group_coordinator_with_a_failed_log_is_unavailable_until_a_restart(
    world: World, fail: Callable[[str], None]
) -> None:  # D2
    async def scenario() -> None:
        async with world.node(crash=True, internal_partitions=2) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            assert await commit(peer, 5) is ErrorCode.NONE
            fail("__consumer_offsets")
            for _ in range(2):
                assert await commit(peer, 6) in GONE
            assert (await peer.produce("t", batch("plain"))).error is ErrorCode.NONE
            assert await init(peer) is ErrorCode.NONE, "another coordinator"
            world.disk.gate = None
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            assert await committed(peer) == 5
            assert await commit(peer, 7) is ErrorCode.NONE
            assert await committed(peer) == 7

    run(scenario)


@pytest.mark.parametrize(
    "checkpoint", [layout.LOG_START_CHECKPOINT, layout.RECOVERY_POINT_CHECKPOINT]
)
def test_a_checkpoint_that_cannot_be_stored_ends_nothing_and_deletes_nothing(
    world: World, fail: Callable[[str], None], checkpoint: str
) -> None:  # D2, D4
    async def scenario() -> None:
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            for value in ("a", "b"):
                assert (await peer.produce("t", batch(value))).error is ErrorCode.NONE
            await node.broker.logs.checkpoint()
            fail(checkpoint)
            if checkpoint == layout.LOG_START_CHECKPOINT:
                assert await delete_records(peer, 2) is ErrorCode.KAFKA_STORAGE_ERROR
                assert visible(await peer.fetch("t"))[0] == (0, "a"), "it was not deleted"
            assert (await peer.produce("t", batch("c"))).error is ErrorCode.NONE
            with pytest.raises(StorageError):
                await node.broker.logs.checkpoint()
            assert (await peer.produce("t", batch("d"))).error is ErrorCode.NONE
            world.disk.gate = None
            assert await delete_records(peer, 1) is ErrorCode.NONE
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            values = [value for _, value in visible(await peer.fetch("t", 3))]
            assert values == ["d"]

    run(scenario)


@pytest.mark.parametrize("problem", ["database or disk is full", "disk I/O error"])
def test_metadata_that_cannot_be_stored_is_an_error_and_the_rest_serves_on(
    world: World, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:  # D2, E7
    async def refuse(self: SqliteMetadata, *_: object, **__: object) -> None:
        raise StorageError(problem)

    async def scenario() -> None:
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            with monkeypatch.context() as patch:
                patch.setattr(SqliteMetadata, "put", refuse)
                patch.setattr(SqliteMetadata, "commit", refuse)
                assert await create(peer, "u") is ErrorCode.KAFKA_STORAGE_ERROR
                assert await init(peer, None) in GONE, "no id is handed out that is not reserved"
                assert (await peer.produce("t", batch("a"))).error is ErrorCode.NONE
            assert await create(peer, "u") is ErrorCode.NONE
            assert await init(peer, None) is ErrorCode.NONE
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            assert visible(await peer.fetch("t")) == [(0, "a")]
            assert (await peer.produce("u", batch("b"))).error is ErrorCode.NONE

    run(scenario)
