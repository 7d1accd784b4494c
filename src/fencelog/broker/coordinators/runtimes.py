"""The runtimes of all coordinators of one broker, with the limits that its settings name."""

from collections.abc import Callable
from typing import TypeVar

from fencelog.broker.config import BrokerConfig
from fencelog.broker.coordinators.runtime import (
    CoordinatorRuntime,
    NextEpoch,
    OpenPartition,
    ReplayMarker,
)
from fencelog.broker.metadata.catalog import (
    GROUP_TOPIC,
    OWNERSHIP_TOPIC,
    TRANSACTION_TOPIC,
    VERSIONED_TOPIC,
)
from fencelog.broker.observer import Observer
from fencelog.coordination.group.model import GroupLimits
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.coordination.shard import Shard
from fencelog.coordination.transaction.shard import TransactionLimits, TransactionShard
from fencelog.coordination.versioned.answers import VersionedLimits
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.ports import WallClock
from fencelog.types import CoordinatorEpoch
from fencelog.wire.own import coordinated_by

S = TypeVar("S", bound=Shard)
Runtimes = tuple[
    CoordinatorRuntime[TransactionShard],
    CoordinatorRuntime[VersionedShard],
    CoordinatorRuntime[GroupShard],
    CoordinatorRuntime[OwnershipShard],
]


def new_runtimes(
    config: BrokerConfig,
    clock: WallClock,
    observer: Observer | None,
    open_partition: OpenPartition,
    next_epoch: NextEpoch,
) -> Runtimes:
    """Return the runtimes; nothing is loaded yet."""

    def runtime(
        topic: str,
        new_shard: Callable[[CoordinatorEpoch], S],
        replay_marker: ReplayMarker[S] | None = None,
    ) -> CoordinatorRuntime[S]:
        return CoordinatorRuntime(
            topic,
            config.internal_partitions,
            new_shard,
            open_partition=open_partition,
            next_epoch=next_epoch,
            clock=clock,
            observer=observer,
            replay_marker=replay_marker,
        )

    transaction_limits = _transaction_limits(config)
    versioned_limits = VersionedLimits(timeout_ms_max=config.transaction_timeout_ms_max)
    group_limits = _group_limits(config)
    transactions = runtime(
        TRANSACTION_TOPIC, lambda epoch: TransactionShard(epoch, transaction_limits)
    )
    transactions.key_of = coordinated_by
    return (
        transactions,
        runtime(VERSIONED_TOPIC, lambda epoch: VersionedShard(epoch, versioned_limits)),
        runtime(
            GROUP_TOPIC,
            lambda epoch: GroupShard(epoch, group_limits),
            lambda shard, producer_id, commit: shard.replay_marker(producer_id, commit=commit),
        ),
        runtime(OWNERSHIP_TOPIC, OwnershipShard),
    )


def _transaction_limits(config: BrokerConfig) -> TransactionLimits:
    return TransactionLimits(
        timeout_ms_max=config.transaction_timeout_ms_max,
        id_expiration_ms=config.transactional_id_expiration_ms,
        id_check_s=config.transactional_id_check_s,
    )


def _group_limits(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        members_max=config.group_members_max,
        metadata_bytes_max=config.offset_metadata_bytes_max,
        session_timeout_ms_min=config.group_session_timeout_ms_min,
        session_timeout_ms_max=config.group_session_timeout_ms_max,
        initial_delay_s=config.group_initial_delay_s,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        retention_check_s=config.offsets_retention_check_s,
    )
