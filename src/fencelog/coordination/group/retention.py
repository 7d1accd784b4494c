"""Which committed offsets are too old to keep (KIP-211)."""

from fencelog.coordination.group.group import Group
from fencelog.coordination.group.model import GroupState
from fencelog.coordination.group.offsets import Offsets
from fencelog.types import TopicPartition


def expired_offsets(group: Group | None, known: Offsets, before_ms: int) -> list[TopicPartition]:
    """Return the partitions whose offset is older than ``before_ms`` and not in use.

    An empty group's offsets age from the departure of its last member, and from their commits.
    While a group has members, only offsets on topics that none of them reads expire.
    """
    old = [at for at, kept in known.items() if kept.committed.commit_ms < before_ms]
    if group is None or not group.had_members:
        return old
    if group.soft.state is GroupState.EMPTY:
        is_old = group.stored is not None and group.stored.changed_ms < before_ms
        return old if is_old else []
    subscribed = group.subscribed() if group.soft.state is GroupState.STABLE else None
    if subscribed is None:
        return []
    return [partition for partition in old if partition.topic not in subscribed]
