"""Requests that name very many things: no other client may wait for all of one.

For each list of each request there is one frame that fills just that list; the names in it are of
topics and groups that exist as well as of such that do not.
"""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fencelog.types import TopicId
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.hot import FetchPartition, FetchRequest, FetchTopic
from fencelog.wire.hot.fetch import TOPIC_IDS_FROM, write_fetch_request
from fencelog.wire.hot.produce import write_produce_request
from fencelog.wire.message import Message, Structure
from fencelog.wire.records import RecordToWrite, build_batch
from tests.support.requests import fields_of, frame_of, request_classes

WIDE, PARTITIONS = "wide", 64
"""A topic of the broker under test, and how many partitions it has."""


@dataclass(frozen=True)
class Heavy:
    """One such frame, and a name for it."""

    name: str
    key: ApiKey
    version: int
    frame: bytes


def heavies(items: int) -> Iterator[Heavy]:
    """Each list of each request in its newest version, filled with so many items."""
    for key, spoken in SUPPORTED.items():
        version = spoken.maximum
        if key is ApiKey.PRODUCE:
            yield from _produces(items, version)
        elif key is ApiKey.FETCH:
            yield from (fetch for each in (12, version) for fetch in _fetches(items, each))
        else:
            yield from _generated(items, key, version)


def _generated(items: int, key: ApiKey, version: int) -> Iterator[Heavy]:
    kind = request_classes()[key]
    for path in _lists_of(kind):
        message = _filled(kind, path, items)
        assert isinstance(message, Message)
        try:
            body = message.write(version)
            if _size_of_empty(kind, version) + items > len(body):
                continue  # this version does not have the list
        except AssertionError:
            continue
        name = f"{key.name.lower()} {'.'.join(path)}"
        yield Heavy(name, key, version, frame_of(key, version, body))


def _size_of_empty(kind: type[Structure], version: int) -> int:
    empty = kind()
    assert isinstance(empty, Message)
    return len(empty.write(version))


def _lists_of(kind: type[Structure]) -> Iterator[tuple[str, ...]]:
    """The fields that lead to each list in a structure."""
    for name, hint in fields_of(kind).items():
        inner = _item_of(hint)
        if inner is None:
            continue
        yield (name,)
        if isinstance(inner, type) and issubclass(inner, Structure):
            yield from ((name, *rest) for rest in _lists_of(inner))


def _item_of(hint: Any) -> Any:
    """What a list holds; None where it is none."""
    if typing.get_origin(hint) is types.UnionType:
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    return typing.get_args(hint)[0] if typing.get_origin(hint) is list else None


def _filled(kind: type[Structure], path: tuple[str, ...], items: int) -> Structure:
    """A structure with one item in each list on the way, and ``items`` in the last."""
    values: dict[str, Any] = {}
    for name, hint in fields_of(kind).items():
        inner = _item_of(hint)
        on_path = bool(path) and name == path[0]
        if inner is None:
            values[name] = _value(name, hint, 0)
        elif isinstance(inner, type) and issubclass(inner, Structure):
            if on_path:
                count = items if len(path) == 1 else 1
                values[name] = [_numbered(inner, path[1:], items, n) for n in range(count)]
            else:
                values[name] = [_filled(inner, (), 0)]
        else:
            values[name] = [_value(name, inner, n) for n in range(items if on_path else 1)]
    return kind(**values)


def _numbered(kind: type[Structure], path: tuple[str, ...], items: int, number: int) -> Structure:
    made = _filled(kind, path, items)
    for name, hint in fields_of(kind).items():
        if _item_of(hint) is None:
            setattr(made, name, _value(name, hint, number))
    return made


def _value(name: str, hint: Any, number: int) -> Any:
    if hint is bool:
        return name == "validate_only"
    if hint is int:
        if "partition" in name:
            return number % PARTITIONS
        likely = {"resource_type": 2, "num_partitions": 1, "replication_factor": 1, "key_type": 0}
        return likely.get(name, number if "producer_id" in name else -1 if "epoch" in name else 0)
    if hint is bytes:
        return bytes(16) if name.endswith("_id") else b""
    # A name at every second place is of something that exists.
    return WIDE if number % 2 == 0 and ("name" in name or "topic" in name) else f"n-{number}"


def _produces(items: int, version: int) -> Iterator[Heavy]:
    batch = build_batch([RecordToWrite(key=b"k", value=b"v", timestamp_ms=0)])

    def frame(topics: list[tuple[str, list[tuple[int, bytearray]]]]) -> bytes:
        body = b"".join(write_produce_request(version, None, -1, 30_000, topics))
        return frame_of(ApiKey.PRODUCE, version, body)

    many = [(number % PARTITIONS, batch) for number in range(items)]
    missing = [(number, bytearray()) for number in range(items)]
    topics = [(f"n-{number}", [(0, batch)]) for number in range(items)]
    yield Heavy("produce stored", ApiKey.PRODUCE, version, frame([(WIDE, many)]))
    yield Heavy("produce empty", ApiKey.PRODUCE, version, frame([(WIDE, missing)]))
    yield Heavy("produce topics", ApiKey.PRODUCE, version, frame(topics))
    records = [RecordToWrite(key=b"", value=b"", timestamp_ms=0)] * items
    one = [(0, build_batch(records))]
    yield Heavy("produce compacted", ApiKey.PRODUCE, version, frame([("compacted", one)]))


def _fetches(items: int, version: int) -> Iterator[Heavy]:
    by_id = version >= TOPIC_IDS_FROM

    def topic(name: str, indexes: range) -> FetchTopic:
        asked = [FetchPartition(n % PARTITIONS, -1, 0, -1, 1024) for n in indexes]
        topic_id = TopicId(bytes(16)) if by_id else None
        return FetchTopic(None if by_id else name, topic_id, asked)

    def frame(topics: list[FetchTopic]) -> bytes:
        asked = FetchRequest(-1, 100, 1, 2**20, 0, 0, -1, topics)
        return frame_of(ApiKey.FETCH, version, write_fetch_request(version, asked))

    one = [topic(WIDE, range(items))]
    several = [topic(f"n-{number}", range(1)) for number in range(items)]
    yield Heavy(f"fetch v{version} partitions", ApiKey.FETCH, version, frame(one))
    yield Heavy(f"fetch v{version} topics", ApiKey.FETCH, version, frame(several))
