"""Streams for stock clients to read: split and merged, with transactions over the seals."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fencelog.client.blocking import Client

KEYS = [b"key-%d" % number for number in range(12)]


@dataclass
class Written:
    """What a stream was given: the values of each key, in their order."""

    committed: dict[bytes, list[bytes]] = field(default_factory=dict)
    everything: dict[bytes, list[bytes]] = field(default_factory=dict)
    segments: int = 0


def write_resized_stream(address: str, stream: str) -> Written:
    """Write to a stream of two segments that is split and merged between and in transactions.

    Segment 0 is split behind plain records, and a part of it while one transaction that commits
    and one that aborts have written to it: their markers come after its seal. Then two merge.
    """
    written = Written()
    with Client(address) as client:
        client.create_stream(stream, 2)
        _plain(client, stream, written, b"first")
        low, high = client.split_segment(stream, 0)
        _plain(client, stream, written, b"second")
        halves: list[int] = []
        for name, commits in (("commits", True), ("aborts", False)):
            resize: Callable[[], object]
            if commits:
                resize = lambda: halves.extend(client.split_segment(stream, low))  # noqa: E731
            else:
                resize = lambda: client.merge_segments(stream, [halves[1], high])  # noqa: E731
            _transaction(client, stream, written, f"{stream}-{name}", resize, commits=commits)
        _plain(client, stream, written, b"last")
        written.segments = len(client.describe_stream(stream).segments)
    return written


def _plain(client: Client, stream: str, written: Written, value: bytes) -> None:
    with client.producer() as producer:
        for key in KEYS:
            producer.send(stream, value, key=key)
            _note(written, key, value, commits=True)


def _transaction(
    client: Client,
    stream: str,
    written: Written,
    name: str,
    resize: Callable[[], object],
    *,
    commits: bool,
) -> None:
    with client.producer(transactional_id=name) as producer:
        producer.begin()
        for part in (b"before", b"after"):
            for key in KEYS:
                value = name.encode() + b" " + part
                producer.send(stream, value, key=key)
                _note(written, key, value, commits=commits)
            producer.flush()
            if part == b"before":
                resize()
        if commits:
            producer.commit()
        else:
            producer.abort()


def _note(written: Written, key: bytes, value: bytes, *, commits: bool) -> None:
    written.everything.setdefault(key, []).append(value)
    if commits:
        written.committed.setdefault(key, []).append(value)
