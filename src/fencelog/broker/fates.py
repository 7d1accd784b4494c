"""What the coordinators, all of them, have to say of a transaction that a partition holds open.

An answer counts only while every shard that has records is in service: one that is missing may be
the one that lists the transaction.
"""

from collections.abc import Iterable
from typing import TypeVar

from fencelog.broker.coordinator_runtime import CoordinatorRuntime, Loaded
from fencelog.broker.log_manager import LogManager
from fencelog.coordination.fate import Fate
from fencelog.coordination.shard import Shard
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import Identity
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


def fate_of(
    transactions: Iterable[Loaded[TransactionShard]],
    versioned: Iterable[Loaded[VersionedShard]],
    producer: Identity,
    name: TopicPartition,
) -> Fate:
    """What becomes of this producer's open transaction on a partition (rule E17).

    A listing wins, then a recorded commit; nobody that knows it means abort.
    """
    fates = {each.shard.fate(producer, name) for each in transactions}
    fates |= {each.shard.fate(producer.producer_id, name) for each in versioned}
    for fate in (Fate.LISTED, Fate.COMMIT):
        if fate in fates:
            return fate
    return Fate.ABORT
