"""A network in memory, behind the transports that asyncio's protocols and streams know.

A connection is two pipes. What is written is cut into segments, each of which arrives after the
link's latency, in order. A cut holds the segments of one direction back until it is healed, as TCP
sends them again; a reset ends both sides with an error; a silent loss swallows whatever is sent
from then on without an error, which leaves both sides half open.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import cast
from zlib import crc32

from fencelog.types import Buffer
from fencelog_sim.world.listening import Address, SimServer
from fencelog_sim.world.loop import Process, SimLoop, current_process

Factory = Callable[[], asyncio.BaseProtocol]

FIRST_PORT = 40_000
WRITE_BUFFER_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 127.0
"""How long a SYN is sent again before the connection attempt fails (Linux)."""
RETRANSMIT_S = 0.2
TICK_S = 1e-9
"""Keeps the segments of a direction apart: timers of equal time have no order of their own."""


@dataclass(frozen=True)
class Weather:
    """How the network is, before any fault."""

    latency_s: float = 0.0002
    """Least time from one host to another."""
    jitter_s: float = 0.001
    """Mean of what comes on top."""
    split: float = 0.05
    """Chance that a write arrives in pieces."""
    retransmit: float = 0.002
    """Chance that a segment is lost once and sent again."""


@dataclass
class _Listener:
    factory: Factory
    process: Process
    context: contextvars.Context


class Mark(Enum):
    """What a segment can carry but bytes."""

    END = "nothing more is sent"
    RESET = "this side is gone"


@dataclass
class _Segment:
    due: float
    data: bytes | Mark


class _Pipe:
    """One direction of a connection: segments under way to a transport."""

    __slots__ = (
        "busy",
        "last_due",
        "late_until",
        "queue",
        "size",
        "source",
        "swallows",
        "target",
    )

    def __init__(self, source: "SimTransport", target: "SimTransport") -> None:
        self.source = source
        self.target = target
        self.queue: deque[_Segment] = deque()
        self.size = 0
        self.last_due = 0.0
        self.busy = False
        self.swallows = False
        self.late_until = 0.0
        """Nothing arrives before."""

    def put_back(self, due: float, data: bytes) -> None:
        """Let bytes arrive next that could not be delivered."""
        self.queue.appendleft(_Segment(due, data))
        self.size += len(data)


class SimTransport(asyncio.Transport):
    """One side of a connection."""

    def __init__(
        self,
        network: "Network",
        process: Process,
        context: contextvars.Context,
        address: Address,
        peer: Address,
    ) -> None:
        """Made in pairs by the network; ``join`` gives it its pipes."""
        super().__init__({"sockname": address, "peername": peer, "socket": None})
        self._network = network
        self.process = process
        self.context = context
        self.address = address
        self.peer = peer
        self.protocol: asyncio.BaseProtocol | None = None
        self.out: _Pipe | None = None
        self.into: _Pipe | None = None
        self.closing = False
        self.lost = False
        self.reading = True
        self._high = WRITE_BUFFER_BYTES
        self._low = WRITE_BUFFER_BYTES // 4
        self._paused_writing = False
        self._ended_writing = False

    # -- what protocols and streams call -------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol."""
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who receives."""
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        """Whether it was closed or lost."""
        return self.closing

    def write(self, data: Buffer) -> None:
        """Send bytes; those of a closed connection are dropped, as a socket's are."""
        if self.closing or self._ended_writing or self.out is None:
            return
        if sent := bytes(data):
            self._network.send(self.out, sent)
        if self.out.size > self._high and not self._paused_writing:
            self._paused_writing = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send buffers as one."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Half-closing is possible."""
        return True

    def write_eof(self) -> None:
        """Say that nothing more is sent."""
        if not self._ended_writing and self.out is not None and not self.closing:
            self._ended_writing = True
            self._network.send(self.out, Mark.END)

    def close(self) -> None:
        """Send what is queued, then end both directions."""
        if self.closing:
            return
        self.write_eof()
        self.closing = True
        self._network.report_lost(self, None)

    def abort(self) -> None:
        """End now; the peer gets a reset."""
        if self.closing:
            return
        self.closing = True
        if self.out is not None:
            self._network.reset_peer(self.out)
        self._network.report_lost(self, None)

    def pause_reading(self) -> None:
        """Leave what arrives in the socket."""
        self.reading = False

    def resume_reading(self) -> None:
        """Take what waits."""
        if not self.reading:
            self.reading = True
            if self.into is not None:
                self._network.pump(self.into)

    def is_reading(self) -> bool:
        """Whether arriving bytes are taken."""
        return self.reading and not self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to make the protocol pause and resume writing."""
        self._high = WRITE_BUFFER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes sent and not arrived."""
        return self.out.size if self.out is not None else 0

    # -- what the network calls ----------------------------------------------------------------

    def deliver(self, data: bytes) -> bytes:
        """Hand arrived bytes to the protocol; returns what it left by pausing."""
        protocol = self.get_protocol()
        if not isinstance(protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, protocol).data_received(data)
            return b""
        view = memoryview(data)
        while view and self.is_reading():
            buffer = memoryview(protocol.get_buffer(len(view)))
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            protocol.buffer_updated(count)
            view = view[count:]
        return bytes(view) if not self.closing else b""

    def deliver_end(self) -> None:
        """Hand on that the peer sends no more."""
        stays_open = cast(asyncio.Protocol, self.get_protocol()).eof_received()
        if not stays_open:
            self.close()

    def drained(self) -> None:
        """Let the protocol write again, once enough has arrived and its process runs."""
        if self._paused_writing:
            self._network.loop.call_soon(self._resume_writing, context=self.context)

    def _resume_writing(self) -> None:
        if self._paused_writing and self.out is not None and self.out.size <= self._low:
            self._paused_writing = False
            if not self.lost:
                self.get_protocol().resume_writing()


@dataclass
class Network:
    """All links between hosts. Directions are ordered pairs of host addresses."""

    loop: SimLoop
    random: Random
    weather: Weather = field(default_factory=Weather)
    listeners: dict[Address, _Listener] = field(default_factory=dict)
    transports: list[SimTransport] = field(default_factory=list)
    cuts: set[tuple[str, str]] = field(default_factory=set)
    dark: set[str] = field(default_factory=set)
    """Hosts without power: nothing answers there, not even with a refusal."""
    held: list[_Pipe] = field(default_factory=list)
    """What waits behind a cut."""
    extra_latency: dict[str, float] = field(default_factory=dict)
    sending: Callable[[SimTransport, bytes], bytes] | None = None
    """Shown each write ahead of it; may kill the sender, and then nothing is sent."""
    arriving: Callable[[SimTransport, bytes], None] | None = None
    """Shown each segment ahead of its receiver; may kill it."""
    next_port: int = FIRST_PORT

    # -- faults --------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Hold back everything that goes from one host to another."""
        self.cuts.add((source, target))

    def mend(self, ways: Iterable[tuple[str, str]]) -> None:
        """End these cuts, each from one host to another; what was held back arrives."""
        self.cuts.difference_update(ways)
        self._release()

    def heal(self) -> None:
        """End every cut and every delay; what was held back arrives."""
        self.cuts.clear()
        self.extra_latency.clear()
        self._release()

    def power(self, host: str, *, on: bool) -> None:
        """Take a host from the network, or put it back."""
        if on:
            self.dark.discard(host)
            self._release()
        else:
            self.dark.add(host)

    def delay(self, host: str, seconds: float) -> None:
        """Let everything from and to a host take longer."""
        self.extra_latency[host] = seconds

    def connections(self, host: str) -> list[SimTransport]:
        """The sides of open connections on one host, oldest first."""
        return [each for each in self.transports if each.address[0] == host and not each.closing]

    def reset(self, transport: SimTransport) -> None:
        """End both sides of a connection with an error (RST)."""
        assert transport.out is not None
        for side in (transport, transport.out.target):
            side.closing = True
            self.report_lost(side, ConnectionResetError("connection reset by peer"))

    def swallow(self, transport: SimTransport) -> None:
        """Lose all that a connection sends from now on, without an error."""
        assert transport.out is not None
        assert transport.into is not None
        transport.out.swallows = transport.into.swallows = True

    def strand(self, transport: SimTransport, seconds: float) -> None:
        """Deliver all that is under way to this side late; the other side sees a reset."""
        pipe = transport.into
        assert pipe is not None
        pipe.late_until = self.loop.time() + seconds
        pipe.source.closing = True
        self._enqueue(pipe, Mark.RESET)
        self.report_lost(pipe.source, ConnectionResetError(104, "connection reset by peer"))

    def process_ended(self, process: Process, *, silently: bool) -> None:
        """Close a dead process's sockets; a host without power cannot even do that."""
        for address in [a for a, each in self.listeners.items() if each.process is process]:
            del self.listeners[address]
        for transport in [each for each in self.transports if each.process is process]:
            self._forget(transport)
            transport.closing = transport.lost = True
            if not silently and transport.out is not None:
                self.reset_peer(transport.out)

    # -- what the loop's methods ask -----------------------------------------------------------

    def listen(self, factory: Factory, host: str, port: int) -> SimServer:
        """Bind an address for the running process."""
        if port == 0:
            port = self._port()
        if (host, port) in self.listeners:
            raise OSError(98, f"address already in use: {host}:{port}")
        self.listeners[host, port] = _Listener(
            factory, current_process.get(), contextvars.copy_context()
        )
        return SimServer(self.listeners, (host, port), self.loop)

    async def connect(
        self, factory: Factory, host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Open a connection from the running process."""
        process = current_process.get()
        here = process.host
        await asyncio.sleep(self._latency(here, host))
        waited_s = 0.0
        while self._is_cut(here, host) or self._is_cut(host, here):
            # SYNs are sent again after 1, 2, 4 … seconds.
            again_s = max(1.0, waited_s)
            if waited_s + again_s > CONNECT_TIMEOUT_S:
                raise TimeoutError(f"connect to {host}:{port} timed out")
            await asyncio.sleep(again_s)
            waited_s += again_s
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(111, f"connect to {host}:{port} refused")
        mine, theirs = (here, self._port()), (host, port)
        client = SimTransport(self, process, contextvars.copy_context(), mine, theirs)
        server = SimTransport(self, listener.process, listener.context, theirs, mine)
        client.out = server.into = _Pipe(client, server)
        client.into = server.out = _Pipe(server, client)
        self.transports += [client, server]
        self.loop.call_soon(self._accept, server, listener.factory, context=listener.context)
        await asyncio.sleep(self._latency(host, here))
        if client.closing:
            raise ConnectionResetError(104, f"connect to {host}:{port}: connection reset by peer")
        protocol = client.protocol = factory()
        protocol.connection_made(client)
        self.pump(client.into)
        return client, protocol

    @staticmethod
    def _accept(server: SimTransport, factory: Factory) -> None:
        if not server.lost:
            server.protocol = factory()
            server.protocol.connection_made(server)
            server._network.pump(cast(_Pipe, server.into))

    # -- segments ------------------------------------------------------------------------------

    def send(self, pipe: _Pipe, data: bytes | Mark) -> None:
        """Put bytes, or the end of the stream, on their way."""
        if isinstance(data, bytes) and self.sending is not None:
            data = self.sending(pipe.source, data)
        if not pipe.source.process.alive:
            return
        if isinstance(data, bytes) and len(data) > 1 and self.random.random() < self.weather.split:
            first = self.random.randrange(1, len(data))
            self._enqueue(pipe, data[:first])
            self._enqueue(pipe, data[first:])
        else:
            self._enqueue(pipe, data)
        self.pump(pipe)

    def reset_peer(self, pipe: _Pipe) -> None:
        """Tell the far side, after what is under way, that this side is gone."""
        self._enqueue(pipe, Mark.RESET)
        self.pump(pipe)

    def _enqueue(self, pipe: _Pipe, data: bytes | Mark) -> None:
        if pipe.swallows:
            return
        latency = self._latency(pipe.source.address[0], pipe.target.address[0])
        if self.random.random() < self.weather.retransmit:
            latency += RETRANSMIT_S
        pipe.last_due = max(pipe.last_due + TICK_S, self.loop.time() + latency)
        pipe.queue.append(_Segment(pipe.last_due, data))
        pipe.size += len(data) if isinstance(data, bytes) else 0

    def pump(self, pipe: _Pipe) -> None:
        """See to it that the next segment arrives when it is due."""
        target = pipe.target
        if pipe.busy or not pipe.queue:
            return
        if not target.lost and (target.protocol is None or not target.reading):
            return
        if self._holds(pipe):
            return
        pipe.busy = True
        # For a socket that is gone the host's kernel answers, whatever became of the process.
        context = self.loop.outside.context if target.lost else target.context
        due = max(pipe.queue[0].due, pipe.late_until)
        self.loop.call_at(due, self._arrive, pipe, context=context)

    def _holds(self, pipe: _Pipe) -> bool:
        """Whether the way is cut; the pipe then waits for ``heal``."""
        if not self._is_cut(pipe.source.address[0], pipe.target.address[0]):
            return False
        if pipe not in self.held:
            self.held.append(pipe)
        return True

    def _arrive(self, pipe: _Pipe) -> None:
        """Run as the receiving process, or as its host's kernel."""
        pipe.busy = False
        target = pipe.target
        if not pipe.queue or (not target.reading and not target.lost) or self._holds(pipe):
            return
        data = pipe.queue.popleft().data
        if isinstance(data, bytes):
            pipe.size -= len(data)
            pipe.source.drained()
            if target.lost:
                self.reset_peer(cast(_Pipe, target.out))
            elif not target.closing:
                self.loop.note(crc32(data).to_bytes(4, "big"))
                if self.arriving is not None:
                    self.arriving(target, data)
                if self.loop.time() < pipe.late_until:
                    pipe.put_back(pipe.late_until, data)
                elif target.process.alive and (rest := target.deliver(data)):
                    pipe.put_back(self.loop.time(), rest)
        elif not target.closing:
            if data is Mark.END:
                target.deliver_end()
            else:
                target.closing = True
                self.report_lost(target, ConnectionResetError(104, "connection reset by peer"))
        self.pump(pipe)

    def report_lost(self, transport: SimTransport, error: Exception | None) -> None:
        """Call ``connection_lost``, once, in the transport's own process."""
        if transport.lost:
            return
        transport.lost = True
        self._forget(transport)
        if transport.protocol is not None:
            self.loop.call_soon(
                transport.protocol.connection_lost, error, context=transport.context
            )

    def _forget(self, transport: SimTransport) -> None:
        if transport in self.transports:
            self.transports.remove(transport)

    # -- links ---------------------------------------------------------------------------------

    def _release(self) -> None:
        held, self.held = self.held, []
        for pipe in held:
            self.pump(pipe)

    def _is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cuts or source in self.dark or target in self.dark

    def _latency(self, source: str, target: str) -> float:
        extra = self.extra_latency.get(source, 0.0) + self.extra_latency.get(target, 0.0)
        jitter = self.random.random() * 2 * self.weather.jitter_s
        return self.weather.latency_s + jitter + extra

    def _port(self) -> int:
        self.next_port += 1
        return self.next_port
