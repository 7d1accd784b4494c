"""Between a producer and a broker: connections that know frames and hold them as a schedule says.

A producer asks through a ``Network``. Where the schedule holds its request it raises ``HeldError``
at once, as if its time had run out: no schedule waits for a timeout of real length.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import TypeVar, cast

from fencelog.types import Buffer
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.framing import frame
from fencelog.wire.headers import (
    RequestHeader,
    read_response_header,
    request_header,
    response_is_flexible,
)
from fencelog.wire.message import Message
from tests.proofs._delays_schedule import Hold, Lines, Schedule

M = TypeVar("M", bound=Message)
ANSWER_S = 30.0
_HEAD = Struct(">hhi")
ROLES = {
    ApiKey.PRODUCE: "leader",
    ApiKey.TXN_OFFSET_COMMIT: "group",
    ApiKey.OFFSET_FETCH: "group",
}
"""Whom a request is for; all others are for the transaction's coordinator."""
APART: dict[Lines, tuple[str, ...]] = {
    "one": (),
    "leader apart": ("leader",),
    "coordinator apart": ("coordinator",),
    "group apart": ("leader", "group"),
}
"""Roles with a connection to themselves; the others share one."""


class HeldError(Exception):
    """This request is under way for longer than its sender waits."""

    def __init__(self, hold: Hold) -> None:
        """``hold``: what the schedule says of it."""
        super().__init__(hold)
        self.hold = hold


class Line(asyncio.Protocol):
    """One connection to the broker."""

    def __init__(self) -> None:
        """Not connected yet; what is sent waits."""
        self._number = 0
        self._waiting: dict[int, tuple[bool, asyncio.Future[Buffer]]] = {}
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.is_lost = False
        self.kept: list[bytes] | None = None
        """What is held back, in order; None: nothing is."""

    async def connect(self, address: tuple[str, int]) -> None:
        """Reach the broker. Raises OSError."""
        await asyncio.get_running_loop().create_connection(lambda: self, *address)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not asserted: a transport of uvloop is one in all but its class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Hand each whole answer to who waits for it."""
        self._buffer += data
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < end:
                return
            answer = bytes(self._buffer[4:end])
            del self._buffer[:end]
            flexible, future = self._waiting.pop(int.from_bytes(answer[:4], "big"), (False, None))
            if future is not None and not future.done():
                future.set_result(read_response_header(answer, flexible)[1])

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody will answer any more."""
        self.is_lost = True
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection broke"))
                future.exception()  # perhaps nobody waits for it
        self._waiting.clear()

    def ask(self, api: ApiKey, version: int, *body: Buffer) -> tuple[bytes, asyncio.Future[Buffer]]:
        """A frame to be sent, and where its answer will be."""
        self._number += 1
        header = request_header(RequestHeader(api, version, self._number, "delays"))
        data = b"".join(frame([header, *body]))
        return data, self.expect(data)

    def expect(self, data: bytes) -> "asyncio.Future[Buffer]":
        """Where the answer to this frame will be."""
        api, version, number = _HEAD.unpack_from(data, 4)
        future: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (response_is_flexible(api, version), future)
        return future

    def put(self, data: bytes) -> None:
        """Send, or keep behind what is kept."""
        if self.kept is not None:
            self.kept.append(data)
        elif self._transport is None or self.is_lost:
            raise ConnectionError("the connection broke")
        else:
            self._transport.write(data)

    def close(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.abort()


@dataclass(kw_only=True)
class UnderWay:
    """A held request."""

    hold: Hold
    line: Line
    frame: bytes
    answer: asyncio.Future[Buffer]
    attempt: int
    """Number of the transaction that it belongs to."""
    left: int
    """Requests until it arrives."""
    arrived: str = ""
    """When it arrived, in words; empty while it is under way."""

    @property
    def was_cut_off(self) -> bool:
        """Whether it arrived and its connection ended instead of an answer."""
        is_known = self.answer.done() and not self.arrived.startswith("never")
        return is_known and self.answer.exception() is not None


@dataclass(kw_only=True)
class Network:
    """The connections of one schedule's producer."""

    address: tuple[str, int]
    schedule: Schedule
    restart: Callable[[], Awaitable[None]]
    """Kills the broker and starts it again; at most once."""
    attempt: int = 0
    """Number of the transaction that the producer is in, or was last in."""
    is_away: bool = False
    under_way: list[UnderWay] = field(default_factory=list)
    ever: list[UnderWay] = field(default_factory=list)
    """Those that have arrived, too."""
    _lines: dict[str, Line] = field(default_factory=dict)
    _seen: Counter[ApiKey] = field(default_factory=Counter)
    _old: list[Line] = field(default_factory=list)

    async def ask(
        self, message: Message, version: int, answer: type[M], *, is_free: bool = False
    ) -> M:
        """Ask and return the answer. Raises HeldError; ConnectionError where it broke."""
        api = ApiKey(message.API_KEY)
        body = await self.send(api, version, message.write(version), is_free=is_free)
        return answer.read(body, version)

    async def send(self, api: ApiKey, version: int, *body: Buffer, is_free: bool = False) -> Buffer:
        """As ``ask``, in bytes. ``is_free``: the schedule does not see this request."""
        late: list[UnderWay] = []
        if not is_free:
            late = await self._arrivals(api)
        line = await self._line(api)
        data, future = line.ask(api, version, *body)
        hold = None if is_free else self._hold(api)
        if hold is not None:
            self._keep(hold, line, data, future)
        else:
            line.put(data)
        for each in late:
            await self._arrive(each, f"at {api.name}", is_awaited=False)
        if hold is not None:
            self._forget(line, hold)
            raise HeldError(hold)
        async with asyncio.timeout(ANSWER_S):
            return await future

    def push(self, hold: Hold, api: ApiKey, version: int, *body: Buffer) -> None:
        """Send behind a held request, on its connection, and wait for nothing."""
        for each in self.under_way:
            if each.hold is hold and not each.line.is_lost:
                data, _ = each.line.ask(api, version, *body)
                each.line.put(data)

    async def finish(self) -> None:
        """Let everything arrive that is still under way."""
        if self.under_way and self.schedule.restarts:
            await self.restart()
        for each in list(self.under_way):
            await self._arrive(each, "at the end", is_awaited=True)

    def close(self) -> None:
        """End all connections."""
        for line in [*self._lines.values(), *self._old]:
            line.close()

    # --- inside

    def _hold(self, api: ApiKey) -> Hold | None:
        self._seen[api] += 1
        for hold in self.schedule.holds:
            if hold.api is api and hold.nth == self._seen[api]:
                return hold
        return None

    def _keep(self, hold: Hold, line: Line, data: bytes, answer: "asyncio.Future[Buffer]") -> None:
        if hold.mode != "reordered" and line.kept is None:
            line.kept = []
        held = UnderWay(
            hold=hold, line=line, frame=data, answer=answer, attempt=self.attempt, left=hold.later
        )
        self.under_way.append(held)
        self.ever.append(held)

    def _forget(self, line: Line, hold: Hold) -> None:
        """A client opens a new connection, unless it has to be thought of as waiting on this."""
        self._old.append(line)
        if hold.mode != "reordered":
            self._lines = {role: each for role, each in self._lines.items() if each is not line}

    async def _line(self, api: ApiKey) -> Line:
        role = ROLES.get(api, "coordinator")
        if role not in APART[self.schedule.lines]:
            role = "shared"
        line = self._lines.get(role)
        if line is None or line.is_lost:
            line = Line()
            await line.connect(self.address)
            self._lines[role] = line
        return line

    async def _arrivals(self, api: ApiKey) -> list[UnderWay]:
        """Let those arrive whose time has come; return those that come after the next request."""
        late = []
        for each in list(self.under_way):
            each.left -= 1
            if each.left >= 0:
                continue
            if self.schedule.restarts:
                await self.restart()
            if each.hold.race == "second":
                late.append(each)
            else:
                settled = each.hold.race == "settled"
                await self._arrive(each, f"at {api.name}", is_awaited=settled)
        return late

    async def _arrive(self, each: UnderWay, when: str, *, is_awaited: bool) -> None:
        self.under_way.remove(each)
        each.arrived = await self._deliver(each)
        if not each.arrived:
            each.arrived = self._when(each, when)
            if is_awaited:
                with suppress(ConnectionError):
                    async with asyncio.timeout(ANSWER_S):
                        await each.answer

    async def _deliver(self, each: UnderWay) -> str:
        """Put it on the wire; returns why that cannot be."""
        line, kept = each.line, each.line.kept
        if each.hold.mode == "late connection":
            line = each.line = await self._moved(each)
        elif line.is_lost:
            return "never: its connection broke"
        line.kept = None
        line.put(each.frame)
        for data in kept or ():
            line.put(data)
        return ""

    async def _moved(self, each: UnderWay) -> Line:
        """What was kept, on a connection that the broker has not seen."""
        line = Line()
        await line.connect(self.address)
        each.answer = line.expect(each.frame)
        self._old.append(line)
        return line

    def _when(self, each: UnderWay, when: str) -> str:
        if self.schedule.restarts:
            return "after a restart of the broker"
        if when == "at the end":
            return when
        if self.is_away:
            return "while its client was away"
        gone = self.attempt - each.attempt
        if gone == 0:
            return "in its own transaction"
        return f"in the next one, {when}" if gone == 1 else "in a later one"
