"""What the coordinators, all of them, have to say of a transaction that a partition holds open.

An answer counts only while every shard that has records is in service: one that is missing may be
the one that lists the transaction.
"""

from collections.abc import Iterable
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


async def all_shards(runtime: CoordinatorRuntime[S], logs: LogManager) -> list[Loaded[S]]:
    """Return every shard that has records, each in service when this returns.

    Raises NotLeaderError where one is not: an answer without it would be no answer.
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
        raise NotLeaderError(f"{runtime.topic}-{min(missing)} is out of service")
    return loaded


def transaction_outcome(
    transactions: Iterable[Loaded[TransactionShard]],
    versioned: Iterable[Loaded[VersionedShard]],
    producer: ProducerIdAndEpoch,
    name: TopicPartition,
) -> TransactionOutcome:
    """What becomes of this producer's open transaction on a partition (rule E17).

    A listing wins, then a recorded commit; nobody that knows it means abort.
    """
    outcomes = {each.shard.outcome(producer, name) for each in transactions}
    outcomes |= {each.shard.outcome(producer.producer_id, name) for each in versioned}
    for outcome in (TransactionOutcome.LISTED, TransactionOutcome.COMMIT):
        if outcome in outcomes:
            return outcome
    return TransactionOutcome.ABORT
