"""The replayed state of an ownership shard: claims, resources, and what work is outstanding.

Only ``replay`` changes it; the rules in ``shard`` and ``rules`` read it.
"""

from collections.abc import Iterator
from dataclasses import replace

from fencelog.coordination.ownership.model import NO_FENCE
from fencelog.coordination.ownership.records import (
    ClaimKey,
    EndKey,
    ResourceKey,
    read_grant,
    read_key,
    read_resource,
)
from fencelog.coordination.ownership.state import Grant, Group, Phase, Resource
from fencelog.coordination.shard import LogRecord
from fencelog.types import Offset


class OwnershipTable:
    """The stored state of one shard, indexed for the rules."""

    def __init__(self) -> None:
        """Begin empty."""
        self.grants: dict[str, Grant] = {}
        self.groups: dict[str | None, Group] = {}
        self.decided_at: dict[str, Offset] = {}
        """The claims with outstanding work, by the offset of the record that asks for it."""
        self.resource_count = 0

    def replay(self, record: LogRecord, offset: Offset) -> Grant | None:
        """Apply one record; return the claim that it is about, as it was before a tombstone.

        Raises CorruptionError on a record of another kind.
        """
        match read_key(record.key):
            case ClaimKey() as key:
                if record.value is None:
                    return self._forget(key.session, offset)
                return self._claim(read_grant(key, record.value), offset)
            case EndKey(_, session):
                return None if record.value is None else self._end(session, offset)
            case ResourceKey(group, name):
                if record.value is not None:
                    generation, epoch = read_resource(record.value)
                    self._resource(group, name, generation, epoch, offset)
                return None

    def _claim(self, grant: Grant, offset: Offset) -> Grant:
        self.grants[grant.session] = grant
        if grant.phase is Phase.GRANTING:
            self.decided_at[grant.session] = offset
        else:
            self.decided_at.pop(grant.session, None)
        for name, generation, epoch, fence_offset in grant.resources:
            resource = self._resource(grant.group, name, generation, epoch, offset)
            if resource.epoch == epoch:
                resource.session = grant.session
                resource.fence_offset = fence_offset
        return grant

    def _end(self, session: str, offset: Offset) -> Grant | None:
        known = self.grants.get(session)
        if known is None:
            return None
        ended = replace(known, phase=Phase.ENDED)
        self.grants[session] = ended
        self.decided_at[session] = offset
        resources = self.groups[ended.group]
        for granted in ended.resources:
            resource = resources.resources[granted.resource]
            resource.ending = session
            if resource.session == session:
                resource.revision = offset
                resources.changed(granted.resource, resource)
        return ended

    def _forget(self, session: str, offset: Offset) -> Grant | None:
        known = self.grants.pop(session, None)
        if known is None:
            return None
        self.decided_at.pop(session, None)
        resources = self.groups[known.group]
        for granted in known.resources:
            resource = resources.resources[granted.resource]
            if resource.ending == session:
                resource.ending = None
            if resource.session == session:
                resource.session, resource.fence_offset = None, NO_FENCE
        return known

    def _resource(
        self, group: str | None, name: str, generation: int, epoch: int, offset: Offset
    ) -> Resource:
        """Note a grant of a resource; an older one than the last changes nothing."""
        resources = self.groups.get(group)
        if resources is None:
            resources = self.groups[group] = Group()
        resource = resources.resources.get(name)
        if resource is None:
            resource = Resource(generation, epoch, offset)
            self.resource_count += 1
        elif epoch < resource.epoch:
            return resource
        elif epoch > resource.epoch:
            resource.session, resource.fence_offset = None, NO_FENCE
        resource.generation, resource.epoch, resource.revision = generation, epoch, offset
        resources.changed(name, resource)
        return resource

    def resource(self, group: str | None, name: str) -> Resource | None:
        """A resource, if it was ever claimed."""
        resources = self.groups.get(group)
        return None if resources is None else resources.resources.get(name)

    def owner(self, group: str | None, name: str) -> Grant | None:
        """The live claim of a resource, complete or not; None if it is free."""
        resource = self.resource(group, name)
        if resource is None or resource.session is None:
            return None
        grant = self.grants[resource.session]
        return None if grant.phase is Phase.ENDED else grant

    def is_newest(self, grant: Grant, name: str) -> bool:
        """Whether no claim has taken the resource after this one."""
        resource = self.resource(grant.group, name)
        return resource is not None and resource.session == grant.session

    def blockers(self, grant: Grant) -> Iterator[str]:
        """Ended claims that share a resource with this one and have outstanding work."""
        for granted in grant.resources:
            resource = self.resource(grant.group, granted.resource)
            if resource is not None and resource.ending is not None:
                yield resource.ending
