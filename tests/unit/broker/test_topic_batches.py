"""Topics are created and deleted together, and a crash leaves no half topic."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import product
from random import Random

import pytest

from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.controller import NewTopic
from fencelog.errors import ErrorCode, RequestError
from fencelog.node import Node, Ports
from fencelog.types import Offset
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from fencelog_sim.world.disk import READING, Loss, SimDisk
from fencelog_sim.world.gate import Fault
from fencelog_sim.world.metadata import SimMetadata
from tests.support.node import Peer, World, batch

NAMES = [f"t{number}" for number in range(40)]
NEW = [NewTopic(name, 2, {}) for name in ("a", "b", "c")]
READING_METADATA = ("get", "list")


def new_topics(names: list[str]) -> list[CreatableTopic]:
    return [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]


async def test_topics_of_one_request_are_created_and_deleted_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    commit, listed = SqliteMetadata.commit, SimDisk.list

    async def counted_commit(self: SqliteMetadata, writes: object) -> bool:
        counts["commits"] += 1
        return await commit(self, writes)  # type: ignore[arg-type]

    async def counted_list(self: SimDisk, path: str) -> list[str]:
        counts["lists"] += path == ""
        return await listed(self, path)

    monkeypatch.setattr(SqliteMetadata, "commit", counted_commit)
    monkeypatch.setattr(SimDisk, "list", counted_list)
    async with world.node() as node, Peer.of(node) as peer:
        counts.clear()
        request = CreateTopicsRequest(topics=new_topics(NAMES))
        created = await peer.ask(request, 7, CreateTopicsResponse)
        assert {topic.error_code for topic in created.topics} == {0}
        assert counts == {"commits": 2, "lists": 1}, "the topics, and that their files are durable"
        counts.clear()
        world.disk.operations = []
        asked = [DeleteTopicState(name=name) for name in NAMES]
        deleted = await peer.ask(DeleteTopicsRequest(topics=asked), 6, DeleteTopicsResponse)
        assert [each.name for each in deleted.responses] == NAMES
        assert {each.error_code for each in deleted.responses} == {0}
        assert counts["commits"] == 2, "the deletions begin, and end"
        assert counts["lists"] <= 2, "for what is there, and for what is to be deleted"
        assert world.disk.operations.count(("sync_directory", "")) == 1
        assert node.broker.catalog.partition_total == 0


async def test_topics_that_collide_in_one_request_are_not_both_created(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        request = CreateTopicsRequest(topics=new_topics(["a.b", "a_b", "c"]))
        answer = await peer.ask(request, 7, CreateTopicsResponse)
        errors = [ErrorCode(topic.error_code) for topic in answer.topics]
        assert errors == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]


async def test_topics_of_one_request_share_the_limit_for_partitions(world: World) -> None:
    async with world.node(partitions_max=5) as node, Peer.of(node) as peer:
        request = CreateTopicsRequest(topics=new_topics(["a", "b", "c"]))
        answer = await peer.ask(request, 7, CreateTopicsResponse)
        errors = [ErrorCode(topic.error_code) for topic in answer.topics]
        assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


async def test_a_topic_that_one_request_deletes_twice_is_unknown_the_second_time(
    world: World,
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("a")
        topics = [DeleteTopicState(name="a"), DeleteTopicState(name="a")]
        answer = await peer.ask(DeleteTopicsRequest(topics=topics), 6, DeleteTopicsResponse)
        errors = [ErrorCode(each.error_code) for each in answer.responses]
        assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


# -- crashes -------------------------------------------------------------------------------------


class Machine:
    """A node whose power is cut in a change, at the n-th write to disk or metadata."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.metadata = SimMetadata()
        self.node: Node | None = None

    async def start(self) -> Node:
        ports = Ports(
            disk=self.disk, metadata=self.metadata, clock=SystemClock(), random=SystemRandom()
        )
        self.node = Node(BrokerConfig(data_dir="memory", port=0), ports)
        await self.node.start()
        return self.node

    async def run_and_cut(self, change: Awaitable[object], at: int, seed: int) -> bool:
        """Let every write of a change fail from this one on, then cut the power; False if none."""
        left = at

        def gate(verb: str, _path: str, _size: int) -> Fault | None:
            nonlocal left
            if verb in READING or verb in READING_METADATA:
                return None
            left -= 1
            return Fault(done=seed) if left < 0 else None

        self.disk.gate = self.metadata.gate = gate
        with suppress(RequestError):
            await change
        assert self.node is not None
        await World._drop(self.node)
        self.metadata = self.metadata.power_loss(Random(seed))
        self.disk = self.disk.power_loss(Loss.TORN, Random(seed))
        return left < 0

    async def stop(self) -> None:
        assert self.node is not None
        await self.node.stop()


def whole(node: Node) -> set[str]:
    """The topics; each has all its partitions, and nothing else is there."""
    assert not node.logs.offline()
    names = {partition.name for partition in node.logs.partitions()}
    assert names == {name for each in node.broker.catalog.topics() for name in each.partition_names}
    return {topic.name for topic in node.broker.catalog.topics()}


async def cut_everywhere(
    before: list[NewTopic], change: Callable[[Node], Awaitable[object]]
) -> set[frozenset[str]]:
    """Cut the power at each write of a change; return the topics that each next start finds."""
    found: set[frozenset[str]] = set()
    for at, seed in product(range(1_000), range(2)):
        machine = Machine()
        node = await machine.start()
        await node.broker.controller.create_topics(before)
        for partition in node.logs.partitions():
            partition.append_records(memoryview(batch("kept")), now_ms=0)
            await partition.committed(Offset(1))
        was_cut = await machine.run_and_cut(change(node), at, seed)
        node = await machine.start()
        topics = whole(node)
        found.add(frozenset(topics))
        ends = {partition.log.log_end_offset for partition in node.logs.partitions()}
        assert ends <= {1 if before else 0}, "a topic that is there has its records"
        again = await node.broker.controller.create_topics(NEW)
        refused = {each.code for each in again if isinstance(each, RequestError)}
        assert refused <= {ErrorCode.TOPIC_ALREADY_EXISTS}
        assert whole(node) == {"a", "b", "c"}
        if node.logs._deleting is not None:
            await node.logs._deleting
        await machine.stop()
        left = [name for name in await machine.disk.list("") if name.endswith("-delete")]
        assert not left
        if not was_cut:
            return found
    raise AssertionError("the change never ends")


def test_a_power_cut_in_a_deletion_leaves_all_topics_or_none() -> None:  # D1
    found = asyncio.run(
        cut_everywhere(
            NEW,
            lambda node: node.broker.controller.delete_topics(
                [topic for topic in node.broker.catalog.topics() if topic.name != "c"]
            ),
        )
    )
    assert found == {frozenset("abc"), frozenset("c")}


@pytest.mark.slow  # many power cuts
def test_a_power_cut_in_a_creation_leaves_whole_topics_only() -> None:  # D1
    found = asyncio.run(cut_everywhere([], lambda node: node.broker.controller.create_topics(NEW)))
    assert found >= {frozenset(), frozenset("abc")}
