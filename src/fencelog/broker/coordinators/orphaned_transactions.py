"""Open transactions that no coordinator lists, found at a start and ended there (E7, E17).

There are such only where a coordinator's records are gone while the data survived: in ``os`` mode a
power cut may set one file back and not the other. A transaction that no coordinator lists would
hold the last stable offset for ever, and an epoch that is given out twice would make new records
pass for old ones.
"""

import logging

from fencelog.broker.coordinators.leaders import Leaders
from fencelog.broker.coordinators.outcomes import Outcomes
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import EPOCH_MAX, ProducerIdAndEpoch
from fencelog.errors import NotLeaderError, StorageError
from fencelog.log.values import MarkerToWrite, OpenTransaction, Rejected
from fencelog.ports import WallClock
from fencelog.types import CoordinatorEpoch, ProducerId, TopicPartition

log = logging.getLogger(__name__)


class OrphanedTransactions:
    """Ends unlisted open transactions with the recorded decision, else with an abort (E17)."""

    def __init__(
        self,
        logs: LogManager,
        leaders: Leaders,
        transactions: CoordinatorRuntime[TransactionShard],
        clock: WallClock,
    ) -> None:
        """Nothing was found yet."""
        self._logs = logs
        self._leaders = leaders
        self._transactions = transactions
        self._clock = clock
        self._unlisted: set[ProducerId] = set()

    async def end(self) -> bool:
        """End every open transaction that nobody lists; whether the coordinators can tell.

        One that a failed disk has taken out of service lists nothing any more, and what it had
        decided must not be undone.
        """
        try:
            outcomes = await self._leaders.outcomes()
            for partition in self._logs.partitions():
                markers = _markers(partition, outcomes)
                if markers:
                    self._unlisted.update(each.producer_id for each in markers)
                    await self._append(partition, markers)
        except NotLeaderError:
            return False
        return True

    async def retire(self) -> None:
        """Let coordinators give out nothing more under an id that the logs know better.

        Whose transaction was ended unlisted must not go on with it, either.
        """
        seen = dict.fromkeys(self._unlisted, EPOCH_MAX)
        for partition in self._logs.partitions():
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

    async def _append(self, partition: Partition, markers: list[MarkerToWrite]) -> None:
        log.warning("%s: ending %d transactions that nobody lists", partition.name, len(markers))
        outcome = partition.append_markers(markers, now_ms=self._clock.now_ms())
        if isinstance(outcome, Rejected):
            log.error("%s takes no marker: %s", partition.name, outcome)
            return
        try:
            await partition.committed(outcome.end_offset)
        except StorageError:
            return  # told already, and this partition's writers will be


def _markers(partition: Partition, outcomes: Outcomes) -> list[MarkerToWrite]:
    """The markers of the transactions that are open on a partition and that nobody lists."""
    return [
        _marker(each, commit=outcome is TransactionOutcome.COMMIT)
        for each in partition.log.open_transactions()
        if (outcome := _outcome(each, partition.name, outcomes)) is not TransactionOutcome.LISTED
    ]


def _outcome(
    found: OpenTransaction, name: TopicPartition, outcomes: Outcomes
) -> TransactionOutcome:
    return outcomes.of(ProducerIdAndEpoch(found.producer_id, found.producer_epoch), name)


def _marker(found: OpenTransaction, *, commit: bool) -> MarkerToWrite:
    return MarkerToWrite(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        commit=commit,
        coordinator_epoch=max(found.coordinator_epoch, CoordinatorEpoch(0)),
    )


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
