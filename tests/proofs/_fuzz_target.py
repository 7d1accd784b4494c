"""A node in this process that is fed streams of bytes, and what it may not do with them.

Each stream comes in over a connection of its own, without a socket. The answer to each request must
be one that a client can read; no exception may end in a log or in the loop; decoding allocates no
more than a multiple of what arrived. All else is a finding, kept with the bytes that led to it.
"""

import asyncio
import logging
import tempfile
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fencelog.broker.config import BrokerConfig
from fencelog.broker.network.connection import Connection
from fencelog.errors import WireError
from fencelog.node import Node, open_node
from fencelog.types import Buffer
from fencelog.wire import hot
from fencelog.wire.api_versions import SUPPORTED, ApiKey
from fencelog.wire.headers import (
    RequestHeader,
    read_request_header,
)
from fencelog.wire.primitives import REQUEST_ITEMS_MAX, Reader
from tests.support.damage import split
from tests.support.requests import read_answer, request_classes

LOOP_TURNS_MAX = 40
"""A request that waits for something, a fetch for data, is left after so many."""
STREAMS_A_NODE = 100_000
"""Then a new one: topics, groups and transactional ids pile up in the old one."""
ALLOCATED_PLAIN = 64 * 1024
ALLOCATED_AN_ITEM = 512
PARTITIONS_MAX = 300


@dataclass(frozen=True)
class Finding:
    """Something that may not be, and the bytes that led to it."""

    kind: str
    text: str
    stream: bytes


@dataclass
class Tally:
    """What was fed, and what came of it."""

    streams: int = 0
    requests: Counter[tuple[int, int]] = field(default_factory=Counter)
    answered: int = 0
    closed: int = 0
    waiting: int = 0
    """Requests that had no answer when their connection was left."""
    decoded: int = 0
    allocated_an_item_max: float = 0.0


def decode(frame: bytes) -> int:
    """Read a request as the dispatcher does; returns how many items it has. Raises WireError."""
    header, body = read_request_header(frame)
    key, version = header.api_key, header.api_version
    if (
        key not in SUPPORTED
        or not SUPPORTED[ApiKey(key)].minimum <= version <= SUPPORTED[ApiKey(key)].maximum
    ):
        return 0
    if key == ApiKey.PRODUCE:
        topics = hot.read_produce_request(body, version).topics
        return len(topics) + sum(len(partitions) for _, partitions in topics)
    if key == ApiKey.FETCH:
        asked = hot.read_fetch_request(body, version).topics
        return len(asked) + sum(len(topic.partitions) for topic in asked)
    reader = Reader(body, 0, REQUEST_ITEMS_MAX)
    request_classes()[key].read_from(reader, version)
    return REQUEST_ITEMS_MAX - reader.items_left


def allocated(frame: bytes) -> tuple[int, int]:
    """Peak bytes that decoding a frame allocates, and its items (0 where it is refused)."""
    items = 0
    tracemalloc.start()
    with suppress(WireError):
        items = decode(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, items


class _Transport(asyncio.Transport):
    """Takes what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 9092)}.get(name, default)

    def write(self, data: Any) -> None:
        self.out += data

    def writelines(self, list_of_data: Any) -> None:
        for each in list_of_data:
            self.out += each

    def abort(self) -> None:
        self.is_closed = True

    close = abort

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class _Listener(logging.Handler):
    """Hands on what is logged with an exception, or as an error."""

    def __init__(self, heard: Callable[[str, str], None]) -> None:
        super().__init__(logging.ERROR)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + "".join(traceback.format_exception(record.exc_info[1]))
        self._heard("logged", text)


class Target:
    """A node, fed with one stream after the other. A context manager."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.tally = Tally()
        self.findings: list[Finding] = []
        self._loop = asyncio.new_event_loop()
        self._stream = b""
        self._streams_of_node = 0
        self._node: Node | None = None
        self._listener = _Listener(self._found)

    def __enter__(self) -> Self:
        """Start a node."""
        self._loop.set_exception_handler(self._broken)
        self._logger = logging.getLogger("fencelog")
        self._logger.addHandler(self._listener)
        self._logger.propagate = False
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._stop()
        self._loop.close()
        self._logger.removeHandler(self._listener)
        self._logger.propagate = True

    def _start(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="fencelog-fuzz-", dir=self._folder)
        config = BrokerConfig(
            data_dir=self._place.name,
            port=0,
            durability="os",
            partitions_max=PARTITIONS_MAX,
            internal_partitions=2,
            group_initial_delay_s=0.0,
        )
        self._opened = open_node(config)
        self._node = self._loop.run_until_complete(self._opened.__aenter__())
        self._loop.run_until_complete(self._make_topics(self._node))
        self._streams_of_node = 0

    @staticmethod
    async def _make_topics(node: Node) -> None:
        for name, count, settings in (
            ("plain", 1, {}),
            ("compacted", 1, {"cleanup.policy": "compact"}),
            ("several", 4, {}),
        ):
            await node.broker.controller.create_topic(name, count, settings)

    def _stop(self) -> None:
        self._loop.run_until_complete(self._opened.__aexit__(None, None, None))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._place.cleanup()

    def _broken(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = str(context.get("message"))
        if error is not None:
            text += "\n" + "".join(traceback.format_exception(error))
        self._found("loop", text)

    def _found(self, kind: str, text: str) -> None:
        self.findings.append(Finding(kind, text, self._stream))

    # -- feeding -----------------------------------------------------------------------------------

    def feed(self, stream: bytes, *, measured: bool = False) -> None:
        """Send a stream over a connection of its own; ``measured``: see what decoding allocates."""
        self._stream = stream
        self.tally.streams += 1
        self._streams_of_node += 1
        if self._streams_of_node > STREAMS_A_NODE:
            self._stop()
            self._start()
        try:
            if measured:
                for frame in split(stream):
                    self._measure(frame)
            self._loop.run_until_complete(self._feed(stream))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self._found("raised", "".join(traceback.format_exception(error)))

    def _measure(self, frame: bytes) -> None:
        peak, items = allocated(frame)
        beyond = peak - len(frame) - ALLOCATED_PLAIN
        self.tally.decoded += 1
        if items and beyond > 0:
            self.tally.allocated_an_item_max = max(self.tally.allocated_an_item_max, beyond / items)
        # What is refused may have been read up to the place that is wrong.
        if beyond > ALLOCATED_AN_ITEM * (items or len(frame)):
            self._found("memory", f"{peak} bytes for a frame of {len(frame)} with {items} items")

    async def _feed(self, stream: bytes) -> None:
        assert self._node is not None
        transport = _Transport()
        connection = Connection(self._node.server, self._loop)
        connection.connection_made(transport)
        position = 0
        while position < len(stream) and not transport.is_closed:
            room: Buffer = connection.get_buffer(-1)
            view = memoryview(room)
            size = min(len(view), len(stream) - position)
            view[:size] = stream[position : position + size]
            view.release()
            connection.buffer_updated(size)
            position += size
        for _ in range(LOOP_TURNS_MAX):
            if transport.is_closed or not connection.busy:
                break
            await asyncio.sleep(0)
        self._check(stream, transport)
        connection.connection_lost(None)
        await asyncio.sleep(0)

    def _check(self, stream: bytes, transport: _Transport) -> None:
        """Each answer must be readable, and be the one to its request."""
        headers = []
        for frame in split(stream):
            try:
                header = read_request_header(frame)[0]
            except WireError:
                break
            self.tally.requests[header.api_key, header.api_version] += 1
            headers.append((header, frame))
        answers = split(bytes(transport.out))
        self.tally.answered += len(answers)
        self.tally.closed += transport.is_closed
        self.tally.waiting += len(headers) - len(answers)
        expected = [header for header, frame in headers if not _wants_no_answer(header, frame)]
        for header, answer in zip(expected, answers, strict=False):
            try:
                read_answer(header, answer)
            except (WireError, AssertionError, KeyError) as error:
                self._found("answer", f"{header}: {type(error).__name__} {error}: {answer.hex()}")
                break  # those after it would be off by one, perhaps


def _wants_no_answer(header: RequestHeader, frame: bytes) -> bool:
    if header.api_key != ApiKey.PRODUCE:
        return False
    _, body = read_request_header(frame)
    try:
        return hot.read_produce_request(body, header.api_version).acks == 0
    except WireError:
        return False
