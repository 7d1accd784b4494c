"""Groups as Kafka's GroupMetadataKey (version 2) and GroupMetadataValue (version 3)."""

from dataclasses import dataclass

from fencelog.coordination.schemas.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from fencelog.coordination.shard import LogRecord
from fencelog.types import TimestampMs

_KEY_VERSION = 2
_VALUE_VERSION = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMember:
    """One member of a generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """Its metadata under the protocol of the generation."""
    assignment: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredGroup:
    """The durable half of a group: its current generation; without members it is empty."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    changed_ms: TimestampMs
    """When it came into this state; -1 where a record of an old version has no time."""
    members: tuple[StoredMember, ...]

    def assignment(self, member_id: str) -> bytes:
        """The assignment of a member; empty where there is none."""
        return next((each.assignment for each in self.members if each.member_id == member_id), b"")


def write_group(group: StoredGroup) -> LogRecord:
    """Return the record of this group; its offsets have records of their own."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.changed_ms,
        members=[
            MemberMetadata(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout=each.rebalance_timeout_ms,
                session_timeout=each.session_timeout_ms,
                subscription=each.subscription,
                assignment=each.assignment,
            )
            for each in group.members
        ],
    )
    return LogRecord(write_group_key(group.group), value.write(_VALUE_VERSION))


def forget_group(group: str) -> LogRecord:
    """Return the tombstone of the group: it never had members."""
    return LogRecord(write_group_key(group), None)


def write_group_key(group: str) -> bytes:
    """Return the key of a group's members."""
    return GroupMetadataKey(group=group).write(_KEY_VERSION)


def read_group_key(key: bytes) -> str | None:
    """Return the group; None for a key of another kind, such as an offset.

    Raises CorruptionError when the bytes are no key at all.
    """
    return GroupMetadataKey.read(key).group if GroupMetadataKey.has_version_of(key) else None


def read_group(group: str, value: bytes) -> StoredGroup:
    """Return what the value says. Raises CorruptionError on anything but versions 0 to 3."""
    read = GroupMetadataValue.read(value)
    return StoredGroup(
        group=group,
        protocol_type=read.protocol_type,
        generation=read.generation,
        protocol=read.protocol,
        leader=read.leader,
        changed_ms=TimestampMs(read.current_state_timestamp),
        members=tuple(_member(each) for each in read.members),
    )


def _member(read: MemberMetadata) -> StoredMember:
    # Version 0 knew one timeout for both.
    knows_both = read.rebalance_timeout >= 0
    return StoredMember(
        member_id=read.member_id,
        instance_id=read.group_instance_id,
        client_id=read.client_id,
        client_host=read.client_host,
        rebalance_timeout_ms=read.rebalance_timeout if knows_both else read.session_timeout,
        session_timeout_ms=read.session_timeout,
        subscription=read.subscription,
        assignment=read.assignment,
    )
