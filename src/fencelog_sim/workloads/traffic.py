"""A workload whose players all have the same habit, on one client library."""

from collections.abc import Callable
from dataclasses import dataclass

from fencelog.check.history import Event
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.library import OpenLibrary
from fencelog_sim.workloads.own import open_cluster
from fencelog_sim.workloads.player import Habit, Player
from fencelog_sim.workloads.settling import come_to_rest, end_transactions, insist, read_all
from fencelog_sim.workloads.topics import Generations


@dataclass
class Traffic:
    """``name`` is also the prefix of its topics and transactional ids."""

    name: str
    library: OpenLibrary
    habit: Habit
    checker: Callable[[list[Event]], list[str]]
    may_lose: bool = False
    expires: bool = False

    async def prepare(self, stage: Stage) -> None:
        """Create the first topic."""
        cluster = open_cluster(stage)
        try:
            await insist(stage, "first topic", Generations(cluster, self.name, stage.scale).first)
        finally:
            await cluster.close()

    async def client(self, stage: Stage, index: int) -> None:
        """Do operations until the stage stops."""
        cluster = open_cluster(stage)
        library = self.library(stage)
        topics = Generations(cluster, self.name, stage.scale)
        player = Player(stage, library, topics, self._transactional_id(index), self.habit)
        try:
            await player.play()
        finally:
            await player.close()
            await library.close()
            await cluster.close()

    async def settle(self, stage: Stage) -> None:
        """Fence all clients and read everything."""
        cluster = open_cluster(stage)
        topics = Generations(cluster, self.name, stage.scale)
        try:
            identifiers = [self._transactional_id(index) for index in range(stage.scale.clients)]
            await end_transactions(stage, cluster, identifiers)
            await insist(stage, "list of topics", topics.find)
            ends = await come_to_rest(stage, cluster, topics.partitions())
            await read_all(stage, cluster, ends)
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """The problems that the workload's own checker finds."""
        return self.checker(events)

    def _transactional_id(self, index: int) -> str:
        return f"{self.name}-{index}"
