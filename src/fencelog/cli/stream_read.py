"""``fencelog stream read``: a reader of a group that writes what it gets to stdout."""

import asyncio
import re
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from fencelog.cli.options import connection
from fencelog.cli.output import UsageError, say
from fencelog.cli.record_format import formatter, to_json
from fencelog.cli.topic_consume import ISOLATIONS

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.cluster import Cluster
    from fencelog.client.model import Isolation, Record
    from fencelog.client.streams.group_model import EventBatch
    from fencelog.client.streams.group_reader import GroupReader
    from fencelog.client.streams.reader_group import ReaderGroup
    from fencelog.coordination.streams.model import Stream

T = TypeVar("T")
EVENTS_MAX = 1_000
"""Events that are written at once."""
IDLE_S, BUSY_S = 0.2, 2.0
"""With ``-e``: how often it is looked whether the end is reached, without events and with some."""
TERMINATED = 128 + signal.SIGTERM
NAME_MAX = 200


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """The options of the command line."""

    stream: str
    group: str
    reader: str | None
    count: int | None
    exit_at_end: bool
    record_format: str
    isolation: str


def run(request: ReadRequest, bootstrap: str, properties: Iterable[str], out: BinaryIO) -> None:
    """Write events to ``out`` until the count, the end (with ``-e``) or a signal.

    Events are written by the main thread: a pipe that is full holds up no renewal of the lease.
    A batch that is written as a whole is processed; any other one is read again by the group.
    """
    connected = connection(bootstrap, properties, also=("isolation.level",))
    level = connected.properties.get("isolation.level", request.isolation)
    isolation = ISOLATIONS.get(level)
    if isolation is None or isolation == "tail":
        names = ", ".join(name for name in ISOLATIONS if name != "tail")
        raise UsageError(f"--isolation {level}: expected one of {names}")
    shown = to_json if request.record_format == "json" else formatter(request.record_format)
    with connected.open() as client, _terminable():
        reading = client.run(lambda cluster: _Reading.of(cluster, request, isolation))
        with _stopped_between_batches(reading.stop):
            try:
                for batch in reading.batches(client, request.count):
                    _write(batch.events, shown, out)
                    reading.written = len(batch.events)
            finally:
                client.run(reading.close)


def _write(events: "Iterable[Record]", shown: "Callable[[Record], bytes]", out: BinaryIO) -> None:
    left = memoryview(b"".join(shown(each) for each in events))
    while left:
        # With PYTHONUNBUFFERED a write may take a part, as where the pipe is closed meanwhile.
        left = left[out.write(left) :]
    out.flush()


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the command as an interrupt does: by an exception."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _stopped_between_batches(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and an interrupt call ``stop``, and end the command behind the block.

    An exception could come at any step: after a write, and before it is known that there was one.
    A second signal of the same kind ends the command at once, for a pipe that nobody reads.
    """
    told: list[int] = []
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    def end(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        assert callable(handler), number
        handler(number, frame)

    def handle(number: int, frame: FrameType | None) -> None:
        if number in told:
            end(number, frame)
        told.append(number)
        stop()

    # A shell's background job ignores interrupts, and is to do so here.
    handled = [each for each in before if callable(before[each])]
    for each in handled:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, before[each])
    if told:
        end(told[0], None)


def default_name() -> str:
    """A reader's name that no other process has."""
    from fencelog.client.grants import this_process

    return re.sub(r"[^A-Za-z0-9._-]", "-", this_process())[-NAME_MAX:]


class _Reading:
    """A reader in its group. All of it but ``batches`` and ``stop`` belongs to the client's loop.

    Attributes:
        written: events of the last batch that are written, and of which the reader was not told.
    """

    def __init__(
        self, cluster: "Cluster", stream: str, group: "ReaderGroup", reader: "GroupReader"
    ) -> None:
        self.written = 0
        self._reader = reader
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._cluster, self._stream, self._group = cluster, stream, group
        self._ends: Mapping[int, int] | None = None
        self._looked_s = _now_s()

    @classmethod
    async def of(
        cls, cluster: "Cluster", request: ReadRequest, isolation: "Isolation"
    ) -> "_Reading":
        """Make a reader, and the group if there is none. Raises UsageError, FencelogError."""
        from fencelog.client.streams.group_model import ReaderGroupNotFoundError
        from fencelog.client.streams.reader_group import ReaderGroup

        try:
            group = ReaderGroup(cluster, request.group)
            reader = group.reader(request.reader or default_name(), isolation=isolation)
        except ValueError as error:
            raise UsageError(str(error)) from None
        try:
            stream = (await group.get()).stream
        except ReaderGroupNotFoundError:
            await ReaderGroup(cluster, request.group, request.stream).create()
            say(f"reader group {request.group} was created, at the beginning of {request.stream}")
            stream = request.stream
        if stream != request.stream:
            raise UsageError(
                f"-g {request.group}: this group reads stream {stream}, not {request.stream}"
            )
        reading = cls(cluster, stream, group, reader)
        if request.exit_at_end:
            reading._ends = await _ends(cluster, stream, isolation)
        return reading

    def stop(self) -> None:
        """Hand out no more. For the handler of a signal."""
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def close(self, _cluster: "Cluster") -> None:
        """Leave the group, behind what is written."""
        self._settle()
        await self._reader.close(processed=False)

    def batches(self, client: "Client", count: int | None) -> "Iterator[EventBatch]":
        """Join the group; events until the end, the count or the stop."""
        client.run(self._enter)
        left = count
        while left is None or left > 0:
            most = EVENTS_MAX if left is None else min(left, EVENTS_MAX)
            batch = client.run(partial(self._next, most))
            if batch is None:
                return
            if left is not None:
                left -= len(batch.events)
            yield batch

    async def _enter(self, _cluster: "Cluster") -> None:
        await self._unless_stopped(self._reader.__aenter__())

    async def _next(self, most: int, _cluster: "Cluster") -> "EventBatch | None":
        """Return the next events; None at the end, and once it is stopped."""
        self._settle()
        batch = await self._unless_stopped(self._ask(most))
        # One that was handed out at the same moment is not written.
        return None if self._stopped.is_set() else batch

    def _settle(self) -> None:
        self._reader.settle(self.written, 0)
        self.written = 0

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of some work; it is cancelled once it is to stop, with None."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopped):
                task.cancel()
            await asyncio.wait([working, stopped])

    async def _ask(self, most: int) -> "EventBatch | None":
        """Return the next events; None at the end of the stream, or at the one that ``-e`` sets."""
        is_late = _now_s() - self._looked_s > BUSY_S
        if self._ends is not None and is_late and await self._is_at_end(self._ends):
            return None
        asked = asyncio.create_task(self._reader.next_batch(most))
        try:
            while True:
                await asyncio.wait([asked], timeout=None if self._ends is None else IDLE_S)
                if asked.done():
                    return asked.result()
                assert self._ends is not None, "only then is there a timeout"
                # Nothing is in hands while more is waited for.
                if await self._is_at_end(self._ends) and not asked.done():
                    return None
        finally:
            asked.cancel()

    async def _is_at_end(self, ends: Mapping[int, int]) -> bool:
        """Whether the group has processed all that there was at the start."""
        from fencelog.client.streams.admin import StreamAdmin

        self._looked_s = _now_s()
        await self._reader.commit()
        cut = await self._group.stream_cut()
        found = await StreamAdmin(self._cluster).describe_stream(self._stream)
        return is_behind(found.stream, cut, ends)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _ends(cluster: "Cluster", stream: str, isolation: "Isolation") -> dict[int, int]:
    from fencelog.client.admin import Admin
    from fencelog.client.streams.admin import StreamAdmin
    from fencelog.types import TopicPartition

    found = await StreamAdmin(cluster).describe_stream(stream)
    places = [TopicPartition(stream, each.index) for each in found.stream.covering]
    offsets = await Admin(cluster).offsets(places, "latest", isolation)
    return {place.partition: offset for place, offset in offsets.items()}


def is_behind(stream: "Stream", cut: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Whether all that is before the cut ``ends`` is before ``cut`` too.

    The segments of a cut cover all keys; one that comes after those of ``ends`` has their keys.
    """
    older: set[int] = set()
    look = list(ends)
    while look:
        for each in stream.segments[look.pop()].predecessors:
            if each not in older:
                older.add(each)
                look.append(each)
    for index, offset in cut.items():
        if index in ends:
            end = stream.segments[index].end
            if offset < (min(ends[index], end) if end >= 0 else ends[index]):
                return False
        elif index in older:
            return False
    return True
