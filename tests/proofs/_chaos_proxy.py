"""A proxy process between clients and a broker that knows frames and misbehaves on command.

``python -m tests.proofs._chaos_proxy SEED`` says ``{"port": N}`` and obeys JSON lines on stdin,
each answered with a line of counts:

- ``{"do": "upstream", "port": N}``: where the broker is.
- ``{"do": "delay", "most_s": S}``: every frame waits up to so long, in its connection's order.
- ``{"do": "cut", "ways": ["up", "down"]}``: nothing passes that way; ``{"do": "resume"}`` ends it.
- ``{"do": "reset", "share": 0.5}``: break that share of the connections.
- ``{"do": "lose", "chance": P}``: an answer is dropped and its connection broken.
- ``{"do": "hold", "kind": "Produce", "wait": false, "most_s": S}``: ``_chaos_holds``.
- ``{"do": "heal"}``: deliver what is held and be a wire again. ``{"do": "counts"}``.
"""

import asyncio
import json
import os
import random
import struct
import sys
from collections import Counter, deque
from collections.abc import Callable
from typing import cast

import uvloop

from tests.proofs._chaos_holds import Hold, Order, Seen, identify

HIGH_WATER = 1 << 20
_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")


class Frames:
    """Cuts a byte stream into frames, size prefixes included."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes; every frame that is whole now goes on."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            end = at + 4 + _SIZE.unpack_from(buffer, at)[0]
            if end > len(buffer):
                break
            self._take(bytes(memoryview(buffer)[at:end]))
            at = end
        if at:
            del buffer[:at]


class Way:
    """One direction of one connection: frames leave in order, perhaps later."""

    def __init__(self, network: "Network", name: str) -> None:
        self._network = network
        self._name = name
        self._queue: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.target: asyncio.Transport | None = None
        self.gone = False
        self.held = False

    def put(self, frame: bytes) -> None:
        """Send now, or behind what waits."""
        network = self._network
        if self.gone:
            return
        if self.target is not None and not (
            self._queue or self.held or network.delay_s or self._name in network.cut
        ):
            self.target.write(frame)
            return
        due = network.loop.time() + network.random.uniform(0, network.delay_s)
        self._queue.append((due, frame))
        self.pump()

    def pump(self) -> None:
        """Send what is due."""
        now = self._network.loop.time()
        while self._queue and not (
            self.held or self.target is None or self._name in self._network.cut
        ):
            due, frame = self._queue[0]
            if due > now:
                if self._timer is None:
                    self._timer = self._network.loop.call_at(due, self._later)
                return
            self._queue.popleft()
            self.target.write(frame)

    def _later(self) -> None:
        self._timer = None
        self.pump()


class Pair:
    """A client's connection and ours to the broker."""

    def __init__(self, network: "Network") -> None:
        self.network = network
        self.client = Side(self, self.request)
        self.broker = Side(self, self.answer)
        self.up = Way(network, "up")
        self.down = Way(network, "down")
        self.hold: Hold | None = None
        self.asked: dict[int, int] = {}
        self._connecting: asyncio.Task[None] | None = None

    def accepted(self) -> None:
        """The client is there: find the broker."""
        self.network.pairs.append(self)
        self.down.target = self.client.transport
        self._connecting = self.network.loop.create_task(self._connect())

    async def _connect(self) -> None:
        assert self.network.upstream is not None
        try:
            await self.network.loop.create_connection(lambda: self.broker, *self.network.upstream)
        except OSError:
            self.close()
            return
        if self.up.gone:
            self.close()
            return
        self.up.target = self.broker.transport
        self.up.pump()

    def request(self, frame: bytes) -> None:
        """A client's frame: perhaps to be held, perhaps the sign that a held one is out of date."""
        network = self.network
        api_key, version, correlation_id = _REQUEST.unpack_from(frame, 4)
        self.asked[correlation_id] = api_key
        network.counts["requests"] += 1
        network.counts["request bytes"] += len(frame)
        if network.orders or network.holds:
            network.consider(self, identify(api_key, version, frame))
        self.up.put(frame)

    def answer(self, frame: bytes) -> None:
        """The broker's frame: to the client, unless it gets lost or nobody waits for it."""
        network = self.network
        api_key = self.asked.pop(_SIZE.unpack_from(frame, 4)[0], -1)
        network.counts["answer bytes"] += len(frame)
        if self.client.transport is None:
            return
        if network.lose and network.random.random() < network.lose:
            network.counts["answers lost"] += 1
            network.counts[f"answers lost, api {api_key}"] += 1
            self.close()
            return
        self.down.put(frame)

    def lost(self, side: "Side") -> None:
        """One end closed. What is held survives its client: that is what a delayed message is."""
        if side is self.client and self.hold is not None:
            self.down.gone = True
            self.down.target = None
            return
        self.close()

    def abandon(self) -> None:
        """Break towards the client only; what it sent is still under way."""
        transport, self.client.transport = self.client.transport, None
        self.down.gone = True
        self.down.target = None
        if transport is not None:
            transport.abort()

    def close(self) -> None:
        """Break both ends."""
        self.up.gone = self.down.gone = True
        for side in (self.client, self.broker):
            transport, side.transport = side.transport, None
            if transport is not None:
                transport.abort()
        self.up.target = self.down.target = None
        if self in self.network.pairs:
            self.network.pairs.remove(self)
        if self.hold is not None:
            self.network.lost_hold(self.hold)
            self.hold = None


class Side(asyncio.Protocol):
    """One socket of a pair."""

    def __init__(self, pair: Pair, take: Callable[[bytes], None]) -> None:
        self._pair = pair
        self._frames = Frames(take)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; a client's is the begin of a pair."""
        # Not asserted: a transport of uvloop is one in all but its class.
        self.transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(HIGH_WATER)
        if self is self._pair.client:
            self._pair.accepted()

    def data_received(self, data: bytes) -> None:
        """Cut into frames."""
        if self.transport is not None:
            self._frames.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the pair, once."""
        if self.transport is not None:
            self.transport = None
            self._pair.lost(self)

    def pause_writing(self) -> None:
        """The other end reads no faster than this one writes."""
        if (other := self._other()) is not None:
            other.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        if (other := self._other()) is not None:
            other.resume_reading()

    def _other(self) -> asyncio.Transport | None:
        pair = self._pair
        return (pair.broker if self is pair.client else pair.client).transport


class Network:
    """What all connections share: the faults in force, and the counts."""

    def __init__(self, seed: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.random = random.Random(seed)
        self.upstream: tuple[str, int] | None = None
        self.pairs: list[Pair] = []
        self.delay_s = 0.0
        self.cut: frozenset[str] = frozenset()
        self.lose = 0.0
        self.orders: list[Order] = []
        self.holds: list[Hold] = []
        self.counts: Counter[str] = Counter()

    def consider(self, pair: Pair, seen: Seen | None) -> None:
        """Hold this frame's connection if that is ordered; release what it makes out of date."""
        if seen is None:
            return
        for hold in [each for each in self.holds if each.pair is not pair]:
            if hold.passed(seen):
                self.loop.call_soon(self.release, hold)
        for order in self.orders:
            if pair.hold is None and order.wants(seen):
                self.orders.remove(order)
                self._begin(pair, order, seen)
                return

    def _begin(self, pair: Pair, order: Order, seen: Seen) -> None:
        hold = pair.hold = Hold(pair, seen, self.random.randrange(4))
        pair.up.held = True
        self.holds.append(hold)
        self.counts[f"held {hold.kind}"] += 1
        self.loop.call_later(order.most_s, self.release, hold)
        if not order.wait:
            self.loop.call_soon(pair.abandon)

    def release(self, hold: Hold) -> None:
        """Deliver all that this connection had under way, in its order."""
        if hold not in self.holds:
            return
        self.holds.remove(hold)
        pair = hold.pair
        pair.hold = None
        self.counts[f"delivered {hold.kind}, {hold.when}"] += 1
        pair.up.held = False
        pair.up.pump()
        if pair.client.transport is None:
            # The broker answers to nobody, and the connection ends as one whose client died.
            self.loop.call_later(2.0, pair.close)

    def lost_hold(self, hold: Hold) -> None:
        """Its connection to the broker broke first: the message never arrives."""
        if hold in self.holds:
            self.holds.remove(hold)
            self.counts[f"never delivered {hold.kind}"] += 1

    def resume(self) -> None:
        """Nothing is cut or delayed any more."""
        self.cut, self.delay_s = frozenset(), 0.0
        for pair in list(self.pairs):
            pair.up.pump()
            pair.down.pump()

    def reset(self, share: float) -> None:
        """Break so many of the connections."""
        for pair in list(self.pairs):
            if self.random.random() < share:
                self.counts["connections reset"] += 1
                pair.close()

    def heal(self) -> None:
        """Deliver everything and be a wire again."""
        self.orders.clear()
        self.lose = 0.0
        for hold in list(self.holds):
            self.release(hold)
        self.resume()

    def obey(self, order: dict[str, object]) -> dict[str, int]:
        """Carry out one command and return the counts."""
        match order:
            case {"do": "upstream", "port": int(port)}:
                self.upstream = ("127.0.0.1", port)
            case {"do": "delay", "most_s": float(most_s)}:
                self.delay_s = most_s
            case {"do": "cut", "ways": list(ways)}:
                self.cut = frozenset(str(way) for way in ways)
            case {"do": "resume"}:
                self.resume()
            case {"do": "reset", "share": float(share)}:
                self.reset(share)
            case {"do": "lose", "chance": float(chance)}:
                self.lose = chance
            case {
                "do": "hold",
                "kind": str(kind),
                "wait": bool(wait),
                "most_s": float(most_s),
            }:
                self.orders.append(Order(kind, wait=wait, most_s=most_s))
            case {"do": "heal"}:
                self.heal()
            case _:
                assert order == {"do": "counts"}, order
        return dict(self.counts)


def _say(answer: dict[str, int]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


async def _serve(seed: int) -> None:
    network = Network(seed)
    server = await network.loop.create_server(
        lambda: Pair(network).client, "127.0.0.1", 0, backlog=1024
    )
    _say({"port": server.sockets[0].getsockname()[1]})
    reader = asyncio.StreamReader()
    await network.loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb")
    )
    while line := await reader.readline():
        _say(network.obey(json.loads(line)))


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
