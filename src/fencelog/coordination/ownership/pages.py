"""What Describe and Watch show of a shard, in pages."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from fencelog.coordination.ownership.model import OwnershipState
from fencelog.coordination.ownership.state import Grant, Group, Phase, Resource
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.types import Offset

CountWaiting = Callable[[str | None, str], int]
Position = tuple[str | None, str]
"""The group and the resource of an entry."""


class Pages:
    """Reads a table for operators and watchers; ``waiting`` counts who waits for a resource."""

    def __init__(self, table: OwnershipTable, waiting: CountWaiting) -> None:
        """Read this table."""
        self._table = table
        self._waiting = waiting
        self._order: list[str | None] = []

    def describe(
        self, group: str | None, resources: Sequence[str] | None, after: str | None, limit: int
    ) -> tuple[int, list[OwnershipState], bool]:
        """The resources of a group by name, as ``OwnershipShard.describe`` says."""
        known = self._table.groups.get(group)
        if known is None:
            return -1, [], False
        if resources is None:
            names = known.names()
        else:
            names = sorted({each for each in resources if each in known.resources})
        start = 0 if after is None else bisect_right(names, after)
        page = names[start : start + limit]
        has_more = len(names) > start + limit
        return known.revision, self._states(group, known, page), has_more

    def describe_all(self, after: Position | None, limit: int) -> tuple[list[OwnershipState], bool]:
        """The resources of all groups, as ``OwnershipShard.describe_all`` says."""
        found: list[OwnershipState] = []
        groups = self._groups()
        first = 0 if after is None else bisect_right(groups, _sort_key(after[0]), key=_sort_key)
        if after is not None:
            _, found, has_more = self.describe(after[0], None, after[1], limit)
            if has_more:
                return found, True
        for group in groups[first:]:
            if len(found) == limit:
                return found, True
            _, page, has_more = self.describe(group, None, None, limit - len(found))
            found += page
            if has_more:
                return found, True
        return found, False

    def revision(self, group: str | None) -> Offset:
        """The offset of the last record about a group; -1 without one."""
        known = self._table.groups.get(group)
        return Offset(-1) if known is None else known.revision

    def changes(
        self, group: str | None, resources: Sequence[str] | None, seen_revision: int, limit: int
    ) -> tuple[int, list[OwnershipState]]:
        """What has changed after a revision, as ``OwnershipShard.changes`` says."""
        known = self._table.groups.get(group)
        if known is None:
            return -1, []
        if resources is None:
            revision, names = known.changes(seen_revision, limit)
        else:
            revision = known.revision
            watched = {each for each in resources if each in known.resources}
            names = [each for each in watched if known.resources[each].revision > seen_revision]
        return revision, self._states(group, known, sorted(names))

    def _groups(self) -> list[str | None]:
        """All groups in order, null first; none ever goes, so new ones are last in the table."""
        groups = self._table.groups
        if len(self._order) != len(groups):
            self._order += islice(groups, len(self._order), None)
            self._order.sort(key=_sort_key)
        return self._order

    def _states(
        self, group: str | None, known: Group, names: Iterable[str]
    ) -> list[OwnershipState]:
        found: list[OwnershipState] = []
        for name in names:
            grant = self._table.owner(group, name)
            resource = known.resources[name]
            state = self._free(group, name, resource)
            found.append(state if grant is None else _owned(state, grant, resource.fence_offset))
        return found

    def _free(self, group: str | None, name: str, resource: Resource) -> OwnershipState:
        return OwnershipState(
            group=group,
            resource=name,
            state="free",
            generation=resource.generation,
            epoch=resource.epoch,
            waiting=self._waiting(group, name),
        )


def _owned(free: OwnershipState, grant: Grant, fence_offset: Offset) -> OwnershipState:
    return replace(
        free,
        state="held" if grant.phase is Phase.HELD else "claiming",
        holder=grant.holder,
        host=grant.host,
        since_ms=grant.granted_ms,
        lease_ms=grant.lease_ms,
        fence_offset=fence_offset,
    )


def _sort_key(group: str | None) -> tuple[bool, str]:
    return group is not None, group or ""
