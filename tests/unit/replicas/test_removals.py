"""The replicas of deleted topics are removed, whatever fails at first."""

import asyncio
from collections.abc import Sequence

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import PartitionKey, encoded_deletion
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.replicas.led import Key
from fencelog.coordination.controller.model import PartitionState
from fencelog.errors import ExhaustedError, StorageError
from fencelog.ports import MetadataWrite
from fencelog.types import LeaderEpoch, NodeId, TopicId, TopicPartition
from fencelog_sim.world.gate import NO_SPACE, Fault
from tests.support.partition import scenario
from tests.unit.replicas import test_brokers as brokers
from tests.unit.replicas.hosts import TOPIC, until
from tests.unit.replicas.test_replica_manager import OTHER, Cluster, Node, running

NODES = (NodeId(1), NodeId(2), NodeId(3))
EVER = 10**9
TURNS = 20
"""Of the loop, in which what may go on does."""


async def deleted(cluster: Cluster, *, partitions: int = 1) -> None:
    for index in range(partitions):
        cluster.lead(1, index)
        await until(lambda index=index: cluster.committed(0, index))
    gone = [(PartitionKey(TOPIC, index).text, None) for index in range(partitions)]
    cluster.commit((f"deleted-topic/{TOPIC.hex()}", encoded_deletion("t", NODES)), *gone)


def fail(node: Node, times: int) -> list[int]:
    """Let the first removals of files on a node fail; return how many there were."""
    remove, tries = node.remove, [0]

    async def failing(topic_id: TopicId, name: str) -> None:
        tries[0] += 1
        if tries[0] <= times:
            raise ExhaustedError("recovery-point-offset-checkpoint: no space left on device")
        await remove(topic_id, name)

    node.remove = failing  # type: ignore[method-assign]
    return tries


@scenario
async def test_the_removal_of_several_partitions_that_failed_once_is_tried_again() -> None:
    async with running() as cluster:
        node = cluster.nodes[1]
        exhausted: list[int] = []
        node.manager.exhausted = lambda: exhausted.append(1)
        fail(node, 1)
        await deleted(cluster, partitions=2)
        await until(lambda: node.removed == [TOPIC])
        assert (exhausted, node.removals, node.manager._replicas) == ([1], ["t"], {})


@scenario
async def test_a_removal_that_keeps_failing_is_tried_after_longer_and_longer_pauses() -> None:
    async with running() as cluster:
        tries = fail(cluster.nodes[1], EVER)
        await deleted(cluster)
        await until(lambda: tries[0] == 1)
        began = asyncio.get_running_loop().time()
        await until(lambda: tries[0] == 3)
        assert asyncio.get_running_loop().time() - began > 2.9  # 1 s, then 2 s


@scenario
async def test_that_nothing_is_left_is_stored_though_the_store_failed_once() -> None:
    async with running() as cluster:
        node, tries = cluster.nodes[1], [0]

        async def removed(topic_id: TopicId) -> None:
            tries[0] += 1
            if tries[0] == 1:
                raise StorageError("etcd: no answer")
            node.removed.append(topic_id)

        node.manager.removed = removed
        await deleted(cluster)
        await until(lambda: node.removed == [TOPIC])
        assert tries == [2]


@scenario
async def test_who_creates_a_topic_of_the_same_name_waits_for_no_removal_that_fails() -> None:
    # All changes of topics on a broker come one after another: one that waits holds up the others.
    async with running() as cluster:
        node = cluster.nodes[1]
        fail(node, EVER)
        await deleted(cluster)
        state = PartitionState(NODES, NodeId(1), LeaderEpoch(0), NODES, (), "life of 1")
        cluster.commit((PartitionKey(OTHER, 0).text, state.encode()))
        await until(lambda: PartitionKey(OTHER, 0) in node.cluster.partitions)
        async with asyncio.timeout(5):
            await node.manager.opened(Topic(name="t", topic_id=OTHER, partitions=1, settings={}))
        assert (OTHER, 0) not in node.manager._replicas  # the files of the other one are here


@scenario
async def test_who_creates_a_topic_waits_for_no_broker_that_opens_nothing_any_more() -> None:
    async with running() as cluster:
        node, begun = cluster.nodes[1], asyncio.Event()

        async def never(key: Key, name: TopicPartition, epoch: LeaderEpoch) -> Partition | None:
            begun.set()
            await asyncio.Event().wait()
            return None

        node.open_replica = never  # type: ignore[method-assign]
        state = PartitionState(NODES, NodeId(1), LeaderEpoch(0), NODES, (), "life of 1")
        cluster.commit((PartitionKey(TOPIC, 0).text, state.encode()))
        topic = Topic(name="t", topic_id=TOPIC, partitions=1, settings={})
        waiting = asyncio.ensure_future(node.manager.opened(topic))
        await begun.wait()
        assert not waiting.done()
        managing = node.tasks[2]
        managing.cancel()
        async with asyncio.timeout(5):
            await waiting
            await node.manager.opened(topic)


@scenario
async def test_what_was_not_opened_in_this_life_is_removed_before_the_next_topic_of_the_name() -> (
    None
):  # a broker that was away hears of the deletion and of the next topic in one step
    async with running() as cluster:
        node, begun, hold = cluster.nodes[1], asyncio.Event(), asyncio.Event()
        remove = node.remove

        async def held(topic_id: TopicId, name: str) -> None:
            begun.set()
            await hold.wait()
            await remove(topic_id, name)

        node.remove = held  # type: ignore[method-assign]
        state = PartitionState(NODES, NodeId(1), LeaderEpoch(0), NODES, (), "life of 1")
        cluster.commit(
            (PartitionKey(TOPIC, 0).text, state.encode()),
            (f"deleted-topic/{OTHER.hex()}", encoded_deletion("t", NODES)),
        )
        await begun.wait()
        assert (TOPIC, 0) not in node.manager._replicas
        hold.set()
        await until(lambda: cluster.leads(1, 0))
        assert node.removed == [OTHER]


@scenario
async def test_the_next_topic_of_a_name_waits_for_a_removal_that_waits_for_an_opening() -> (
    None
):  # it has a partition that the deleted one did not have: nothing else holds that name
    async with running() as cluster:
        node, begun, hold = cluster.nodes[1], asyncio.Event(), asyncio.Event()
        opened: list[Key] = []
        open_replica = node.open_replica

        async def held(key: Key, name: TopicPartition, epoch: LeaderEpoch) -> Partition | None:
            opened.append(key)
            begun.set()
            await hold.wait()
            return await open_replica(key, name, epoch)

        node.open_replica = held  # type: ignore[method-assign]
        state = PartitionState(NODES, NodeId(1), LeaderEpoch(0), NODES, (), "life of 1").encode()
        cluster.commit((PartitionKey(TOPIC, 0).text, state))
        await begun.wait()
        gone = (PartitionKey(TOPIC, 0).text, None)
        cluster.commit((f"deleted-topic/{TOPIC.hex()}", encoded_deletion("t", NODES)), gone)
        cluster.commit((PartitionKey(OTHER, 1).text, state))
        await until(lambda: PartitionKey(OTHER, 1) in node.cluster.partitions)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert opened == [(TOPIC, 0)]
        hold.set()
        await until(lambda: len(opened) == 2)
        assert (node.removed, opened) == ([TOPIC], [(TOPIC, 0), (OTHER, 1)])


@scenario
async def test_a_start_that_cannot_remove_a_deleted_topic_opens_the_others() -> None:
    cluster = Cluster()
    cluster.register()
    cluster.commit((f"deleted-topic/{OTHER.hex()}", encoded_deletion("gone", NODES)))
    cluster.lead(1)
    node = cluster.nodes[1]
    tries = fail(node, EVER)
    await node.start()
    await until(lambda: tries[0] and cluster.leads(1, 0))
    assert node.removed == []
    await node.stop()
    for other in (2, 3):
        await cluster.hosts[NodeId(other)].stop()


async def created(broker: brokers.Broker, indexes: Sequence[int]) -> list[MetadataWrite]:
    """Create a topic on three brokers; return what deletes it."""
    topic = Topic(name="t", topic_id=TOPIC, partitions=len(indexes), settings={})
    state = PartitionState(NODES, NodeId(1), LeaderEpoch(0), NODES, (), broker.life)
    keys = [PartitionKey(TOPIC, index).text for index in indexes]
    writes = [MetadataWrite(key, state.encode()) for key in keys[1:]]
    assert broker.store.commit([MetadataWrite("topic/t", topic.encode()), *writes])
    await until(lambda: all(broker.logs.get("t", index) for index in indexes))
    return [
        MetadataWrite(f"deleted-topic/{TOPIC.hex()}", encoded_deletion("t", NODES)),
        *(MetadataWrite(key, None) for key in ("topic/t", *keys)),
    ]


@pytest.mark.slow
@scenario
async def test_a_topic_that_is_deleted_on_a_full_disk_goes_when_there_is_room() -> None:
    async with brokers.running() as cluster:
        broker = cluster[1]
        deletion = await created(broker, range(2))
        broker.produce(b"a")
        await until(lambda: broker.committed(1))
        await broker.logs.checkpoint()
        is_full, refused = True, []

        def gate(verb: str, name: str, size: int) -> Fault | None:
            if is_full and verb in {"append", "create"}:
                refused.append(name)
                return Fault(NO_SPACE)
            return None

        broker.disk.gate = gate
        assert broker.store.commit(deletion)
        await until(lambda: bool(refused) and cluster[2].removed == cluster[3].removed == [TOPIC])
        assert broker.removed == []
        is_full = False
        await until(lambda: broker.removed == [TOPIC])
        assert await broker.logs.present() == set()
