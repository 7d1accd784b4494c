"""What the owner of the replicas needs of the open logs, by the ids of their topics."""

from typing import Protocol

from fencelog.broker.metadata.catalog import OWNERSHIP_TOPIC, Catalog
from fencelog.broker.metadata.settings import Settings
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.opening import Replica
from fencelog.broker.partitions.partition import Partition
from fencelog.broker.replicas.led import Key
from fencelog.errors import CorruptionError
from fencelog.log.config import InvalidConfigError, LogConfig
from fencelog.log.leader_epochs import FIRST_EPOCH
from fencelog.storage.checkpointer import Begin
from fencelog.types import LeaderEpoch, Offset, TopicId, TopicPartition


class Logs(Protocol):
    """Opens, cuts and removes replicas; each method raises StorageError and CorruptionError."""

    def name_of(self, key: Key) -> TopicPartition | None:
        """Return the name of a partition; None if its topic is not known."""
        ...

    async def newer_epoch(self, name: TopicPartition, newest: LeaderEpoch) -> LeaderEpoch | None:
        """Return the last leader epoch of a log if it is above ``newest``, else None."""
        ...

    async def open_replica(
        self, key: Key, name: TopicPartition, leader_epoch: LeaderEpoch
    ) -> Partition | None:
        """Open a replica, a new one if there are no files; None: it is offline."""
        ...

    def is_without_files(self, key: Key) -> bool:
        """Whether the files of a segment are removed, or are to be."""
        ...

    async def remove_files(self, key: Key, name: TopicPartition) -> Partition:
        """Open such a segment anew with its seal alone; its files are removed."""
        ...

    def is_damaged(self, name: TopicPartition) -> bool:
        """Whether a replica is offline because its files are damaged (D3)."""
        ...

    async def truncate(
        self, name: TopicPartition, offset: Offset, leader_epoch: LeaderEpoch
    ) -> Partition:
        """Close a replica and open it anew with nothing from this offset on (F7)."""
        ...

    async def begin_anew(self, name: TopicPartition, begin: Begin | None) -> Partition:
        """Replace a replica by a new one, at this beginning or at offset 0 (E4)."""
        ...

    def raise_start(self, partition: Partition, offset: Offset) -> None:
        """Raise the log start to this offset, or to the high watermark if that is lower (D4)."""
        ...

    async def remove(self, topic_id: TopicId, name: str) -> None:
        """Remove all replicas of a deleted topic, open or not, durably."""
        ...


class OpenLogs:
    """``Logs`` of a broker's log manager, with the settings of the topics."""

    def __init__(self, logs: LogManager, catalog: Catalog, settings: Settings) -> None:
        """``catalog`` and ``settings`` are those that the cluster's metadata are brought to."""
        self._logs = logs
        self._catalog = catalog
        self._settings = settings
        self.newer_epoch = logs.newer_epoch
        self.truncate = logs.truncate
        self.begin_anew = logs.begin_anew
        self.raise_start = logs.raise_start

    def name_of(self, key: Key) -> TopicPartition | None:
        """Return the name of a partition; None if its topic is not known."""
        topic = self._catalog.by_id(TopicId(key[0]))
        return None if topic is None else TopicPartition(topic.name, key[1])

    async def open_replica(
        self, key: Key, name: TopicPartition, leader_epoch: LeaderEpoch
    ) -> Partition | None:
        """Open a replica, a new one if there are no files; None: it is offline."""
        return await self._logs.open_replica(await self._replica(key, name, leader_epoch))

    async def _replica(
        self, key: Key, name: TopicPartition, leader_epoch: LeaderEpoch = FIRST_EPOCH
    ) -> Replica:
        topic = self._catalog.by_id(TopicId(key[0]))
        return Replica(
            name=name,
            topic_id=TopicId(key[0]),
            config=self._config(TopicId(key[0])),
            exists=await self._logs.has_files(name),
            is_always_synced=name.topic == OWNERSHIP_TOPIC,
            leader_epoch=leader_epoch,
            seal=None if topic is None else topic.seal_of(key[1]),
        )

    def is_without_files(self, key: Key) -> bool:
        """Whether the files of a segment are removed, or are to be."""
        topic = self._catalog.by_id(TopicId(key[0]))
        return topic is not None and topic.is_without_files(key[1])

    async def remove_files(self, key: Key, name: TopicPartition) -> Partition:
        """Open such a segment anew with its seal alone; its files are removed."""
        return await self._logs.remove_files(await self._replica(key, name))

    def _config(self, topic_id: TopicId) -> LogConfig:
        topic = self._catalog.by_id(topic_id)
        try:
            return LogConfig() if topic is None else topic.log_config(self._settings.topic_defaults)
        except InvalidConfigError:
            return LogConfig()  # as ``ClusterFeed`` has it

    def is_damaged(self, name: TopicPartition) -> bool:
        """Whether a replica is offline because its files are damaged (D3)."""
        return isinstance(self._logs.offline().get(name), CorruptionError)

    async def remove(self, topic_id: TopicId, name: str) -> None:
        """Remove all replicas of a deleted topic, open or not, durably."""
        present = [each for each in await self._logs.present() if each.topic == name]
        own = [each for each in present if await self._logs.belongs_to(each, topic_id)]
        # A later topic of this name is opened when nothing is left of the deleted one.
        opened = (each for each in self._logs.partitions() if each.name.topic == name)
        own += [each.name for each in opened if not each.log.has_files]
        await self._logs.remove(dict.fromkeys(own, topic_id))
