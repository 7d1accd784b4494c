"""The records of ``__fencelog_ownership``, our own schema.

The version of a key says what it is the key of. A claim's record says all that was granted; a
second, small one says that it has ended, so that a decision that ends many claims stays small.
Where both are removed, the record of each resource keeps its generation and epoch for ever (O3).
"""

from dataclasses import dataclass

from fencelog.coordination.ownership.state import Grant, Granted, Phase
from fencelog.coordination.schemas.ownership import (
    ClaimedResource,
    OwnershipClaimKey,
    OwnershipClaimValue,
    OwnershipEndKey,
    OwnershipEndValue,
    OwnershipResourceKey,
    OwnershipResourceValue,
)
from fencelog.coordination.shard import LogRecord
from fencelog.types import Offset, TimestampMs

_RESOURCE_KEY_VERSION = 0
_CLAIM_KEY_VERSION = 1
_END_KEY_VERSION = 2
_VALUE_VERSION = 0


@dataclass(frozen=True, slots=True)
class ResourceKey:
    """Key of a resource."""

    group: str | None
    resource: str


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """Key of a claim."""

    group: str | None
    session: str


@dataclass(frozen=True, slots=True)
class EndKey:
    """Key of the end of a claim."""

    group: str | None
    session: str


Key = ResourceKey | ClaimKey | EndKey


def read_key(data: bytes) -> Key:
    """Return the key. Raises CorruptionError on anything but the three kinds."""
    if OwnershipClaimKey.has_version_of(data):
        claim = OwnershipClaimKey.read(data)
        return ClaimKey(claim.group, claim.session)
    if OwnershipResourceKey.has_version_of(data):
        resource = OwnershipResourceKey.read(data)
        return ResourceKey(resource.group, resource.resource)
    end = OwnershipEndKey.read(data)
    return EndKey(end.group, end.session)


def _claim_key(grant: Grant) -> bytes:
    return OwnershipClaimKey(group=grant.group, session=grant.session).write(_CLAIM_KEY_VERSION)


def _end_key(grant: Grant) -> bytes:
    return OwnershipEndKey(group=grant.group, session=grant.session).write(_END_KEY_VERSION)


def write_grant(grant: Grant) -> LogRecord:
    """Return the record of a claim that has not ended."""
    assert grant.phase is not Phase.ENDED, grant
    value = OwnershipClaimValue(
        is_complete=grant.phase is Phase.HELD,
        holder=grant.holder,
        host=grant.host,
        lease_ms=grant.lease_ms,
        granted_ms=grant.granted_ms,
        producers_key=grant.producers_key,
        resources=[
            ClaimedResource(resource=name, generation=generation, epoch=epoch, fence_offset=fence)
            for name, generation, epoch, fence in grant.resources
        ],
    )
    return LogRecord(_claim_key(grant), value.write(_VALUE_VERSION))


def read_grant(key: ClaimKey, value: bytes) -> Grant:
    """Return what the value says of the claim. Raises CorruptionError on any other value."""
    read = OwnershipClaimValue.read(value)
    return Grant(
        group=key.group,
        session=key.session,
        phase=Phase.HELD if read.is_complete else Phase.GRANTING,
        holder=read.holder,
        host=read.host,
        lease_ms=read.lease_ms,
        granted_ms=TimestampMs(read.granted_ms),
        producers_key=read.producers_key,
        resources=tuple(
            Granted(each.resource, each.generation, each.epoch, Offset(each.fence_offset))
            for each in read.resources
        ),
    )


def write_end(grant: Grant, wall_ms: TimestampMs) -> LogRecord:
    """Return the record that ends a claim."""
    return LogRecord(_end_key(grant), OwnershipEndValue(ended_ms=wall_ms).write(_VALUE_VERSION))


def forget(grant: Grant) -> tuple[LogRecord, ...]:
    """Return the tombstones of a claim and of its end."""
    return LogRecord(_claim_key(grant), None), LogRecord(_end_key(grant), None)


def write_resource(group: str | None, granted: Granted) -> LogRecord:
    """Return the record that keeps a resource's generation and epoch."""
    key = OwnershipResourceKey(group=group, resource=granted.resource)
    value = OwnershipResourceValue(generation=granted.generation, epoch=granted.epoch)
    return LogRecord(key.write(_RESOURCE_KEY_VERSION), value.write(_VALUE_VERSION))


def read_resource(value: bytes) -> tuple[int, int]:
    """Return generation and epoch. Raises CorruptionError on any other value."""
    read = OwnershipResourceValue.read(value)
    return read.generation, read.epoch
