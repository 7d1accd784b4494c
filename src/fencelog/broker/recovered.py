"""What a start does about transactions that recovery finds open and no coordinator lists (E17).

It can only happen where the coordinator's record of the enlistment is gone while the data survived.
Left alone such a transaction would hold the last stable offset for ever.
"""

import logging

from fencelog.broker.coordinator_runtime import CoordinatorRuntime
from fencelog.broker.fates import fate_of
from fencelog.broker.log_flusher import LogFlusher
from fencelog.broker.log_manager import LogManager
from fencelog.broker.partition import Partition
from fencelog.coordination.fate import Fate
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import StorageError
from fencelog.log.values import Appended, MarkerToWrite, OpenTransaction
from fencelog.ports import WallClock
from fencelog.types import CoordinatorEpoch, ProducerId, TopicPartition

log = logging.getLogger(__name__)


class RecoveredTransactions:
    """Ends unlisted open transactions with the recorded decision, else with an abort."""

    def __init__(
        self,
        transactions: CoordinatorRuntime[TransactionShard],
        versioned: CoordinatorRuntime[VersionedShard],
        *,
        flusher: LogFlusher,
        clock: WallClock,
    ) -> None:
        """All shards that have records must be loaded."""
        self._transactions = transactions
        self._versioned = versioned
        self._shards = (*transactions.loaded(), *versioned.loaded())
        self._flusher = flusher
        self._clock = clock

    async def settle(self, logs: LogManager) -> bool:
        """Look at every open transaction of every partition; whether the shards can tell.

        One that a failed disk has taken out of service since lists nothing any more, and what it
        had decided must not be undone.
        """
        for partition in logs.partitions():
            in_service = {*self._transactions.loaded(), *self._versioned.loaded()}
            if not in_service.issuperset(self._shards):
                return False
            markers = [
                self._marker(each, commit=fate is Fate.COMMIT)
                for each in partition.log.open_transactions()
                if (fate := self._fate(each.producer_id, partition.name)) is not Fate.LISTED
            ]
            if markers:
                await self._end(partition, markers)
        return True

    def _fate(self, producer_id: ProducerId, name: TopicPartition) -> Fate:
        return fate_of(self._transactions.loaded(), self._versioned.loaded(), producer_id, name)

    @staticmethod
    def _marker(open_transaction: OpenTransaction, *, commit: bool) -> MarkerToWrite:
        return MarkerToWrite(
            producer_id=open_transaction.producer_id,
            producer_epoch=open_transaction.producer_epoch,
            commit=commit,
            coordinator_epoch=max(open_transaction.coordinator_epoch, CoordinatorEpoch(0)),
        )

    async def _end(self, partition: Partition, markers: list[MarkerToWrite]) -> None:
        log.warning("%s: ending %d transactions that nobody lists", partition.name, len(markers))
        outcome = partition.append_markers(markers, now_ms=self._clock.now_ms())
        if isinstance(outcome, Appended):
            self._flusher.dirty(partition)
            try:
                await partition.purgatory.committed(outcome.end_offset)
            except StorageError:
                return  # told already, and this partition's writers will be
        else:
            log.error("%s takes no marker: %s", partition.name, outcome)
