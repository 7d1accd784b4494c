"""The work that follows a grant or an end, on other leaders (O8, O9)."""

from collections.abc import Collection, Iterator

from fencelog.coordination.ownership.model import OwnershipTask
from fencelog.coordination.ownership.resources import partition_of
from fencelog.coordination.ownership.state import Grant, Granted, Phase
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.log.ownership import Owner
from fencelog.types import Offset, TopicPartition
from fencelog.wire.own import owned_id


def has_work(grant: Grant, table: OwnershipTable) -> bool:
    """Whether a grant is complete only after work of its own or of claims that ended before."""
    is_enforced = grant.producers_key is not None or any(
        partition_of(each.resource) is not None for each in grant.resources
    )
    return is_enforced or any(table.blockers(grant))


def transactional_id_of(grant: Grant) -> str | None:
    """Return the transactional id of a claim, if it has asked for one."""
    if grant.producers_key is None:
        return None
    return owned_id(grant.producers_key, grant.resources[-1].epoch)


def task_of(grant: Grant, table: OwnershipTable) -> OwnershipTask:
    """Return the work of a grant that is not complete, or of an end.

    An end leaves out the partitions that a newer claim has taken: its grant raises the epoch there.
    It always ends its producers' transactions, also where a newer claim has taken their name and
    ends them, too: they have records in all its partitions, and whoever takes one of those waits
    for this work, not for that of the claim with the name.
    """
    return _task_of(grant, table, is_live=grant.phase is not Phase.ENDED)


def _task_of(grant: Grant, table: OwnershipTable, *, is_live: bool) -> OwnershipTask:
    partitions: dict[TopicPartition, Owner] = {}
    producers: dict[str, Owner] = {}
    for each in grant.resources:
        owner = _owner(grant, each, is_live=is_live)
        partition = partition_of(each.resource)
        if each.resource == grant.producers_key:
            producers[each.resource] = owner
        elif partition is not None and (is_live or table.is_newest(grant, each.resource)):
            partitions[partition] = owner
    return OwnershipTask(
        group=grant.group,
        session=grant.session,
        is_live=is_live,
        partitions=partitions,
        producers=producers,
    )


def _owner(grant: Grant, granted: Granted, *, is_live: bool) -> Owner:
    return Owner(
        group=grant.group,
        epoch=granted.epoch,
        session=grant.session,
        transactional_id=transactional_id_of(grant),
        holder=grant.holder,
        is_live=is_live,
    )


def live_tasks(table: OwnershipTable, committed: Offset) -> Iterator[OwnershipTask]:
    """Yield the work of each grant that lives by what is below ``committed``, also if it is done.

    Left out are grants that are not committed, as their work is still to begin (E16). An end that
    is not committed ends nothing yet; its work will.
    """
    return (_task_of(grant, table, is_live=True) for grant in _live(table, committed))


def owners_of(
    table: OwnershipTable, committed: Offset, names: Collection[TopicPartition]
) -> Iterator[tuple[TopicPartition, Owner]]:
    """Yield the owners of these partitions, of the grants of ``live_tasks``."""
    wanted = {f"{each.topic}/{each.partition}" for each in names}
    for grant in _live(table, committed):
        for each in grant.resources:
            if each.resource in wanted:
                partition = partition_of(each.resource)
                if partition is not None:
                    yield partition, _owner(grant, each, is_live=True)


def _live(table: OwnershipTable, committed: Offset) -> Iterator[Grant]:
    for grant in table.grants.values():
        is_decided = grant.session in table.decided_at
        is_committed = is_decided and table.decided_at[grant.session] < committed
        if not is_decided or is_committed is not (grant.phase is Phase.ENDED):
            yield grant
