"""The records of ``__fencelog_versioned``, our own schema (rule V8).

The first field of a key says what it is the key of, as Kafka's coordinators have it; the first
field of a value is its version. Under each key the newest value says all, so the topic can be
compacted.
"""

from dataclasses import dataclass

from fencelog.coordination.encoding import Reader, Writer, stored
from fencelog.coordination.shard import LogRecord
from fencelog.coordination.versioned.state import App, Joined, Phase
from fencelog.errors import CorruptionError
from fencelog.types import ProducerEpoch, ProducerId, TimestampMs

_APP_KEY = 0
_RUN_KEY = 1
_PRODUCER_KEY = 2
_VALUE_VERSION = 0


@dataclass(frozen=True, slots=True)
class AppKey:
    """Key of an app."""

    app: str


@dataclass(frozen=True, slots=True)
class RunKey:
    """Key of a run that drives or drove an app."""

    app: str
    query_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class ProducerKey:
    """Key of a producer that joined; its id alone, for it is unique for ever."""

    producer_id: ProducerId


Key = AppKey | RunKey | ProducerKey


def write_key(key: Key) -> bytes:
    """Return the key's bytes."""
    match key:
        case AppKey(app):
            return Writer().int16(_APP_KEY).text(app).done()
        case RunKey(app, query_id, run_id):
            return Writer().int16(_RUN_KEY).text(app).text(query_id).text(run_id).done()
        case ProducerKey(producer_id):
            return Writer().int16(_PRODUCER_KEY).int64(producer_id).done()


@stored()
def read_key(data: bytes) -> Key:
    """Return the key. Raises CorruptionError on anything but the three kinds."""
    reader = Reader(data)
    kind = reader.int16()
    key: Key
    if kind == _APP_KEY:
        key = AppKey(reader.text())
    elif kind == _RUN_KEY:
        key = RunKey(reader.text(), reader.text(), reader.text())
    elif kind == _PRODUCER_KEY:
        key = ProducerKey(ProducerId(reader.int64()))
    else:
        raise CorruptionError(f"versioned log key of kind {kind}")
    reader.expect_end()
    return key


def forget(key: Key) -> LogRecord:
    """Return the record after which nothing is known under this key."""
    return LogRecord(write_key(key), None)


def write_app(app: App) -> LogRecord:
    """Return the record that says all of this app."""
    writer = Writer().int16(_VALUE_VERSION).text(app.query_id).text(app.run_id)
    writer.int64(app.last_version).blob(app.fingerprint).int64(app.incarnation)
    writer.int8(app.phase).int64(app.version).int32(app.timeout_ms)
    writer.int32(len(app.committing))
    for producer_id in sorted(app.committing):
        writer.int64(producer_id)
    writer.partitions(app.written).int64(app.updated_ms)
    return LogRecord(write_key(AppKey(app.app)), writer.done())


@stored()
def read_app(app: str, value: bytes) -> App:
    """Return what the value says of the app. Raises CorruptionError on any other value."""
    reader = _versioned(value)
    read = App(
        app=app,
        query_id=reader.text(),
        run_id=reader.text(),
        last_version=reader.int64(),
        fingerprint=reader.blob(),
        incarnation=reader.int64(),
        phase=_phase(reader.int8()),
        version=reader.int64(),
        timeout_ms=reader.int32(),
        committing=frozenset(ProducerId(each) for each in reader.array(Reader.int64, 8)),
        written=reader.partitions(),
        updated_ms=TimestampMs(reader.int64()),
    )
    reader.expect_end()
    return read


def write_run(key: RunKey, ordinal: int) -> LogRecord:
    """Return the record that a run is the ``ordinal``-th to drive its app."""
    return LogRecord(write_key(key), Writer().int16(_VALUE_VERSION).int64(ordinal).done())


@stored()
def read_run(value: bytes) -> int:
    """Return the run's ordinal. Raises CorruptionError on any other value."""
    reader = _versioned(value)
    ordinal = reader.int64()
    reader.expect_end()
    return ordinal


def write_producer(joined: Joined) -> LogRecord:
    """Return the record that says all of this producer."""
    writer = Writer().int16(_VALUE_VERSION).text(joined.app).int64(joined.incarnation)
    writer.int16(joined.producer_epoch).partitions(joined.partitions)
    return LogRecord(write_key(ProducerKey(joined.producer_id)), writer.done())


@stored()
def read_producer(producer_id: ProducerId, value: bytes) -> Joined:
    """Return what the value says of the producer. Raises CorruptionError on any other value."""
    reader = _versioned(value)
    read = Joined(
        producer_id=producer_id,
        app=reader.text(),
        incarnation=reader.int64(),
        producer_epoch=ProducerEpoch(reader.int16()),
        partitions=reader.partitions(),
    )
    reader.expect_end()
    return read


def _versioned(value: bytes) -> Reader:
    reader = Reader(value)
    version = reader.int16()
    if version != _VALUE_VERSION:
        raise CorruptionError(f"versioned log value of version {version}")
    return reader


def _phase(number: int) -> Phase:
    try:
        return Phase(number)
    except ValueError as error:
        raise CorruptionError(f"versioned transaction in phase {number}") from error
