"""Conditional appends over a connection: compared in the step of the append, on any topic (R4)."""

import asyncio

import pytest

from fencelog.errors import ErrorCode
from fencelog.wire.batch import iterate
from fencelog.wire.hot import AppendTags, FetchedPartition, PartitionResult, Revision
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.node import Peer, World, batch, until


def after(epoch: int, offset: int) -> AppendTags:
    return AppendTags(condition=Revision(epoch, offset))


async def update(
    peer: Peer, revision: tuple[int, int], value: str = "u", **producer: int
) -> PartitionResult:
    return await peer.produce("t", batch(value, **producer), tags=after(*revision))


def revision_of(fetched: FetchedPartition, position: int) -> tuple[int, int]:
    """What a reader of this answer knows of the end of the log."""
    revision = (-1, position)
    for records in fetched.records:
        for header, _ in iterate(records):
            revision = header.leader_epoch, header.next_offset
    return revision


async def test_of_two_updates_that_have_read_the_same_one_is_stored(world: World) -> None:  # R4
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t")
        results = await asyncio.gather(update(peer, (-1, 0)), update(other, (-1, 0)))
        errors = sorted(each.error for each in results)
        assert errors == [ErrorCode.NONE, ErrorCode.STALE_REVISION]
        stale = next(each for each in results if each.error)
        assert stale.error_message is not None
        assert "the log ends at offset 1" in stale.error_message


async def test_what_was_fetched_tells_the_revision(world: World) -> None:  # R4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for number in range(3):
            fetched = await peer.fetch("t", isolation=0)
            assert (await update(peer, revision_of(fetched, 0))).base_offset == number


async def test_a_repeated_update_succeeds_whatever_came_after_it(world: World) -> None:  # R4, E4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = {"producer_id": 7, "epoch": 0, "sequence": 0}
        assert (await update(peer, (-1, 0), **producer)).base_offset == 0
        await peer.produce("t", batch("another"))
        repeated = await update(peer, (-1, 0), **producer)
        assert (repeated.error, repeated.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize("setting", ["compression", "compaction"])
async def test_a_condition_is_compared_after_the_records_were_checked(
    world: World, setting: str
) -> None:  # R4
    settings = {"compression_type": "gzip"} if setting == "compression" else {}
    settings |= {"cleanup_policy": "compact"} if setting == "compaction" else {}
    async with world.node() as node, Peer.of(node) as peer, Peer.of(node) as other:
        await peer.create_topic("t", **settings)
        large = build_batch([RecordToWrite(b"k", bytes(300_000), 1)] * 3)
        keyed = build_batch([RecordToWrite(b"k", b"v", 1)])
        peer.send_produce("t", large, tags=after(-1, 0))
        other.send_produce("t", keyed, tags=after(-1, 0))
        results = [await peer.produced(), await other.produced()]
        partition = node.broker.logs.get("t", 0)
        assert partition is not None
        stored = [each for each in results if each.error is ErrorCode.NONE]
        assert [each.error for each in results].count(ErrorCode.STALE_REVISION) == 1
        assert len(stored) == 1
        assert partition.log.log_end_offset == (3 if stored[0] is results[0] else 1)


async def test_a_transaction_has_no_conditional_appends(world: World) -> None:  # R4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        records = batch("x", producer_id=7, epoch=0, sequence=0, transactional=True)
        refused = await peer.produce("t", records, transactional_id="t", tags=after(-1, 0))
        assert refused.error is ErrorCode.INVALID_REQUEST
        assert refused.error_message is not None
        assert "conditional" in refused.error_message


async def test_conditions_are_each_partitions_own(world: World) -> None:  # R4, F4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", partitions=2)
        await peer.produce("t", batch("x"))
        for partition, error in ((0, ErrorCode.STALE_REVISION), (1, ErrorCode.NONE)):
            result = await peer.produce("t", batch("y"), partition=partition, tags=after(-1, 0))
            assert result.error is error


async def test_who_reads_an_emptied_log_can_still_write(world: World) -> None:  # R4, D4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for number in range(3):
            await peer.produce("t", batch(str(number)))
        partition = node.broker.logs.get("t", 0)
        assert partition is not None
        await node.broker.logs.delete_records({partition: -1})
        await until(lambda: partition.log.log_start_offset == 3, "all is deleted")
        fetched = await peer.fetch("t", 3, isolation=0)
        assert (fetched.log_start_offset, list(fetched.records)) == (3, [])
        assert (await update(peer, revision_of(fetched, 3))).base_offset == 3
