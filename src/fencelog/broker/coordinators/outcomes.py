"""Outcomes of transactions that are open on a partition, from all coordinators.

An answer is valid only while every shard that has records is loaded: a missing one may be the one
that lists the transaction.
"""

from collections.abc import Sequence
from typing import TypeVar

from fencelog.broker.coordinators.runtime import CoordinatorRuntime, Loaded
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.shard import Shard
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import ProducerIdAndEpoch
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import NotLeaderError
from fencelog.types import TopicPartition

S = TypeVar("S", bound=Shard)


class Outcomes:
    """Outcomes of open transactions, from shards whose decisions so far are committed (E16).

    A shard that was loaded for the first time since then is asked, too: it may list a transaction.
    """

    def __init__(
        self,
        transactions: CoordinatorRuntime[TransactionShard],
        versioned: CoordinatorRuntime[VersionedShard],
        committed: Sequence[Loaded[TransactionShard] | Loaded[VersionedShard]],
    ) -> None:
        """See ``committed_outcomes``."""
        self._transactions = transactions
        self._versioned = versioned
        self._committed = committed

    def of(self, producer: ProducerIdAndEpoch, partition: TopicPartition) -> TransactionOutcome:
        """Return the outcome of this producer's open transaction on a partition (rule E17).

        A shard that lists it comes first, then a recorded commit; otherwise it is an abort. Raises
        NotLeaderError if a shard was unloaded meanwhile: its decisions are unknown then.
        """
        lost = [each.partition.name for each in self._committed if each.dropped]
        if lost:
            raise NotLeaderError(f"{lost[0]} was unloaded")
        outcomes = {each.shard.outcome(producer, partition) for each in self._transactions.loaded()}
        outcomes |= {
            each.shard.outcome(producer.producer_id, partition) for each in self._versioned.loaded()
        }
        for outcome in (TransactionOutcome.LISTED, TransactionOutcome.COMMIT):
            if outcome in outcomes:
                return outcome
        return TransactionOutcome.ABORT


async def committed_outcomes(
    transactions: CoordinatorRuntime[TransactionShard],
    versioned: CoordinatorRuntime[VersionedShard],
    logs: LogManager,
) -> Outcomes:
    """Load every shard of both coordinators and wait until their decisions are committed.

    Raises NotLeaderError if one cannot be loaded: without it no outcome is certain.
    """
    committed: list[Loaded[TransactionShard] | Loaded[VersionedShard]] = [
        *await _committed_shards(transactions, logs),
        *await _committed_shards(versioned, logs),
    ]
    return Outcomes(transactions, versioned, committed)


async def _committed_shards(runtime: CoordinatorRuntime[S], logs: LogManager) -> list[Loaded[S]]:
    shards = await all_shards(runtime, logs)
    for each in shards:
        await each.partition.committed(each.partition.log.log_end_offset)
    return shards


async def all_shards(runtime: CoordinatorRuntime[S], logs: LogManager) -> list[Loaded[S]]:
    """Return every shard that has records, each loaded when this returns.

    Raises NotLeaderError if one cannot be loaded: without it no answer is complete.
    """
    wanted = {
        index
        for index in range(runtime.partition_count)
        if logs.find(TopicPartition(runtime.topic, index)) is not None
    }
    for index in sorted(wanted):
        await runtime.load(index)
    loaded = runtime.loaded()
    missing = wanted - {each.index for each in loaded}
    if missing:
        raise NotLeaderError(f"{runtime.topic}-{min(missing)} is not loaded")
    return loaded
