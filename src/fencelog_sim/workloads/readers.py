"""Reader groups: a stream is copied by readers that come, go and die, while it is resized.

Beside what clients do in the workload ``streams``, each is a reader of one group. It writes the
events that it is given to another topic, in a transaction with their position. At the end every
event that is in the stream is in the copy once, and each key's in the stream's order
(``stream_copies``).
"""

import asyncio

from fencelog.check.history import Event
from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.types import TopicPartition
from fencelog_sim.workload import Stage
from fencelog_sim.workloads.own import ERRORS, open_cluster, read_records_once
from fencelog_sim.workloads.settling import come_to_rest, insist
from fencelog_sim.workloads.stream_client import StreamClient, rows_of
from fencelog_sim.workloads.stream_copier import OUTPUT, keep_copying
from fencelog_sim.workloads.stream_copies import problems_of_copy
from fencelog_sim.workloads.stream_resizer import keep_resizing
from fencelog_sim.workloads.streams import Streams, act
from fencelog_sim.workloads.topics import ensure_topic

PARTITIONS = [TopicPartition(OUTPUT, 0), TopicPartition(OUTPUT, 1)]
COPY_S = 140.0
"""How long a last reader may take for what is left, once nothing disturbs it."""
COUNT_EVERY_S = 1.0


class Readers(Streams):
    """The workload; client ``index`` is reader ``r<index>``."""

    name = "readers"

    async def prepare(self, stage: Stage) -> None:
        """Create the stream and the topic of its copy."""
        await super().prepare(stage)
        cluster = open_cluster(stage)
        try:
            await insist(
                stage, f"topic {OUTPUT}", lambda: ensure_topic(cluster, OUTPUT, len(PARTITIONS))
            )
        finally:
            await cluster.close()

    async def client(self, stage: Stage, index: int) -> None:
        """Write, resize and copy until the stage stops."""

        async def is_over() -> bool:
            return stage.stopping

        writer = StreamClient(stage, index, 0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(act(stage, writer))
            tasks.create_task(keep_resizing(stage, writer.cut))
            tasks.create_task(keep_copying(stage, f"r{index}", is_over))

    async def settle(self, stage: Stage) -> None:
        """Read the stream once all is decided, let one reader copy the rest, and read the copy."""
        count = await self.read_stream(stage)
        cluster, ends_at = open_cluster(stage), stage.now() + COPY_S

        async def is_copied() -> bool:
            await asyncio.sleep(COUNT_EVERY_S)
            try:
                rows = await _read_copy(cluster)
            except ERRORS:
                return False
            return sum(map(len, rows.values())) >= count or stage.now() > ends_at

        try:
            await keep_copying(stage, "last", is_copied, is_last=True)
            await come_to_rest(stage, cluster, PARTITIONS)
            rows = await insist(stage, "read of the copy", lambda: _read_copy(cluster))
            for partition, found in rows.items():
                stage.history.note(what="copy", partition=partition.partition, rows=found)
        finally:
            await cluster.close()

    def check(self, events: list[Event]) -> list[str]:
        """What is wrong with the stream, and with its copy."""
        return [*super().check(events), *problems_of_copy(events)]


async def _read_copy(cluster: Cluster) -> dict[TopicPartition, list[list[object]]]:
    """Return what the copy has, as far as it is committed. Raises one of ERRORS."""
    ends = await Admin(cluster).offsets(PARTITIONS, "latest", "transactional")
    found: dict[TopicPartition, list[list[object]]] = {}
    for partition, end in ends.items():
        position, rows = 0, found.setdefault(partition, [])
        while position < end:
            records, position = await read_records_once(cluster, partition, position, end)
            rows += rows_of(records)
    return found


def readers() -> Readers:
    """The workload on fencelog's own client."""
    return Readers()
