"""Kafka's GroupMetadataKey (version 2) and GroupMetadataValue (versions 0 to 3; 3 is written)."""

from dataclasses import dataclass

from fencelog.coordination.encoding import Reader, Writer, stored
from fencelog.coordination.shard import LogRecord
from fencelog.errors import CorruptionError
from fencelog.types import TimestampMs

_KEY_VERSION = 2
_VALUE_VERSION = 3
_MEMBER_BYTES_MIN = 18
_UNKNOWN_TIME = TimestampMs(-1)


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
    """When it came into this state; -1 where an old record does not say."""
    members: tuple[StoredMember, ...]

    def assignment(self, member_id: str) -> bytes:
        """The assignment of a member; empty where there is none."""
        return next((each.assignment for each in self.members if each.member_id == member_id), b"")


def write_group(group: StoredGroup) -> LogRecord:
    """Return the record that says all of this group but its offsets."""
    writer = Writer().int16(_VALUE_VERSION).text(group.protocol_type).int32(group.generation)
    _nullable_text(writer, group.protocol)
    _nullable_text(writer, group.leader)
    writer.int64(group.changed_ms).int32(len(group.members))
    for member in group.members:
        writer.text(member.member_id)
        _nullable_text(writer, member.instance_id)
        writer.text(member.client_id).text(member.client_host)
        writer.int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        writer.blob(member.subscription).blob(member.assignment)
    return LogRecord(write_group_key(group.group), writer.done())


def forget_group(group: str) -> LogRecord:
    """Return the record after which the group has no members and never had any."""
    return LogRecord(write_group_key(group), None)


def write_group_key(group: str) -> bytes:
    """Return the key of a group's members."""
    return Writer().int16(_KEY_VERSION).text(group).done()


@stored()
def read_group_key(key: bytes) -> str | None:
    """Return the group; None for a key of another kind, such as an offset.

    Raises CorruptionError when the bytes are no key at all.
    """
    reader = Reader(key)
    if reader.int16() != _KEY_VERSION:
        return None
    group = reader.text()
    reader.expect_end()
    return group


@stored()
def read_group(group: str, value: bytes) -> StoredGroup:
    """Return what the value says. Raises CorruptionError on anything but versions 0 to 3."""
    reader = Reader(value)
    version = reader.int16()
    if version not in range(_VALUE_VERSION + 1):
        raise CorruptionError(f"group metadata value of version {version}")
    protocol_type, generation = reader.text(), reader.int32()
    protocol = reader.nullable_string(flexible=False)
    leader = reader.nullable_string(flexible=False)
    changed_ms = TimestampMs(reader.int64()) if version >= 2 else _UNKNOWN_TIME
    members = reader.array(lambda it: _read_member(it, version), _MEMBER_BYTES_MIN)
    reader.expect_end()
    return StoredGroup(
        group=group,
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        changed_ms=changed_ms,
        members=tuple(members),
    )


def _read_member(reader: Reader, version: int) -> StoredMember:
    member_id = reader.text()
    instance_id = reader.nullable_string(flexible=False) if version >= 3 else None
    client_id, client_host = reader.text(), reader.text()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    return StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        # Version 0 knew one timeout for both.
        rebalance_timeout_ms=rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.blob(),
        assignment=reader.blob(),
    )


def _nullable_text(writer: Writer, text: str | None) -> None:
    if text is None:
        writer.int16(-1)
    else:
        writer.text(text)
