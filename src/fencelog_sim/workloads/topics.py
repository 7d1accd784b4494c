"""Topics that give way to the next one when they are full: keys rotate, and few topics are made.

Which one is current need not be agreed on. Who meets an offset beyond the limit makes the next
topic, or finds it made.
"""

from collections.abc import Mapping

from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicPartition
from fencelog_sim.workload import Scale

CONFIGS = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Nothing may be deleted: timestamps are the loop's, not the calendar's."""
BROKERS_DEFAULT = -1


async def ensure_topic(
    cluster: Cluster, name: str, partitions: int, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic unless it is there; it deletes nothing. Raises RequestError."""
    try:
        wanted = {**CONFIGS, **(configs or {})}
        await Admin(cluster).create_topic(name, partitions, wanted, BROKERS_DEFAULT)
    except RequestError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


class Generations:
    """The topics ``prefix-0``, ``prefix-1`` … of one workload, as one client knows them."""

    def __init__(self, cluster: Cluster, prefix: str, scale: Scale) -> None:
        """Know nothing yet."""
        self.cluster = cluster
        self._prefix = prefix
        self._scale = scale
        self.current = 0

    async def first(self) -> None:
        """Make the first one."""
        await ensure_topic(self.cluster, f"{self._prefix}-0", self._scale.partitions)

    async def find(self) -> None:
        """Learn which is current."""
        found = await Admin(self.cluster).topics()
        numbers = [topic.name.removeprefix(f"{self._prefix}-") for topic in found]
        self.current = max((int(number) for number in numbers if number.isdecimal()), default=0)

    async def rotate(self) -> None:
        """Go on to the next one, made here or by another client."""
        name = f"{self._prefix}-{self.current + 1}"
        await ensure_topic(self.cluster, name, self._scale.partitions)
        self.current += 1

    def is_full(self, partition: TopicPartition, offset: int) -> bool:
        """Whether this offset says that the current topic has had its values."""
        current = partition.topic == f"{self._prefix}-{self.current}"
        return current and offset >= self._scale.key_records

    def partition(self, generation: int, number: int) -> TopicPartition:
        """Name one partition."""
        return TopicPartition(f"{self._prefix}-{generation}", number)

    def partitions(self) -> list[TopicPartition]:
        """Name all partitions of all topics so far."""
        return [
            self.partition(generation, number)
            for generation in range(self.current + 1)
            for number in range(self._scale.partitions)
        ]
