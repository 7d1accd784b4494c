"""Compaction in a running broker: readers, restarts, coordinators, and what it is not given."""

import asyncio
from pathlib import Path

import pytest

from fencelog.broker.metadata.catalog import GROUP_TOPIC, TRANSACTION_TOPIC
from fencelog.errors import CorruptionError, ErrorCode
from fencelog.node import Node
from fencelog.wire.batch import iterate, read_header, seal
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from fencelog.wire.records import RecordToWrite, build_batch, read_records
from fencelog_sim.world.disk import Loss, PowerCut
from tests.support.groups import commit_offsets
from tests.support.node import Peer, World
from tests.support.storage import cut_at

SMALL = {"segment_bytes": "2000", "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}


def keyed(node: Node, *records: tuple[str | None, str | None]) -> bytearray:
    now_ms = node.broker.clock.now_ms()
    return build_batch(
        [RecordToWrite(k and k.encode(), v and v.encode(), now_ms) for k, v in records]
    )


async def fill(node: Node, peer: Peer, rounds: int = 40) -> dict[str, str]:
    """Write some keys again and again; returns the newest value of each."""
    newest = {}
    for number in range(rounds):
        key, value = f"k{number % 3}", f"{number:03}" * 60
        newest[key] = value
        produced = await peer.produce("t", keyed(node, (key, value)))
        assert produced.error is ErrorCode.NONE
    return newest


async def read_all(peer: Peer, topic: str = "t") -> list[tuple[int, str, str]]:
    """What a consumer sees from the beginning, one fetch after the other."""
    offset, seen = 0, []
    while True:
        fetched = await peer.fetch(topic, offset, max_bytes=3000)
        assert fetched.error is ErrorCode.NONE
        if not fetched.records:
            return seen
        for records in fetched.records:
            for header, batch in iterate(records):
                assert header.next_offset > offset
                offset = header.next_offset
                seen += [
                    (r.offset, r.key.decode(), (r.value or b"").decode())
                    for r in read_records(batch)
                ]


async def sync_all(node: Node) -> None:
    await node.broker.logs.checkpoint()


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_a_consumer_sees_the_newest_value_of_each_key_also_after_a_kill(
    world: World, durability: str
) -> None:  # D4
    async with world.node(crash=True, durability=durability) as node, Peer.of(node) as peer:
        await peer.create_topic("t", **SMALL)
        newest = await fill(node, peer)
        before = await read_all(peer)
        await sync_all(node)
        await node.cleaner.clean_all()
        after = await read_all(peer)
        assert len(after) < len(before)
        assert set(after) <= set(before)
        assert {key: value for _, key, value in after} == newest
        end = (await peer.fetch("t", 40)).high_watermark
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(durability=durability) as node, Peer.of(node) as peer:
        assert await read_all(peer) == after
        assert (await peer.produce("t", keyed(node, ("k0", "new")))).base_offset == end
    async with world.node(durability=durability) as node, Peer.of(node) as peer:
        assert (await read_all(peer))[:-1] == after


async def test_a_round_goes_on_where_the_last_one_ended(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", **{**SMALL, "min_cleanable_dirty_ratio": "0.5"})
        await fill(node, peer)
        await node.cleaner.clean_all()
        partition = node.broker.logs.get("t", 0)
        first_dirty = node.broker.logs.first_dirty(partition)
        assert first_dirty == partition.log.segment_base_offsets[-1] > 0
        operations = world.disk.operations = []
        await node.cleaner.clean_all()
        assert operations == [], "nothing is due"
    async with world.node() as node, Peer.of(node) as peer:
        partition = node.broker.logs.get("t", 0)
        assert node.broker.logs.first_dirty(partition) == first_dirty
        await node.broker.controller.delete_topic(node.broker.catalog.get("t"))
        await peer.create_topic("t", **SMALL)
        assert node.broker.logs.first_dirty(node.broker.logs.get("t", 0)) == 0


def test_a_power_cut_in_a_round_keeps_the_newest_values(tmp_path: Path) -> None:  # D4, E15
    async def scenario(step: int) -> bool:
        (tmp_path / str(step)).mkdir()
        world = World(tmp_path / str(step))
        finished = True
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t", **SMALL)
            newest = await fill(node, peer, 24)
            before = await read_all(peer)
            cut_at(world.disk, step)
            try:
                await node.cleaner.clean_all()
            except PowerCut:
                finished = False
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            after = await read_all(peer)
            assert set(after) <= set(before)
            assert {key: value for _, key, value in after} == newest
            # The policy may change: what is missing is still not taken for damage.
            await node.broker.controller.configure_topic("t", lambda _: {"segment.bytes": "2000"})
            world.disk = world.disk.power_loss(Loss.NONE)
        async with world.node() as node, Peer.of(node) as peer:
            assert await read_all(peer) == after
        return finished

    step = 0
    while not asyncio.run(scenario(step)):
        step += 4
    assert step > 15


async def test_what_has_both_policies_is_compacted_and_retained(world: World) -> None:  # D4
    async with world.node() as node, Peer.of(node) as peer:
        both = {**SMALL, "cleanup_policy": "compact,delete", "retention_bytes": "4000"}
        await peer.create_topic("t", **both)
        newest = await fill(node, peer, 60)
        await node.cleaner.clean_all()
        assert {key: value for _, key, value in await read_all(peer)} == newest
        for number in range(60):
            await peer.produce("t", keyed(node, (f"n{number}", f"{number:03}" * 60)))
        await node.broker.logs.upkeep(node.broker.clock.now_ms())
        start = (await peer.fetch("t", 120)).log_start_offset
        assert start > 60
        await node.cleaner.clean_all()
        assert (await peer.fetch("t", start)).error is ErrorCode.NONE


async def test_a_record_without_a_key_is_refused_by_name(world: World) -> None:  # F4
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", **SMALL)
        mixed = keyed(node, ("a", "1"), (None, "2"), ("b", "3"), (None, "4"))
        refused = await peer.produce("t", mixed)
        assert refused.error is ErrorCode.INVALID_RECORD
        assert [position for position, _ in refused.record_errors] == [1, 3]
        assert (await peer.fetch("t")).high_watermark == 0
        await node.broker.controller.configure_topic("t", lambda _: {})
        assert (await peer.produce("t", mixed)).error is ErrorCode.NONE


async def test_the_compacted_coordinator_logs_give_the_same_state(world: World) -> None:  # E9
    settings = {"internal_partitions": 1}
    async with world.node(crash=True, **settings) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        logs = node.broker.logs
        for topic in (GROUP_TOPIC, TRANSACTION_TOPIC):
            await node.broker.controller.open_internal(topic, 0)
            await node.broker.controller.configure_topic(
                topic,
                lambda own: {**own, "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"},
            )
        for number in range(40):
            await commit_offsets(peer, number)
            request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=9000)
            producer = await peer.ask(request, 4, InitProducerIdResponse)
            assert producer.error_code == 0
        sizes = {p.name.topic: _size(p) for p in logs.partitions()}
        await node.cleaner.clean_all()
        for partition in logs.partitions():
            if partition.name.topic != "t":
                assert _size(partition) < sizes[partition.name.topic] / 2
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(**settings) as node, Peer.of(node) as peer:
        asked = OffsetFetchRequest(group_id="g", topics=None)
        answer = await peer.ask(asked, 7, OffsetFetchResponse)
        assert answer.topics[0].partitions[0].committed_offset == 39
        again = await peer.ask(
            InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=9000),
            4,
            InitProducerIdResponse,
        )
        assert again.producer_id == producer.producer_id
        assert again.producer_epoch == producer.producer_epoch + 1


def _size(partition) -> int:
    return sum(segment.size for segment in partition.log._state.segments)


async def test_a_damaged_log_is_left_alone_and_the_others_are_compacted(world: World) -> None:  # D3
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", **SMALL)
        await fill(node, peer)
        await peer.create_topic("u", **SMALL)
        for _ in range(20):
            await peer.produce("u", keyed(node, ("k", "v" * 200)))
        world.disk.corrupt("t-0/00000000000000000000.log", 300)
        content = world.disk.contents("t-0/00000000000000000000.log")
        told: list[Exception] = []
        node.broker.logs.get("t", 0).failed.append(told.append)
        await node.cleaner.clean_all()
        await node.cleaner.clean_all()
        assert [type(each) for each in told] == [CorruptionError]
        assert world.disk.contents("t-0/00000000000000000000.log") == content
        assert len(await read_all(peer, "u")) < 10
        assert (await peer.produce("t", keyed(node, ("k", "v")))).error is ErrorCode.NONE


async def test_a_missing_segment_is_damage_to_compaction_too(world: World) -> None:  # D3
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", **SMALL)
        await fill(node, peer)
        await sync_all(node)
        told: list[Exception] = []
        node.broker.logs.get("t", 0).failed.append(told.append)
        world.disk.lose("t-0/00000000000000000000.log")
        await node.cleaner.clean_all()
        assert [type(each) for each in told] == [CorruptionError]


async def test_malformed_records_are_no_damage(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", **{**SMALL, "cleanup_policy": "delete"})
        malformed = seal(read_header(keyed(node, ("k", "v"))), b"\xff" * 50)
        assert (await peer.produce("t", malformed)).error is ErrorCode.NONE
        await node.broker.controller.configure_topic(
            "t", lambda own: {**own, "cleanup.policy": "compact"}
        )
        await fill(node, peer)
        told: list[Exception] = []
        node.broker.logs.get("t", 0).failed.append(told.append)
        await node.cleaner.clean_all()
        assert told == []


async def test_a_full_disk_delays_compaction_until_space_is_free(world: World) -> None:  # D2
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", **SMALL)
        newest = await fill(node, peer)
        before = await read_all(peer)
        world.disk.free_bytes = 30
        await node.cleaner.clean_all()
        assert await read_all(peer) == before
        world.disk.free_bytes = None
        await node.cleaner.clean_all()
        after = await read_all(peer)
        assert len(after) < len(before)
        assert {key: value for _, key, value in after} == newest


async def test_a_topic_may_be_deleted_while_it_is_compacted(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t", **SMALL)
        await fill(node, peer)
        cleaning = asyncio.create_task(node.cleaner.clean_all())
        await asyncio.sleep(0)
        await node.broker.controller.delete_topic(node.broker.catalog.get("t"))
        await cleaning
        assert not [name for name in await world.disk.list("") if name.startswith("t-")]
        await peer.create_topic("t", **SMALL)
        await fill(node, peer, 3)
        assert len(await read_all(peer)) == 3


async def test_a_stop_during_a_round_is_clean(world: World) -> None:
    async with world.node(compaction_interval_s=0.001) as node, Peer.of(node) as peer:
        await peer.create_topic("t", **SMALL)
        newest = await fill(node, peer)
    names = await world.disk.list("t-0")
    assert not [name for name in names if name.endswith((".swap", ".cleaned"))]
    async with world.node() as node, Peer.of(node) as peer:
        assert {key: value for _, key, value in await read_all(peer)} == newest


async def test_without_the_cleaner_the_broker_serves_and_compacts_nothing(world: World) -> None:
    settings = {"compaction_enabled": False, "compaction_interval_s": 0.001}
    async with world.node(**settings) as node, Peer.of(node) as peer:
        await peer.create_topic("t", **SMALL)
        await fill(node, peer)
        assert len(await read_all(peer)) == 40
        assert node.failure() is None
