"""How updates and marks are stored: ordinary records, whose header says which update it is (R4).

A record's value is JSON. An update's header ``fencelog.update`` and a mark's ``fencelog.mark`` have
the writer of the record: ``[version, writer, incarnation, number]``. A mark is the whole state:
what was written before it is needed no more.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fencelog.errors import FencelogError
from fencelog.types import TopicPartition
from fencelog.wire.batch import Compression
from fencelog.wire.records import Headers, Record, RecordToWrite, build_batch

UPDATE = "fencelog.update"
MARK = "fencelog.mark"
VERSION = 1
WRITER_BYTES_MAX = 255
UPDATES_MAX = 1000
"""Updates of one step."""
COMPRESSED_FROM = 4096
"""Records of so many bytes are compressed."""


class UpdateId(NamedTuple):
    """Which update it is: numbers grow with every update of one incarnation of a writer."""

    writer: str
    incarnation: int
    number: int


@dataclass(frozen=True, slots=True)
class Update:
    """One update, as it was stored."""

    identity: UpdateId
    value: object


class Written(NamedTuple):
    """The last update of a writer, and the offset where it is or was."""

    identity: UpdateId
    offset: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The whole state, and the last update of each writer in it."""

    identity: UpdateId
    state: object
    writers: tuple[Written, ...]


class SynchronizerError(FencelogError):
    """The topic of a state cannot be used so; the message says why, and what to do."""


class ForeignRecordError(SynchronizerError):
    """A record in the topic of a state is neither an update nor a mark."""


class UpdateTooLargeError(SynchronizerError):
    """An update or a mark is larger than the topic accepts; nothing was sent."""


def encode_updates(first: UpdateId, values: Sequence[object], now_ms: int) -> bytearray:
    """Return one batch: these updates, numbered from ``first`` on. Raises ValueError for no JSON.

    Raises ValueError too for a writer whose name is too long, and for too many updates.
    """
    if not 1 <= len(values) <= UPDATES_MAX:
        raise ValueError(f"{len(values)} updates in one step: expected 1 to {UPDATES_MAX}")
    return _batch(
        [
            RecordToWrite(
                None,
                to_json(value),
                now_ms,
                _header(UPDATE, first._replace(number=first.number + place)),
            )
            for place, value in enumerate(values)
        ]
    )


def encode_mark(
    identity: UpdateId, state: object, writers: Iterable[Written], now_ms: int
) -> bytearray:
    """Return one batch: the whole state. Raises ValueError if it is not JSON."""
    written = [[*each.identity, each.offset] for each in writers]
    value = to_json({"state": state, "writers": written})
    return _batch([RecordToWrite(None, value, now_ms, _header(MARK, identity))])


def decode(partition: TopicPartition, record: Record) -> Update | Mark:
    """Return what a record says. Raises ForeignRecordError with its topic and offset."""
    try:
        (name, header), *_ = record.headers
        version, writer, incarnation, number = json.loads(header or b"")
        identity = UpdateId(str(writer), int(incarnation), int(number))
        value = json.loads(record.value or b"")
        if (name, version) == (MARK, VERSION):
            known = tuple(
                Written(UpdateId(str(w), int(i), int(n)), int(at))
                for w, i, n, at in value["writers"]
            )
            return Mark(identity, value["state"], known)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise foreign(partition, record.offset, str(error)) from error
    if (name, version) != (UPDATE, VERSION):
        raise foreign(partition, record.offset, f"its header is {name[:40]}, version {version}")
    return Update(identity, value)


def foreign(partition: TopicPartition, offset: int, why: str) -> ForeignRecordError:
    """The error for a record that does not belong there."""
    return ForeignRecordError(
        f"the record at offset {offset} of {partition} is no update of a shared state: {why}; "
        "only a StateSynchronizer of this state may write to the topic. Find who wrote the record, "
        "then delete the topic and create the state anew"
    )


def to_json(value: object) -> bytes:
    """Return compact JSON. Raises ValueError for what has none."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"an update and a state are JSON values: {error}") from error


def _header(name: str, identity: UpdateId) -> Headers:
    if len(identity.writer.encode()) > WRITER_BYTES_MAX:
        raise ValueError(f"a writer has a name of at most {WRITER_BYTES_MAX} bytes")
    return ((name, to_json([VERSION, *identity])),)


def _batch(records: Sequence[RecordToWrite]) -> bytearray:
    size = sum(len(each.value or b"") for each in records)
    codec = Compression.GZIP if size >= COMPRESSED_FROM else Compression.NONE
    return build_batch(records, compression=codec)
