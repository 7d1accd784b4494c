"""The operator of a simulated cluster, for what its brokers must not decide by themselves.

In ``os`` mode a broker whose machine lost power leaves the in-sync and the eligible replicas: it
may have lost records. A partition that nobody is left for waits for its operator, who can compare
the logs. Where any replica still has all that is committed, it is the one whose last batch has the
highest leader epoch, and of these the one whose log ends last.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from fencelog.broker.metadata.catalog import TOPIC_PREFIX, Topic
from fencelog.broker.metadata.placement import ElectionType
from fencelog.coordination.controller.model import (
    BROKER_PREFIX,
    NO_LEADER,
    PARTITION_PREFIX,
    PartitionState,
    Registration,
)
from fencelog.log.partition_log import PartitionLog
from fencelog.types import NodeId, TopicId, TopicPartition
from fencelog_sim.world.world import World

LOOK_S = 1.0
ANSWER_S = 5.0
"""How long the operator waits for a broker that may be paused or cut off from the store."""


class _Waiting(NamedTuple):
    """A partition that only its operator can help."""

    topic_id: TopicId
    name: TopicPartition
    replicas: tuple[NodeId, ...]


class Operator:
    """Elects leaders for partitions that wait for it."""

    def __init__(self, world: World) -> None:
        """Nothing is looked at before ``run``."""
        self._world = world

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Elect where all replicas are there to be compared: the best one's broker is asked."""
        brokers = self._registered()
        for waiting in list(self._waiting()):
            logs = {each: self._log(each, waiting.name) for each in waiting.replicas}
            open_logs = {n: log for n, log in logs.items() if log is not None and n in brokers}
            if open_logs.keys() != logs.keys():
                continue
            best = max(open_logs, key=lambda n: _progress(open_logs[n]))
            node = self._world.hosts[best - 1].node
            if node is not None and node.broker.elections is not None:
                # What is refused, or not answered, is looked at again.
                with suppress(TimeoutError):
                    async with asyncio.timeout(ANSWER_S):
                        await node.broker.elections.elect(
                            waiting.topic_id, waiting.name.partition, ElectionType.UNCLEAN, best
                        )

    def _registered(self) -> set[NodeId]:
        cells = self._world.store.cells(BROKER_PREFIX)
        return {Registration.decode(key, value).node_id for key, value, _ in cells}

    def _waiting(self) -> Iterator[_Waiting]:
        topics = {
            topic.topic_id.hex(): topic
            for key, value, _ in self._world.store.cells(TOPIC_PREFIX)
            for topic in [Topic.decode(key.removeprefix(TOPIC_PREFIX), value)]
        }
        for key, value, _ in self._world.store.cells(PARTITION_PREFIX):
            state = PartitionState.decode(key, value)
            topic_id, _, index = key.removeprefix(PARTITION_PREFIX).partition("/")
            topic = topics.get(topic_id)  # None: it is being deleted
            if topic and state.leader == NO_LEADER and not (state.isr or state.eligible):
                name = TopicPartition(topic.name, int(index))
                yield _Waiting(topic.topic_id, name, state.replicas)

    def _log(self, number: NodeId, name: TopicPartition) -> PartitionLog | None:
        """What a running broker has of a partition; None if that is not open."""
        node = self._world.hosts[number - 1].node
        replica = None if node is None else node.broker.logs.replica(name)
        return None if replica is None else replica.log


def _progress(log: PartitionLog) -> tuple[int, int]:
    return log.last_epoch, log.log_end_offset
