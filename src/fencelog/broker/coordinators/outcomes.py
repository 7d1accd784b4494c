"""Outcomes of transactions that are open on a partition, from all coordinators.

An answer is valid only if every shard that has records was asked: a missing one may be the one that
lists the transaction.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.shard import Shard
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import ProducerIdAndEpoch
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import NotCoordinatorError, NotLeaderError
from fencelog.types import TopicPartition

S = TypeVar("S", bound=Shard)


class OpenOn(NamedTuple):
    """A producer whose transaction is open on a partition."""

    producer: ProducerIdAndEpoch
    partition: TopicPartition


class Outcomes(Protocol):
    """What all coordinators know of open transactions (E17)."""

    def of(self, producer: ProducerIdAndEpoch, partition: TopicPartition) -> TransactionOutcome:
        """Return the outcome of this producer's open transaction on a partition.

        A shard that lists it comes first, then a recorded commit; otherwise it is an abort. The
        answer is for a transaction that was open when the coordinators were asked, and is still.
        Raises NotLeaderError if the decisions of a shard are not known any more.
        """
        ...


class LocalOutcomes:
    """Outcomes from shards here whose decisions so far are committed (E16).

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
        """See ``Outcomes.of``; raises NotLeaderError if a shard was unloaded meanwhile."""
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
) -> LocalOutcomes:
    """Load every shard of both coordinators that is here; wait until their decisions are committed.

    Raises NotLeaderError if one cannot be loaded: without it no outcome is certain.
    """
    committed: list[Loaded[TransactionShard] | Loaded[VersionedShard]] = [
        *await _committed_shards(transactions, logs),
        *await _committed_shards(versioned, logs),
    ]
    return LocalOutcomes(transactions, versioned, committed)


async def _committed_shards(runtime: CoordinatorRuntime[S], logs: LogManager) -> list[Loaded[S]]:
    shards = await shards_here(runtime, logs)
    for each in shards:
        await each.partition.committed(each.partition.log.log_end_offset)
    return shards


async def shards_here(runtime: CoordinatorRuntime[S], logs: LogManager) -> list[Loaded[S]]:
    """Return every shard that has records and belongs to this broker, loaded when this returns.

    Raises NotLeaderError if one cannot be loaded: without it no answer is complete.
    """
    wanted = set()
    for index in range(runtime.partition_count):
        name = TopicPartition(runtime.topic, index)
        if logs.get(*name) is None and name not in logs.offline():
            continue  # not used yet, or not here
        try:
            await runtime.load(index)
        except NotCoordinatorError:
            continue
        wanted.add(index)
    loaded = runtime.loaded()
    missing = wanted - {each.index for each in loaded}
    if missing:
        raise NotLeaderError(f"{runtime.topic}-{min(missing)} is not loaded")
    return loaded
