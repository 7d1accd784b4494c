"""What a start does where the logs know more than the coordinators (E7, E17).

It can only happen where a coordinator's records are gone while the data survived: in ``os`` mode a
power cut may set one file back and not the other. A transaction that no coordinator lists would
hold the last stable offset for ever, and an epoch that is given out twice would make new records
pass for old ones.
"""

import logging

from fencelog.broker.coordinators.outcomes import transaction_outcome
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import EPOCH_MAX, ProducerIdAndEpoch
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import NotLeaderError, StorageError
from fencelog.log.values import Appended, MarkerToWrite, OpenTransaction
from fencelog.ports import WallClock
from fencelog.types import CoordinatorEpoch, ProducerId, TopicPartition

log = logging.getLogger(__name__)


class OrphanedTransactions:
    """Ends unlisted open transactions with the recorded decision, else with an abort (E17)."""

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
        self._unlisted: set[ProducerId] = set()

    async def settle(self, logs: LogManager) -> bool:
        """End every open transaction that nobody lists; whether the shards can tell.

        One that a failed disk has taken out of service since lists nothing any more, and what it
        had decided must not be undone.
        """
        for partition in logs.partitions():
            in_service = {*self._transactions.loaded(), *self._versioned.loaded()}
            if not in_service.issuperset(self._shards):
                return False
            markers = [
                self._marker(each, commit=outcome is TransactionOutcome.COMMIT)
                for each in partition.log.open_transactions()
                if (outcome := self._outcome(each, partition.name)) is not TransactionOutcome.LISTED
            ]
            if markers:
                self._unlisted.update(each.producer_id for each in markers)
                await self._end(partition, markers)
        return True

    async def retire(self, logs: LogManager) -> None:
        """Let coordinators give out nothing more under an id that the logs know better.

        Whose transaction was ended unlisted must not go on with it, either.
        """
        seen = dict.fromkeys(self._unlisted, EPOCH_MAX)
        for partition in logs.partitions():
            for each in partition.log.producers():
                known = seen.get(each.producer_id, each.producer_epoch)
                seen[each.producer_id] = max(known, each.producer_epoch)
        for loaded in self._transactions.loaded():
            try:
                await self._transactions.decide_on(
                    loaded, lambda shard, now: shard.retire(seen, wall_ms=self._clock.now_ms())
                )
            except NotLeaderError as error:
                log.warning("%s", error)

    def _outcome(self, found: OpenTransaction, name: TopicPartition) -> TransactionOutcome:
        producer = ProducerIdAndEpoch(found.producer_id, found.producer_epoch)
        return transaction_outcome(
            self._transactions.loaded(), self._versioned.loaded(), producer, name
        )

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


def highest_coordinator_epoch(logs: LogManager) -> CoordinatorEpoch:
    """The highest that any marker told which a log still knows, -1 without one (E17)."""
    return max(
        (
            each.coordinator_epoch
            for partition in logs.partitions()
            for each in partition.log.producers()
        ),
        default=CoordinatorEpoch(-1),
    )
