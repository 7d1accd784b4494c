"""Injects the faults of a plan into a world, and heals the world afterwards."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from struct import Struct

from fencelog.wire.api_versions import ApiKey
from fencelog.wire.framing import SIZE_BYTES
from fencelog_sim.faults import Fault, Kind, Plan
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.gate import Halt
from fencelog_sim.world.network import SimTransport
from fencelog_sim.world.world import BROKER_HOST, World, client_host

NAMES = {int(key): key.name.title().replace("_", "") for key in ApiKey}
_REQUEST = Struct(">ihhi")
_ANSWER = Struct(">ii")
SLOW = 50.0
SIDE_FLIPS = 4
LATE_MARKER_TRIES = 500
LATE_MARKER_RETRY_S = 0.005


@dataclass(eq=False)
class _Armed:
    """A fault that waits for its point."""

    fault: Fault
    verb: str
    pattern: str
    left: int


class Nemesis:
    """One run's faults. ``report`` is called with each fault when it is injected."""

    def __init__(self, world: World, plan: Plan, report: Callable[[Fault], None]) -> None:
        """Watch the points of a world."""
        self._world = world
        self._plan = plan
        self._report = report
        self._armed: list[_Armed] = []
        self._requests: dict[tuple[int, int], str] = {}
        self._following: list[asyncio.Task[None]] = []
        self._at: SimTransport | None = None
        """The connection whose frame a fault at a point waited for."""
        self.injected: Counter[str] = Counter()
        world.gate = self._gate
        world.network.arriving = self._arriving
        world.network.sending = self._sending

    async def run(self) -> None:
        """Inject or arm each fault at its time."""
        began = self._world.loop.time()
        for fault in self._plan:
            await asyncio.sleep(max(0.0, began + fault.at - self._world.loop.time()))
            if fault.point:
                verb, _, pattern = fault.point.partition(" ")
                self._armed.append(_Armed(fault, verb, pattern, fault.nth))
            else:
                self._inject(fault)

    async def heal(self) -> None:
        """End every fault, disarm all points, and make sure that a broker runs on a sound disk."""
        world = self._world
        self._armed.clear()
        for task in self._following:
            task.cancel()
        world.network.heal()
        world.heal_disk()
        world.resume_all()
        if world.node is None or world.needs_restart or world.flipped:
            # Half started, or half stopped by a task that is cancelled now.
            world.kill_broker()
            world.needs_restart = False
            world.flip_back()
            await world.start_broker()

    # -- points --------------------------------------------------------------------------------

    def _gate(self, verb: str, name: str, size: int) -> Halt | None:
        """The fault at an operation of the disk or the metadata store, in the same step."""
        fault = self._due(verb, name)
        if fault is None:
            return None
        if fault.kind not in {Kind.KILL, Kind.POWER}:
            self._inject(fault)
            return None
        done = size if fault.after else self._world.faults.choice((0, 0, size // 2))
        return Halt(done, lambda: self._inject(fault))

    def _at_frame(self, verb: str, name: str, transport: SimTransport) -> None:
        """Called before a request arrives or a response is sent."""
        fault = self._due(verb, name)
        if fault is None:
            return
        if fault.kind is Kind.STRAND:
            self._at = transport
            self._inject(fault)
            self._at = None
        elif fault.after:
            self._soon(fault)
        else:
            self._inject(fault)

    def _due(self, verb: str, name: str) -> Fault | None:
        """The armed fault whose n-th match this is."""
        for armed in self._armed:
            if armed.verb == verb and fnmatchcase(name, armed.pattern):
                armed.left -= 1
                if armed.left == 0:
                    self._armed.remove(armed)
                    return armed.fault
        return None

    def _soon(self, fault: Fault) -> None:
        """Inject the fault after the broker's current step."""
        loop = self._world.loop
        loop.call_soon(self._inject, fault, context=loop.outside.context)

    def _arriving(self, transport: SimTransport, data: bytes) -> None:
        if transport.process is not self._world.broker or len(data) < _REQUEST.size:
            return
        size, api_key, _, correlation = _REQUEST.unpack_from(data)
        if size + SIZE_BYTES <= len(data) and api_key in NAMES:
            name = NAMES[api_key]
            self._requests[transport.peer[1], correlation] = name
            self._at_frame("request", name, transport)

    def _sending(self, transport: SimTransport, data: bytes) -> None:
        if transport.process is not self._world.broker or len(data) < _ANSWER.size:
            return
        _, correlation = _ANSWER.unpack_from(data)
        name = self._requests.pop((transport.peer[1], correlation), None)
        if name is not None:
            self._at_frame("answer", name, transport)

    # -- injection -----------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> None:
        if self._carry_out(fault):
            self.injected[fault.kind] += 1
            self._report(fault)

    def _carry_out(self, fault: Fault) -> bool:  # noqa: C901, PLR0912 - a table of kinds
        """Begin a fault; False if it has nothing to act on."""
        world = self._world
        match fault.kind:
            case Kind.KILL if world.broker is not None:
                world.kill_broker()
                self._follow(fault, self._start_again)
            case Kind.POWER:
                world.cut_power(Loss[fault.how])
                self._follow(fault, self._start_again)
            case Kind.RESTART if world.node is not None:
                self._follow(fault, self._restart, at_once=True)
            case Kind.PAUSE if world.broker is not None:
                broker = world.broker
                world.loop.pause(broker)
                self._follow(fault, lambda: world.loop.resume(broker))
            case Kind.CLIENT_KILL:
                client = world.client_of(client_host(int(fault.how)))
                if client is None:
                    return False
                world.kill_client(client)
            case Kind.CLIENT_PAUSE:
                client = world.client_of(client_host(int(fault.how)))
                if client is None:
                    return False
                world.loop.pause(client)
                self._follow(fault, lambda: world.loop.resume(client))
            case Kind.CUT:
                for host in world.client_hosts():
                    if fault.how in {"in", "both"}:
                        world.network.cut(host, BROKER_HOST)
                    if fault.how in {"out", "both"}:
                        world.network.cut(BROKER_HOST, host)
                self._follow(fault, world.network.heal)
            case Kind.DELAY:
                world.network.delay(BROKER_HOST, world.faults.uniform(0.02, 1.0))
                self._follow(fault, world.network.heal)
            case Kind.RESET | Kind.SWALLOW | Kind.STRAND:
                return self._connections(fault)
            case Kind.SYNC_FAILS | Kind.WRITE_FAILS | Kind.FULL:
                self._fail_disk(fault)
                self._follow(fault, lambda: self._replace_disk(fault.how))
            case Kind.SKEW:
                world.clock.skew_ms += int(fault.how)
            case Kind.ROT if world.node is not None:
                self._follow(fault, lambda: self._rot(fault), at_once=True)
            case Kind.SIDE_ROT if world.node is not None:
                self._follow(fault, lambda: self._rot_beside(fault), at_once=True)
            case Kind.LATE_MARKER:
                self._follow(fault, lambda: self._mark_late(fault), at_once=True)
                return False  # reported when it finds its transaction
            case Kind.SLOW_DISK:
                world.sync_factor = SLOW
                self._follow(fault, self._quick_disk)
            case _:
                return False
        return True

    def _connections(self, fault: Fault) -> bool:
        network = self._world.network
        chosen = network.connections(BROKER_HOST)
        if not chosen:
            return False
        if fault.kind is not Kind.RESET or fault.how == "one":
            chosen = [self._at or self._world.faults.choice(chosen)]
        for transport in chosen:
            if fault.kind is Kind.STRAND:
                network.strand(transport, fault.seconds)
            elif fault.kind is Kind.SWALLOW:
                network.swallow(transport)
            else:
                network.reset(transport)
        return True

    def _fail_disk(self, fault: Fault) -> None:
        world = self._world
        world.needs_restart = True
        if fault.kind is Kind.FULL:
            world.disk.free_bytes = world.faults.randrange(2000)
        else:
            world.failing = "sync" if fault.kind is Kind.SYNC_FAILS else "append"

    # -- follow-ups ----------------------------------------------------------------------------

    def _follow(self, fault: Fault, what: Callable[[], object], *, at_once: bool = False) -> None:
        async def later() -> None:
            if not at_once:
                await asyncio.sleep(fault.seconds)
            result = what()
            if asyncio.iscoroutine(result):
                await result

        loop = self._world.loop
        self._following.append(loop.start(loop.outside, later()))

    async def _start_again(self) -> None:
        if self._world.broker is None:
            await self._world.start_broker()

    async def _restart(self) -> None:
        await self._world.stop_broker()
        await self._start_again()

    async def _replace_disk(self, loss: str) -> None:
        world = self._world
        world.heal_disk()
        if world.needs_restart:
            world.needs_restart = False
            if loss:
                world.cut_power(Loss[loss])
            else:
                world.kill_broker()
            await self._start_again()

    async def _rot(self, fault: Fault) -> None:
        """Damage below the recovery point takes the partition offline and truncates nothing."""
        world = self._world
        # Recovery may truncate damage in what a failed disk has not synced.
        if await world.stop_broker() and not world.needs_restart:
            world.flip_a_bit()
        await self._start_again()
        await asyncio.sleep(fault.seconds)
        if world.flipped:
            world.kill_broker()
            world.flip_back()
            await self._start_again()

    async def _rot_beside(self, fault: Fault) -> None:
        """Damage to what can be rebuilt is found by its checksum, and repaired."""
        world = self._world
        if fault.how == "killed":
            world.kill_broker()
        if fault.how == "killed" or await world.stop_broker():
            for _ in range(SIDE_FLIPS):
                world.flip_beside()
        await self._start_again()

    async def _mark_late(self, fault: Fault) -> None:
        """Wait for a transaction of a producer that has a marker of a newer coordinator epoch."""
        world = self._world
        for _ in range(LATE_MARKER_TRIES):
            await asyncio.sleep(LATE_MARKER_RETRY_S)
            if world.mark_late():
                self.injected[fault.kind] += 1
                self._report(fault)
                return

    def _quick_disk(self) -> None:
        self._world.sync_factor = 1.0
