"""The work that follows a grant or an end, on other leaders (O8, O9)."""

from fencelog.coordination.ownership.model import OwnershipTask
from fencelog.coordination.ownership.resources import partition_of
from fencelog.coordination.ownership.state import Grant, Phase
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.log.ownership import Owner
from fencelog.types import TopicPartition
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

    An end leaves out what a newer claim has taken: its grant raises the epoch there.
    """
    is_live = grant.phase is not Phase.ENDED
    partitions: dict[TopicPartition, Owner] = {}
    producers: dict[str, Owner] = {}
    for each in grant.resources:
        if not is_live and not table.is_newest(grant, each.resource):
            continue
        owner = Owner(
            group=grant.group,
            epoch=each.epoch,
            session=grant.session,
            transactional_id=transactional_id_of(grant),
            holder=grant.holder,
            is_live=is_live,
        )
        partition = partition_of(each.resource)
        if each.resource == grant.producers_key:
            producers[each.resource] = owner
        elif partition is not None:
            partitions[partition] = owner
    return OwnershipTask(
        session=grant.session,
        is_live=is_live,
        severed=tuple(dict.fromkeys(table.blockers(grant))) if is_live else (grant.session,),
        partitions=partitions,
        commits=dict(partitions) if grant.group is not None else {},
        producers=producers,
    )
