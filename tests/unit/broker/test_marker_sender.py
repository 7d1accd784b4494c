"""Markers of one transaction wait for nobody else's (E10, E16)."""

from fencelog.errors import ErrorCode
from tests.support.node import Peer, World, until
from tests.support.transactions import Producer, partition_of


async def test_a_marker_that_is_not_committed_holds_up_no_other_transaction(world: World) -> None:
    async with world.node(internal_partitions=1, crash=True) as node, Peer.of(node) as peer:
        for topic in ("stuck", "sound"):
            await peer.create_topic(topic)
        stuck, sound = Producer(peer, "first"), Producer(peer, "second")
        for producer, topic in ((stuck, "stuck"), (sound, "sound")):
            assert await producer.init() is ErrorCode.NONE
            assert await producer.add(topic, 0) is ErrorCode.NONE
            assert await producer.produce(topic, "a") is ErrorCode.NONE
        # A sync that hangs; in a cluster: too few of its replicas are in sync, others are well.
        world.disk.hold("stuck-0")
        assert await stuck.end(commit=True) is ErrorCode.NONE
        await until(lambda: world.disk.waiting, "its marker is appended and not committed")
        log = partition_of(node, "sound").log
        for count in (1, 2):  # also the next transaction of the same id
            assert await sound.end(commit=True) is ErrorCode.NONE
            await until(lambda end=2 * count: log.last_stable_offset == end, "readers go on")
            if count == 1:
                assert await sound.add("sound", 0) is ErrorCode.NONE
                assert await sound.produce("sound", "b") is ErrorCode.NONE
        assert partition_of(node, "stuck").log.last_stable_offset == 0
        world.disk.release()
        await until(lambda: partition_of(node, "stuck").log.last_stable_offset == 2, "so does it")
