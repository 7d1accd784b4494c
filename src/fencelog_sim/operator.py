"""The operator of a simulated cluster, for what its brokers must not decide by themselves.

In ``os`` mode a broker whose machine lost power leaves the in-sync and the eligible replicas: it
may have lost records. A partition that nobody is left for waits for its operator, who can compare
the logs. Where any replica still has all that is committed, it is the one whose last batch has the
highest leader epoch, and of these the one whose log ends last.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from fencelog.broker.metadata.catalog import TOPIC_PREFIX, Topic
from fencelog.coordination.controller.model import (
    BROKER_PREFIX,
    NO_LEADER,
    PARTITION_PREFIX,
    PartitionState,
    Registration,
)
from fencelog.coordination.controller.rules import LiveBroker, UncleanElection, unclean
from fencelog.log.partition_log import PartitionLog
from fencelog.ports import MetadataWrite
from fencelog.types import NodeId, TopicPartition
from fencelog_sim.world.world import World

LOOK_S = 1.0


class _Waiting(NamedTuple):
    """A partition that only its operator can help, as it is stored."""

    key: str
    name: TopicPartition
    state: PartitionState
    version: int


class Operator:
    """Elects leaders for partitions that wait for it."""

    def __init__(self, world: World) -> None:
        """Nothing is looked at before ``run``."""
        self._world = world

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Elect where all replicas are there to be compared."""
        brokers = self._brokers()
        for waiting in self._waiting():
            logs = {each: self._log(each, waiting.name) for each in waiting.state.replicas}
            open_logs = {n: log for n, log in logs.items() if log is not None and n in brokers}
            if open_logs.keys() != logs.keys():
                continue
            best = max(open_logs, key=lambda n: _progress(open_logs[n]))
            election = unclean(waiting.state, best, brokers)
            assert isinstance(election, UncleanElection), election
            write = MetadataWrite(waiting.key, election.state.encode(), waiting.version)
            self._world.store.commit([write])

    def _brokers(self) -> dict[NodeId, LiveBroker]:
        cells = self._world.store.cells(BROKER_PREFIX)
        live = [LiveBroker(Registration.decode(key, value), at) for key, value, at in cells]
        return {each.registration.node_id: each for each in live}

    def _waiting(self) -> Iterator[_Waiting]:
        topics = {
            topic.topic_id.hex(): topic.name
            for key, value, _ in self._world.store.cells(TOPIC_PREFIX)
            for topic in [Topic.decode(key.removeprefix(TOPIC_PREFIX), value)]
        }
        for key, value, version in self._world.store.cells(PARTITION_PREFIX):
            state = PartitionState.decode(key, value)
            topic_id, _, index = key.removeprefix(PARTITION_PREFIX).partition("/")
            if state.leader == NO_LEADER and not (state.isr or state.eligible):
                yield _Waiting(key, TopicPartition(topics[topic_id], int(index)), state, version)

    def _log(self, number: NodeId, name: TopicPartition) -> PartitionLog | None:
        """What a running broker has of a partition; None if that is not open."""
        node = self._world.hosts[number - 1].node
        replica = None if node is None else node.broker.logs.replica(name)
        return None if replica is None else replica.log


def _progress(log: PartitionLog) -> tuple[int, int]:
    return log.last_epoch, log.log_end_offset
