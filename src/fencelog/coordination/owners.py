"""Owners that a coordinator remembers, as ordinary records of its log (rules O8, O9).

The versions of the keys are ours, far above Kafka's, whose tools skip keys that they do not know.
No such record is ever deleted, or an older owner would be taken for a new one.
"""

from fencelog.coordination.schemas.owners import CommitsOwnerKey, OwnerValue, ProducersOwnerKey
from fencelog.coordination.shard import LogRecord
from fencelog.errors import CorruptionError
from fencelog.log.ownership import Owner
from fencelog.types import TopicPartition

_KEY_VERSION = 10_000
_VALUE_VERSION = 0


def write_commits_owner(group: str, partition: TopicPartition, owner: Owner) -> LogRecord:
    """Return the record in ``__consumer_offsets``: who commits the group's offsets there."""
    key = CommitsOwnerKey(group=group, topic=partition.topic, partition=partition.partition)
    return LogRecord(key.write(_KEY_VERSION), _write_value(owner))


def read_commits_key(key: bytes) -> tuple[str, TopicPartition] | None:
    """Return group and partition; None for a key of another kind.

    Raises CorruptionError when the bytes are no key at all.
    """
    if not CommitsOwnerKey.has_version_of(key):
        return None
    read = CommitsOwnerKey.read(key)
    return read.group, TopicPartition(read.topic, read.partition)


def write_producers_owner(producers: str, owner: Owner) -> LogRecord:
    """Return the record in ``__transaction_state``: whose producers have this ``producers_key``."""
    key = ProducersOwnerKey(producers=producers)
    return LogRecord(key.write(_KEY_VERSION), _write_value(owner))


def read_producers_key(key: bytes) -> str | None:
    """Return the ``producers_key``; None for a key of another kind.

    Raises CorruptionError when the bytes are no key at all.
    """
    if not ProducersOwnerKey.has_version_of(key):
        return None
    return ProducersOwnerKey.read(key).producers


def read_owner(value: bytes | None) -> Owner:
    """Return the owner. Raises CorruptionError on anything but version 0."""
    if value is None:
        raise CorruptionError("an owner is forgotten")
    read = OwnerValue.read(value)
    return Owner(
        group=read.group,
        epoch=read.epoch,
        session=read.session,
        transactional_id=read.transactional_id,
        holder=read.holder,
        is_live=read.is_live,
    )


def _write_value(owner: Owner) -> bytes:
    value = OwnerValue(
        group=owner.group,
        epoch=owner.epoch,
        session=owner.session,
        transactional_id=owner.transactional_id,
        holder=owner.holder,
        is_live=owner.is_live,
    )
    return value.write(_VALUE_VERSION)
