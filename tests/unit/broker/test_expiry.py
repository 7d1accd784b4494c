"""Producers and transactional ids that nobody uses any more, through a whole node and its disk."""

from fencelog.broker.metadata.catalog import GROUP_TOPIC, TRANSACTION_TOPIC
from fencelog.coordination.group.records import write_key as write_offset_key
from fencelog.coordination.transaction.records import write_key
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.types import Instant, TimestampMs, TopicPartition
from fencelog.wire.batch import iterate
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.records import read_records
from fencelog_sim.world.disk import Loss
from tests.support.groups import commit_offsets
from tests.support.node import Peer, World, batch, until, visible
from tests.support.transactions import ID, Producer, listed, settled

T_0 = TopicPartition("t", 0)
DAY_MS = 86_400_000
HOUR_S = 3600.0
KEYS = {TRANSACTION_TOPIC: write_key(ID), GROUP_TOPIC: write_offset_key("gone", T_0)}
SOON = {"transactional_id_expiration_ms": 1, "transactional_id_check_s": 0.01}


async def test_an_idle_id_is_forgotten_and_its_producer_takes_a_new_identity(world: World) -> None:
    async with world.node(crash=True, **SOON) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        zombie = (producer.producer_id, producer.epoch)
        (loaded,) = node.broker.transactions.loaded()
        await until(lambda: not loaded.shard.transactions(), "the id is forgotten")
        assert await listed(peer) == []
        assert await producer.add("t", 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await producer.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await producer.produce("t", "x") is not ErrorCode.NONE
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node() as node, Peer.of(node) as peer:
        assert await listed(peer) == []
        producer = Producer(peer)
        assert await producer.init() is ErrorCode.NONE
        assert producer.producer_id > zombie[0]
        await producer.add("t", 0)
        await producer.produce("t", "a")
        await producer.end(commit=True)
        await settled(node, "t")
        assert [value for _, value in visible(await peer.fetch("t"))] == ["a"]


async def test_an_open_transaction_keeps_its_id(world: World) -> None:  # E12
    async with world.node(**SOON) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        while await producer.add("t", 0) is not ErrorCode.NONE:
            await producer.init()
        (loaded,) = node.broker.transactions.loaded()
        looks = loaded.shard._retention
        for _ in range(3):
            seen = looks.next_check
            await until(lambda seen=seen: looks.next_check != seen, "it is looked at")
        assert await producer.produce("t", "a") is ErrorCode.NONE
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        assert visible(await peer.fetch("t")) == [(0, "a")]


def keys_on_disk(world: World, node: Node, topic: str) -> set[bytes]:
    """The keys that are left in the files of an internal topic, tombstones' among them."""
    (partition,) = [p for p in node.broker.logs.partitions() if p.name.topic == topic]
    return {
        record.key or b""
        for base_offset in partition.log.segment_base_offsets
        for header, one in iterate(world.disk.contents(f"{topic}-0/{base_offset:020}.log"))
        if not header.is_control
        for record in read_records(one)
    }


async def fill(peer: Peer) -> None:
    """Enough of other ids and groups for the segments before to be full."""
    for number in range(30):
        await commit_offsets(peer, number, group="filler")
        request = InitProducerIdRequest(transactional_id="filler", transaction_timeout_ms=9000)
        answer = await peer.ask(request, 4, InitProducerIdResponse)
        assert answer.error_code == ErrorCode.NONE


async def test_of_what_expired_compaction_leaves_nothing_in_the_coordinators_logs(  # D4
    world: World,
) -> None:
    tidy = {"segment.bytes": "1024", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
    async with world.node(crash=True, internal_partitions=1) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        for topic in (GROUP_TOPIC, TRANSACTION_TOPIC):
            await node.broker.controller.open_internal(topic, 0)
            await node.broker.controller.configure_topic(topic, lambda own: {**own, **tidy})
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        await producer.end(commit=True)
        await commit_offsets(peer, 1, group="gone")
        await fill(peer)
        (of_ids,), (of_groups,) = (
            node.broker.transactions.loaded(),
            node.broker.groups.loaded(),
        )
        # Both were in use a moment ago; what is looked at is their age in eight days.
        later = TimestampMs(node.broker.clock.now_ms() + 8 * DAY_MS)
        await until(lambda: of_ids.shard.describe(ID).state.is_commit, "it is complete")
        await node.broker.transactions.decide_on(
            of_ids, lambda shard, now: shard.expire(Instant(now + HOUR_S), later)
        )
        assert node.broker.transactions.loaded()[0].shard.transactions() == ()
        await node.broker.groups.decide_on(
            of_groups, lambda shard, now: shard.expire(Instant(now + HOUR_S), later)
        )
        before = {topic: keys_on_disk(world, node, topic) for topic in KEYS}
        assert all(key in before[topic] for topic, key in KEYS.items())
        for _ in range(3):  # the round after the one that saw a tombstone first takes it away
            await fill(peer)
            await node.cleaner.clean_all()
        for topic, key in KEYS.items():
            left = keys_on_disk(world, node, topic)
            assert key not in left
            assert any(b"filler" in each for each in left)
        world.disk = world.disk.power_loss(Loss.ALL)
    async with world.node(internal_partitions=1) as node, Peer.of(node) as peer:
        assert [name for name, _, _ in await listed(peer)] == ["filler"]


async def test_a_producer_is_known_for_the_configured_time_and_in_its_transaction_for_longer(
    world: World,
) -> None:  # E5
    async with world.node(producer_expiration_ms=60_000) as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        producer = Producer(peer)
        await producer.init()
        await producer.add("t", 0)
        await producer.produce("t", "a")
        plain = batch("b", producer_id=900, epoch=0, sequence=0)
        assert (await peer.produce("t", plain)).base_offset == 1
        log = node.broker.logs.get("t", 0).log
        now_ms = node.broker.clock.now_ms()
        await node.broker.logs.upkeep(TimestampMs(now_ms + 50_000))
        assert (await peer.produce("t", plain)).base_offset == 1, "a duplicate"
        await node.broker.logs.upkeep(TimestampMs(now_ms + 120_000))
        assert [each.producer_id for each in log.producers()] == [producer.producer_id]
        assert (await peer.produce("t", plain)).base_offset == 2, "nobody knows it any more"
        assert await producer.end(commit=True) is ErrorCode.NONE
        await settled(node, "t")
        await node.broker.logs.upkeep(TimestampMs(now_ms + 240_000))
        assert log.producers() == []
