"""Builds marker work for the marker sender from each coordinator's outstanding markers."""

from collections.abc import Collection, Iterator

from fencelog.broker.coordinators.marker_sender import MarkerWork
from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.shard import MarkerTask, TransactionShard
from fencelog.coordination.versioned.answers import MarkerGroup
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.log.values import MarkerToWrite
from fencelog.ports import WallClock
from fencelog.types import Offset, TopicPartition


def transaction_work(
    shard: TransactionShard, committed: Offset, clock: WallClock
) -> Iterator[MarkerWork[TransactionShard]]:
    """One piece of work per decided transaction: its marker on each partition."""

    def work_of(task: MarkerTask) -> MarkerWork[TransactionShard]:
        def written(owner: TransactionShard, done: Collection[TopicPartition]) -> Decision[None]:
            return owner.markers_written(
                task.transactional_id,
                task.producer_id,
                task.producer_epoch,
                done,
                wall_ms=clock.now_ms(),
            )

        marker = MarkerToWrite(
            producer_id=task.producer_id,
            producer_epoch=task.producer_epoch,
            commit=task.commit,
            coordinator_epoch=shard.coordinator_epoch,
            is_bumped=task.is_bumped,
        )
        # Sorted, so that a simulator run is the same in another process.
        markers = dict.fromkeys(sorted(task.partitions), (marker,))
        return MarkerWork(key=task.transactional_id, markers=markers, written=written)

    return (work_of(task) for task in shard.outstanding_markers(committed))


def versioned_work(
    shard: VersionedShard, committed: Offset
) -> Iterator[MarkerWork[VersionedShard]]:
    """One piece of work per partition: the markers of all its producers, in one append (V6)."""

    def work_of(group: MarkerGroup) -> MarkerWork[VersionedShard]:
        def written(owner: VersionedShard, done: Collection[TopicPartition]) -> Decision[None]:
            return owner.markers_written(group.app, group.incarnation, done)

        markers = tuple(
            MarkerToWrite(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                commit=each.commit,
                coordinator_epoch=shard.coordinator_epoch,
                drop_state=True,
            )
            for each in group.markers
        )
        return MarkerWork(
            key=(group.app, group.partition), markers={group.partition: markers}, written=written
        )

    return (work_of(group) for group in shard.outstanding_markers(committed))
