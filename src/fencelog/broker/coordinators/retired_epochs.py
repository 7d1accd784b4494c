"""Epochs that a transaction coordinator has perhaps lost are not given out again (E4, E7).

After an operator has elected a replica that may lack committed records, partitions may have later
epochs than the coordinator knows: a new producer's records would pass for those of an earlier one,
and be acknowledged and not stored. Each transactional id gets a new producer id then, when its
producer begins anew; ids that the coordinator does not know at all get one anyway.
"""

import logging

from fencelog.broker.background import Background
from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.metadata.catalog import TRANSACTION_TOPIC, Catalog
from fencelog.broker.metadata.cluster_state import ClusterState, PartitionKey, unclean_key
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.errors import StorageError
from fencelog.ports import MetadataStore, MetadataWrite, WallClock

log = logging.getLogger(__name__)


class RetiredEpochs:
    """Retires the producer ids of shards that were elected uncleanly."""

    def __init__(
        self,
        transactions: CoordinatorRuntime[TransactionShard],
        catalog: Catalog,
        state: ClusterState,
        store: MetadataStore,
        clock: WallClock,
    ) -> None:
        """Look at each shard that is loaded from now on."""
        self._transactions = transactions
        self._catalog = catalog
        self._state = state
        self._store = store
        self._clock = clock
        self._background = Background()
        transactions.on_loaded = self.loaded

    def loaded(self, loaded: Loaded[TransactionShard]) -> None:
        """Decide before the shard answers anything. Raises NotLeaderError."""
        topic = self._catalog.get(TRANSACTION_TOPIC)
        assert topic is not None, loaded.partition.name
        key = unclean_key(PartitionKey(topic.topic_id, loaded.index))
        version = self._state.versions.get(key)
        if version is None:
            return
        log.warning(
            "%s: an operator has elected this replica, which may lack records: all transactional "
            "ids in it get new producer ids",
            loaded.partition.name,
        )
        self._transactions.decide_then(
            loaded,
            lambda shard, now: shard.retire_all(wall_ms=self._clock.now_ms()),
            lambda response: self._background.begin(self._seen_to(key, version)),
        )

    async def stop(self) -> None:
        """Cancel what is under way; the next load does it again, which does no harm."""
        await self._background.stop()

    async def _seen_to(self, key: str, version: int) -> None:
        try:
            await self._store.commit([MetadataWrite(key, None, version)])
        except StorageError as error:
            log.warning("%s stays until the next load: %s", key, error)
