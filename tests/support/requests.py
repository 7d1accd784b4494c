"""Well-formed requests of every API key and version: what a fuzzer starts from, then damages.

Values are drawn by a field's name, so that many requests reach past the first check of a handler:
there are few topics, groups and transactional ids, and most numbers are likely ones.
"""

import importlib
import pkgutil
import types
import typing
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from fencelog.types import ProducerEpoch, ProducerId, Sequence
from fencelog.wire import messages
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.batch import Compression
from fencelog.wire.headers import RequestHeader, request_header
from fencelog.wire.hot import FetchPartition, FetchRequest, FetchTopic
from fencelog.wire.hot.fetch import TOPIC_IDS_FROM, write_fetch_request
from fencelog.wire.hot.produce import write_produce_request
from fencelog.wire.message import Message, Structure
from fencelog.wire.records import RecordToWrite, build_batch

KEYS_AND_VERSIONS = [
    (key, version)
    for key, spoken in SUPPORTED.items()
    for version in range(spoken.minimum, spoken.maximum + 1)
]

TOPICS = ("plain", "compacted", "several", "missing", "", "no/topic", "__consumer_offsets")
GROUPS = ("group", "other", "", "g" * 300)
MEMBERS = ("", "member", "member-1")
TRANSACTIONS = ("txn", "other", "", "fencelog:app")
WORDS = (
    "",
    "range",
    "consumer",
    "compression.type",
    "retention.ms",
    "cleanup.policy",
    "10",
    "ä" * 9,
)
EDGES = (0, 1, -1, 2, 127, -128, 255, 32767, -32768, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
PARTITIONS = (0, 0, 0, 1, 3, -1, 2**31 - 1)
OFFSETS = (0, 1, 5, -1, -2, -3, 2**62)


def all_modules() -> None:
    """Import every module of messages."""
    for found in pkgutil.iter_modules(messages.__path__):
        importlib.import_module(f"{messages.__name__}.{found.name}")


@cache
def request_classes() -> dict[int, type[Message]]:
    """The generated class of each request that has one, by its key."""
    all_modules()
    return {
        each.API_KEY: each for each in Message.__subclasses__() if each.__name__.endswith("Request")
    }


def frame_of(key: ApiKey, version: int, body: bytes, correlation_id: int = 7) -> bytes:
    """A request as it follows its size."""
    return request_header(RequestHeader(key, version, correlation_id, "fuzz")) + body


def a_request(key: ApiKey, version: int, random: Random) -> bytes:
    """A well-formed frame, without its size."""
    return frame_of(key, version, a_body(key, version, random))


def a_body(key: ApiKey, version: int, random: Random) -> bytes:
    """A well-formed body of a request."""
    if key is ApiKey.PRODUCE:
        return _a_produce(version, random)
    if key is ApiKey.FETCH:
        return write_fetch_request(version, _a_fetch(version, random))
    while True:
        try:
            return a_message(key, version, random).write(version)
        except AssertionError:  # a null that this version does not have
            continue


def a_message(key: ApiKey, version: int, random: Random) -> Message:
    """A generated message with values in it."""
    made = _a_structure(request_classes()[key], random)
    assert isinstance(made, Message)
    if key is ApiKey.ADD_PARTITIONS_TO_TXN:
        made.transactions = []  # of brokers, from version 4 on  # type: ignore[attr-defined]
    return made


# -- values ----------------------------------------------------------------------------------------


@cache
def fields_of(kind: type[Structure]) -> dict[str, Any]:
    """A structure's fields and the types that they are annotated with."""
    hints = typing.get_type_hints(kind.__init__)
    hints.pop("return", None)
    return hints


def _a_structure(kind: type[Structure], random: Random) -> Structure:
    return kind(**{name: _a_value(name, hint, random) for name, hint in fields_of(kind).items()})


def _a_value(name: str, hint: Any, random: Random) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        inner = next(each for each in typing.get_args(hint) if each is not type(None))
        # Null arrays mean «all»; null strings mostly mean that there is none.
        return None if random.random() < 0.2 else _a_value(name, inner, random)
    if origin is list:
        (inner,) = typing.get_args(hint)
        count = random.choice((0, 1, 1, 1, 2, 3))
        return [_a_value(name, inner, random) for _ in range(count)]
    if issubclass(hint, Structure):
        return _a_structure(hint, random)
    return _PLAIN[hint](name, random)


def _a_bool(_: str, random: Random) -> bool:
    return random.random() < 0.5


def _some_bytes(name: str, random: Random) -> bytes:
    return bytes(16) if "id" in name else random.randbytes(random.choice((0, 4, 20)))


def _a_string(name: str, random: Random) -> str:
    if "transaction" in name:
        return random.choice(TRANSACTIONS)
    if "topic" in name or name in ("name", "resource_name"):
        return random.choice((*TOPICS, "1"))
    if "group" in name and "instance" not in name:
        return random.choice(GROUPS)
    if "member" in name or "instance" in name:
        return random.choice(MEMBERS)
    if name in ("app", "query_id", "run_id"):
        return random.choice(("app", "run", ""))
    return random.choice(WORDS)


# The first that is part of a field's name says which values are likely.
_INTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("partition", PARTITIONS),
    ("offset", OFFSETS),
    ("timestamp", OFFSETS),
    ("session_timeout", (6000, 30_000, 0)),
    ("timeout", (1, 10, 60_000, -1)),
    ("producer_id", (0, 1, 2, -1)),
    ("epoch", (0, 1, -1)),
    ("generation", (0, 1, -1)),
    ("version", (0, 1, 2)),
    ("resource_type", (2, 4, 0)),
    ("operation", (0, 1, 2, 3, 9)),
    ("factor", (1, -1)),
    ("num_", (1, 2, -1)),
    ("count", (1, 2, 5)),
    ("broker_id", (1, 2)),
    ("key_type", (0, 1, 2)),
    ("isolation", (0, 1, 2)),
)
_SMALL = (0, 1, 2, 5, 100, -1)
"""Fits every width, so that what is made here can always be written."""


def _an_int(name: str, random: Random) -> int:
    for part, likely in _INTS:
        if part in name:
            return random.choice(likely)
    return random.choice(_SMALL)


_PLAIN: dict[type, Callable[[str, Random], Any]] = {
    bool: _a_bool,
    int: _an_int,
    str: _a_string,
    bytes: _some_bytes,
}


# -- the two that are written by hand --------------------------------------------------------------


def a_batch(random: Random, *, transactional: bool | None = None) -> bytearray:
    """A record batch that a producer might send."""
    producer_id = random.choice((-1, -1, 0, 1, 1000))
    in_transaction = producer_id >= 0 and random.random() < 0.5
    records = [
        RecordToWrite(
            key=random.choice((None, b"", b"key", b"other")),
            value=random.choice((None, b"", b"value" * 20)),
            timestamp_ms=random.choice((0, -1, 1_700_000_000_000)),
            headers=random.choice(((), (("h", b"x"),))),
        )
        for _ in range(random.choice((1, 1, 2, 5)))
    ]
    return build_batch(
        records,
        compression=random.choice(tuple(Compression)),
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(-1 if producer_id < 0 else random.choice((0, 1, 32767))),
        base_sequence=Sequence(-1 if producer_id < 0 else random.choice((0, 1, 5, 2**31 - 1))),
        transactional=in_transaction if transactional is None else transactional,
    )


def _a_produce(version: int, random: Random) -> bytes:
    topics = [
        (
            random.choice(TOPICS),
            [
                (random.choice(PARTITIONS), a_batch(random))
                for _ in range(random.choice((0, 1, 1, 2)))
            ],
        )
        for _ in range(random.choice((0, 1, 1, 1, 2)))
    ]
    buffers = write_produce_request(
        version,
        random.choice((None, None, *TRANSACTIONS)),
        random.choice((-1, -1, -1, 1, 0, 5)),
        random.choice((1, 1000, -1)),
        topics,
    )
    return b"".join(buffers)


def _a_fetch(version: int, random: Random) -> FetchRequest:
    by_id = version >= TOPIC_IDS_FROM
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=random.choice((0, 1, 500, -1)),
        min_bytes=random.choice((0, 1, 2**31 - 1, -1)),
        max_bytes=random.choice((0, 100, 2**31 - 1, -1)),
        isolation_level=random.choice((0, 1, 2, 9)),
        session_id=random.choice((0, 1)),
        session_epoch=random.choice((0, 1, -1)),
        topics=[
            FetchTopic(
                None if by_id else random.choice(TOPICS),
                bytes(16) if by_id else None,  # type: ignore[arg-type]
                [
                    FetchPartition(
                        random.choice(PARTITIONS),
                        random.choice((0, -1, 5)),
                        random.choice(OFFSETS),
                        random.choice((0, -1)),
                        random.choice((0, 1, 2**20, -1)),
                    )
                    for _ in range(random.choice((0, 1, 1, 2)))
                ],
            )
            for _ in range(random.choice((0, 1, 1, 2)))
        ],
    )
