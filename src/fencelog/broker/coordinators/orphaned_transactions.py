"""Orphaned transactions: open on a partition, listed by no coordinator; ended at a start (E7, E17).

They exist only if a coordinator's records were lost while the data survived: in ``os`` mode a power
cut may lose the end of one file and not of the other. An orphaned transaction would hold the last
stable offset forever, and an epoch that is assigned twice would make new records look like retries.
"""

import logging
from collections.abc import Collection

from fencelog.broker.coordinators.leaders import Leaders
from fencelog.broker.coordinators.outcomes import OpenOn, Outcomes
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import EPOCH_MAX, ProducerIdAndEpoch
from fencelog.errors import NotLeaderError, StorageError
from fencelog.log.values import MarkerToWrite, OpenTransaction, Rejected
from fencelog.ports import WallClock
from fencelog.types import CoordinatorEpoch, ProducerId

log = logging.getLogger(__name__)


class OrphanedTransactions:
    """Ends orphaned transactions with the recorded decision, else with an abort (E17)."""

    def __init__(
        self,
        logs: LogManager,
        leaders: Leaders,
        transactions: CoordinatorRuntime[TransactionShard],
        clock: WallClock,
    ) -> None:
        """Start without orphaned transactions."""
        self._logs = logs
        self._leaders = leaders
        self._transactions = transactions
        self._clock = clock
        self._unlisted: set[ProducerId] = set()

    async def end(self, partitions: Collection[Partition]) -> bool:
        """End the orphaned transactions of these partitions, which are led here.

        False if a coordinator is not available: one whose disk has failed lists nothing, and its
        decisions must not be undone.
        """
        found = {partition: partition.log.open_transactions() for partition in partitions}
        asked = [_open_on(each, partition) for partition in found for each in found[partition]]
        try:
            outcomes = await self._leaders.outcomes(asked)
            for partition, opened in found.items():
                markers = _markers(partition, opened, outcomes)
                if markers:
                    self._unlisted.update(each.producer_id for each in markers)
                    await self._append(partition, markers)
        except NotLeaderError:
            return False
        return True

    async def retire(self) -> None:
        """Retire producer ids whose epoch in a log is above the coordinator's.

        Also those of orphaned transactions: their producers must not continue them.
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
        log.warning("%s: ending %d orphaned transactions", partition.name, len(markers))
        outcome = partition.append_markers(markers, now_ms=self._clock.now_ms())
        if isinstance(outcome, Rejected):
            log.error("%s refused a marker: %s", partition.name, outcome.message)
            return
        try:
            await partition.committed(outcome.end_offset)
        except StorageError:
            return  # logged already; writes to this partition are refused from now on


def _markers(
    partition: Partition, opened: Collection[OpenTransaction], outcomes: Outcomes
) -> list[MarkerToWrite]:
    """Return the markers that end a partition's orphaned transactions.

    Only of those in ``opened``: no coordinator was asked about any that has begun since.
    """
    still_open = set(partition.log.open_transactions())
    return [
        _marker(each, commit=outcome is TransactionOutcome.COMMIT)
        for each in opened
        if each in still_open
        and (outcome := outcomes.of(*_open_on(each, partition))) is not TransactionOutcome.LISTED
    ]


def _open_on(found: OpenTransaction, partition: Partition) -> OpenOn:
    return OpenOn(ProducerIdAndEpoch(found.producer_id, found.producer_epoch), partition.name)


def _marker(found: OpenTransaction, *, commit: bool) -> MarkerToWrite:
    return MarkerToWrite(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        commit=commit,
        coordinator_epoch=max(found.coordinator_epoch, CoordinatorEpoch(0)),
    )


def highest_coordinator_epoch(logs: LogManager) -> CoordinatorEpoch:
    """Return the highest coordinator epoch of a marker in any log's state, -1 without one (E17)."""
    return max(
        (
            each.coordinator_epoch
            for partition in logs.partitions()
            for each in partition.log.producers()
        ),
        default=CoordinatorEpoch(-1),
    )
