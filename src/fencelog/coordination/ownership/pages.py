"""What Describe and Watch show of a shard, in pages."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from fencelog.coordination.ownership.model import OwnershipState
from fencelog.coordination.ownership.state import Granted, Group, Phase
from fencelog.coordination.ownership.table import OwnershipTable

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
        first = 0 if after is None else bisect_right(groups, _place(after[0]), key=_place)
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

    def changes(
        self, group: str | None, resources: Sequence[str] | None, seen_revision: int
    ) -> tuple[int, list[OwnershipState]]:
        """What has changed after a revision, as ``OwnershipShard.changes`` says."""
        known = self._table.groups.get(group)
        if known is None:
            return -1, []
        watched = None if resources is None else frozenset(resources)
        changed = known.changes(seen_revision)
        names = sorted(name for name in changed if watched is None or name in watched)
        return known.revision, self._states(group, known, names)

    def _groups(self) -> list[str | None]:
        """All groups in order, null first; no group ever goes."""
        if len(self._order) != len(self._table.groups):
            self._order = sorted(self._table.groups, key=_place)
        return self._order

    def _states(
        self, group: str | None, known: Group, names: Iterable[str]
    ) -> list[OwnershipState]:
        return [self._state(group, known, name) for name in names]

    def _state(self, group: str | None, known: Group, name: str) -> OwnershipState:
        resource = known.resources[name]
        waiting = self._waiting(group, name)
        grant = self._table.owner(group, name)
        if grant is None:
            return OwnershipState(
                group=group,
                resource=name,
                state="free",
                generation=resource.generation,
                epoch=resource.epoch,
                waiting=waiting,
            )
        granted = _granted(grant.resources, name)
        return OwnershipState(
            group=group,
            resource=name,
            state="held" if grant.phase is Phase.HELD else "claiming",
            generation=resource.generation,
            epoch=resource.epoch,
            holder=grant.holder,
            host=grant.host,
            since_ms=grant.granted_ms,
            lease_ms=grant.lease_ms,
            fence_offset=granted.fence_offset,
            waiting=waiting,
        )


def _granted(resources: Iterable[Granted], name: str) -> Granted:
    return next(each for each in resources if each.resource == name)


def _place(group: str | None) -> tuple[bool, str]:
    return group is not None, group or ""
