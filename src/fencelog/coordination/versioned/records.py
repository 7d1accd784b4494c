"""The records of ``__fencelog_versioned``, our own schema (rule V8).

The version of a key says what it is the key of, as Kafka's coordinators have it. Under each key the
newest value says all, so the topic can be compacted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fencelog.coordination.encoding import by_topic
from fencelog.coordination.schemas.versioned import (
    TopicPartitions,
    VersionedAppKey,
    VersionedAppValue,
    VersionedProducerKey,
    VersionedProducerValue,
    VersionedRunKey,
    VersionedRunValue,
)
from fencelog.coordination.shard import LogRecord
from fencelog.coordination.versioned.state import App, Joined, Phase, Run
from fencelog.errors import CorruptionError
from fencelog.types import ProducerEpoch, ProducerId, TimestampMs, TopicPartition

_APP_KEY_VERSION = 0
_RUN_KEY_VERSION = 1
_PRODUCER_KEY_VERSION = 2
_APP_VALUE_VERSION = 1
_RUN_VALUE_VERSION = 1
_VALUE_VERSION = 0


@dataclass(frozen=True, slots=True)
class AppKey:
    """Key of an app."""

    app: str


@dataclass(frozen=True, slots=True)
class RunKey:
    """Key of a run of an app."""

    app: str
    query_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class ProducerKey:
    """Key of a producer that joined: its id alone, which is never used again."""

    producer_id: ProducerId


Key = AppKey | RunKey | ProducerKey


def write_key(key: Key) -> bytes:
    """Return the key's bytes."""
    match key:
        case AppKey(app):
            return VersionedAppKey(app=app).write(_APP_KEY_VERSION)
        case RunKey(app, query_id, run_id):
            run = VersionedRunKey(app=app, query_id=query_id, run_id=run_id)
            return run.write(_RUN_KEY_VERSION)
        case ProducerKey(producer_id):
            return VersionedProducerKey(producer_id=producer_id).write(_PRODUCER_KEY_VERSION)


def read_key(data: bytes) -> Key:
    """Return the key. Raises CorruptionError on anything but the three kinds."""
    if VersionedAppKey.has_version_of(data):
        return AppKey(VersionedAppKey.read(data).app)
    if VersionedRunKey.has_version_of(data):
        run = VersionedRunKey.read(data)
        return RunKey(run.app, run.query_id, run.run_id)
    return ProducerKey(ProducerId(VersionedProducerKey.read(data).producer_id))


def forget(key: Key) -> LogRecord:
    """Return the tombstone of this key."""
    return LogRecord(write_key(key), None)


def write_app(app: App) -> LogRecord:
    """Return the record that says all of this app."""
    value = VersionedAppValue(
        query_id=app.query_id,
        run_id=app.run_id,
        last_version=app.last_version,
        fingerprint=app.fingerprint,
        incarnation=app.incarnation,
        phase=app.phase,
        version=app.version,
        timeout_ms=app.timeout_ms,
        committing=sorted(app.committing),
        written=_topics(app.written),
        updated_ms=app.updated_ms,
        opened_ms=app.opened_ms,
    )
    return LogRecord(write_key(AppKey(app.app)), value.write(_APP_VALUE_VERSION))


def read_app(app: str, value: bytes) -> App:
    """Return what the value says of the app. Raises CorruptionError on any other value."""
    read = VersionedAppValue.read(value)
    return App(
        app=app,
        query_id=read.query_id,
        run_id=read.run_id,
        last_version=read.last_version,
        fingerprint=read.fingerprint,
        incarnation=read.incarnation,
        phase=_phase(read.phase),
        version=read.version,
        timeout_ms=read.timeout_ms,
        committing=frozenset(ProducerId(each) for each in read.committing),
        written=_partitions(read.written),
        updated_ms=TimestampMs(read.updated_ms),
        opened_ms=TimestampMs(read.opened_ms),
    )


def write_run(key: RunKey, run: Run) -> LogRecord:
    """Return the record that says all of this run."""
    value = VersionedRunValue(ordinal=run.ordinal, since_ms=run.since_ms, host=run.host)
    return LogRecord(write_key(key), value.write(_RUN_VALUE_VERSION))


def read_run(value: bytes) -> Run:
    """Return what the value says of the run. Raises CorruptionError on any other value."""
    read = VersionedRunValue.read(value)
    return Run(ordinal=read.ordinal, since_ms=TimestampMs(read.since_ms), host=read.host)


def write_producer(joined: Joined) -> LogRecord:
    """Return the record that says all of this producer."""
    value = VersionedProducerValue(
        app=joined.app,
        incarnation=joined.incarnation,
        producer_epoch=joined.producer_epoch,
        partitions=_topics(joined.partitions),
    )
    return LogRecord(write_key(ProducerKey(joined.producer_id)), value.write(_VALUE_VERSION))


def read_producer(producer_id: ProducerId, value: bytes) -> Joined:
    """Return what the value says of the producer. Raises CorruptionError on any other value."""
    read = VersionedProducerValue.read(value)
    return Joined(
        producer_id=producer_id,
        app=read.app,
        incarnation=read.incarnation,
        producer_epoch=ProducerEpoch(read.producer_epoch),
        partitions=_partitions(read.partitions),
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    return [TopicPartitions(topic=topic, partitions=ids) for topic, ids in by_topic(partitions)]


def _partitions(topics: Iterable[TopicPartitions]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(each.topic, number) for each in topics for number in each.partitions
    )


def _phase(number: int) -> Phase:
    try:
        return Phase(number)
    except ValueError as error:
        raise CorruptionError(f"versioned transaction in phase {number}") from error
