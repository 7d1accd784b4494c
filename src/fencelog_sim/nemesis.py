"""Injects the faults of a plan into a world, and heals the world afterwards."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from struct import Struct

from fencelog.types import NodeId
from fencelog.wire.api_versions import ApiKey, BrokerApiKey
from fencelog.wire.framing import SIZE_BYTES
from fencelog_sim.clustered import failed_alone
from fencelog_sim.faults import Fault, Kind, Plan
from fencelog_sim.monitors.replica_logs import ends_in_batch
from fencelog_sim.moves import lead, others_in_sync
from fencelog_sim.world.disk import Loss
from fencelog_sim.world.gate import Halt, Lost
from fencelog_sim.world.host import BrokerHost
from fencelog_sim.world.network import SimTransport
from fencelog_sim.world.world import World, client_host

NAMES = {int(key): key.name.title().replace("_", "") for key in (*ApiKey, *BrokerApiKey)}
_REQUEST = Struct(">ihhi")
_ANSWER = Struct(">ii")
SLOW = 50.0
SIDE_FLIPS = 4
GARBLED_FROM_END = 2
"""Before the number of its headers, a record has its value."""
AT_ONCE_SHARE = 0.5
AT_ONCE_S = 1e-5
"""Before anybody can have acted on the end of a lease."""
BACK_S = 0.1
"""How long a broker leads again when what was sent to it before arrives."""
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
        self.answered: Callable[[BrokerHost, str], None] = lambda host, name: None
        """Called before each answer of a broker, with the request's name."""
        self._garbling: list[BrokerHost] = []
        """Those whose next records for a follower are damaged."""
        self.injected: Counter[str] = Counter()
        for host in world.hosts:
            host.gate = partial(self._gate, host)
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
        """End every fault, disarm all points, and make sure that brokers run on sound disks."""
        world = self._world
        self._armed.clear()
        self._garbling.clear()
        for task in self._following:
            task.cancel()
        world.network.heal()
        for host in world.hosts:
            host.heal_disk()
            host.heal_store()
        world.resume_all()
        stuck = failed_alone(world.hosts, world.store) if len(world.hosts) > 1 else set()
        for host in world.hosts:
            await host.life_ended()
            if host.node is None or host.needs_restart or host.flipped or host in stuck:
                # Half started, or half stopped by a task that is cancelled now.
                host.kill()
                host.needs_restart = False
                host.flip_back()
                await host.start()

    # -- points --------------------------------------------------------------------------------

    def _gate(self, host: BrokerHost, verb: str, name: str, size: int) -> Halt | None:
        """The fault at an operation of the disk or the metadata store, in the same step."""
        fault = self._due(host, verb, name)
        if fault is None:
            return None
        if fault.kind not in {Kind.KILL, Kind.POWER}:
            self._inject(fault)
            return None
        done = size if fault.after else self._world.faults.choice((0, 0, size // 2))
        return Halt(done, lambda: self._inject(fault))

    def _at_frame(self, host: BrokerHost, verb: str, name: str, transport: SimTransport) -> None:
        """Called before a request arrives or a response is sent."""
        fault = self._due(host, verb, name)
        if fault is None:
            return
        if fault.kind in {Kind.STRAND, Kind.MOVE}:
            self._at = transport
            self._inject(fault)
            self._at = None
        elif fault.after:
            self._soon(fault)
        else:
            self._inject(fault)

    def _due(self, host: BrokerHost, verb: str, name: str) -> Fault | None:
        """The armed fault whose n-th match this is."""
        for armed in self._armed:
            if armed.fault.host != host.number or armed.verb != verb:
                continue
            if fnmatchcase(name, armed.pattern):
                armed.left -= 1
                if armed.left == 0:
                    self._armed.remove(armed)
                    return armed.fault
        return None

    def _soon(self, fault: Fault) -> None:
        """Inject the fault after the broker's current step."""
        loop = self._world.loop
        loop.call_soon(self._inject, fault, context=loop.outside.context)

    def _host_of(self, transport: SimTransport) -> BrokerHost | None:
        """The host whose broker has this side of a connection; None for a client's."""
        hosts = self._world.hosts
        return next((host for host in hosts if transport.process is host.broker), None)

    def _arriving(self, transport: SimTransport, data: bytes) -> None:
        host = self._host_of(transport)
        if host is None or len(data) < _REQUEST.size:
            return
        size, api_key, _, correlation = _REQUEST.unpack_from(data)
        if size + SIZE_BYTES <= len(data) and api_key in NAMES:
            name = NAMES[api_key]
            self._requests[transport.peer[1], correlation] = name
            self._at_frame(host, "request", name, transport)

    def _sending(self, transport: SimTransport, data: bytes) -> bytes:
        """Return what is sent instead."""
        host = self._host_of(transport)
        if host is None or len(data) < _ANSWER.size:
            return data
        _, correlation = _ANSWER.unpack_from(data)
        name = self._requests.pop((transport.peer[1], correlation), None)
        if name is not None:
            self._at_frame(host, "answer", name, transport)
            self.answered(host, name)
        if (
            host in self._garbling
            and name == NAMES[BrokerApiKey.REPLICA_FETCH]
            and ends_in_batch(data)
        ):
            self._garbling.remove(host)
            at = len(data) - GARBLED_FROM_END
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    # -- injection -----------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> None:
        if self._carry_out(fault):
            self.injected[fault.kind] += 1
            self._report(fault)

    def _carry_out(self, fault: Fault) -> bool:  # noqa: C901, PLR0912 - a table of kinds
        """Begin a fault; False if it has nothing to act on."""
        world, host = self._world, self._world.hosts[fault.host - 1]
        match fault.kind:
            case Kind.KILL if host.broker is not None:
                host.kill()
                self._follow(fault, partial(self._start_again, host))
            case Kind.POWER:
                host.cut_power(Loss[fault.how])
                self._follow(fault, partial(self._start_again, host))
            case Kind.RESTART if host.node is not None:
                self._follow(fault, partial(self._restart, host), at_once=True)
            case Kind.PAUSE if host.broker is not None:
                world.loop.pause(host.broker)
                self._follow(fault, partial(world.loop.resume, host.broker))
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
                self._follow(fault, partial(world.loop.resume, client))
            case Kind.CUT:
                for client_address in world.client_hosts():
                    if fault.how in {"in", "both"}:
                        world.network.cut(client_address, host.address)
                    if fault.how in {"out", "both"}:
                        world.network.cut(host.address, client_address)
                self._follow(fault, world.network.heal)
            case Kind.DELAY:
                world.network.delay(host.address, world.faults.uniform(0.02, 1.0))
                self._follow(fault, world.network.heal)
            case Kind.RESET | Kind.SWALLOW | Kind.STRAND:
                return self._connections(fault, host)
            case Kind.SYNC_FAILS | Kind.WRITE_FAILS | Kind.FULL:
                self._fail_disk(fault, host)
            case Kind.SKEW:
                world.clock.skew_ms += int(fault.how)
            case Kind.ROT if host.node is not None:
                self._follow(fault, partial(self._rot, host, fault), at_once=True)
            case Kind.SIDE_ROT if host.node is not None:
                self._follow(fault, partial(self._rot_beside, host, fault), at_once=True)
            case Kind.LATE_MARKER:
                self._follow(fault, partial(self._mark_late, host, fault), at_once=True)
                return False  # reported when it finds its transaction
            case Kind.SLOW_DISK:
                host.sync_factor = SLOW
                self._follow(fault, partial(self._quick_disk, host))
            case _:
                return self._between_brokers(fault, host)
        return True

    def _connections(self, fault: Fault, host: BrokerHost) -> bool:
        network = self._world.network
        chosen = network.connections(host.address)
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

    def _fail_disk(self, fault: Fault, host: BrokerHost) -> None:
        if fault.kind is Kind.FULL:
            host.disk.free_bytes = self._world.faults.randrange(2000)
        else:
            host.failing = "sync" if fault.kind is Kind.SYNC_FAILS else "append"
        if len(self._world.hosts) > 1 and not fault.how:
            self._follow(fault, host.heal_disk)
            return
        host.needs_restart = True
        self._follow(fault, partial(self._replace_disk, host, fault.how))

    def _between_brokers(  # noqa: C901, PLR0912 - a table of kinds
        self, fault: Fault, host: BrokerHost
    ) -> bool:
        """Begin a fault that only a cluster knows; False if it has nothing to act on."""
        world = self._world
        match fault.kind:
            case Kind.LINK:
                other = world.hosts[fault.other - 1].address
                self._cut_ways(fault, [other], host)
            case Kind.ISOLATE:
                others = [each.address for each in world.hosts if each is not host]
                self._cut_ways(fault, [*others, *world.client_hosts()], host)
            case Kind.NO_STORE:
                hosts = world.hosts if fault.how == "all" else [host]
                for each in hosts:
                    each.cut_from_store()
                    self._follow(fault, each.heal_store)
            case Kind.LEASE_LOST:
                lease = world.store.lease_of(f"broker/{host.number}")
                if lease is None:
                    return False
                world.store.end(lease)
            case Kind.LATE_WATCH:
                host.metadata.lateness = lambda: world.faults.uniform(0.0, fault.seconds)
                self._follow(fault, host.heal_store)
            case Kind.LOST_ANSWER:
                host.metadata.lose = partial(self._lose, host, fault)
            case Kind.GARBLE:
                self._garbling.append(host)
            case Kind.COMPACTION:
                world.store.compact()
            case Kind.MOVE:
                return self._move(fault, host)
            case Kind.SITE_POWER:
                for each in world.hosts:
                    each.cut_power(Loss[fault.how])
                    self._follow(fault, partial(self._start_again, each))
            case _:
                return False
        return True

    def _move(self, fault: Fault, host: BrokerHost) -> bool:
        """Let others lead what a broker leads, and then that one again; False if it is nothing."""
        world, leader = self._world, NodeId(host.number)
        others = dict(others_in_sync(world.store, leader))
        if self._at is not None:
            world.network.strand(self._at, fault.seconds + BACK_S)
        lead(world.store, {key: world.faults.choice(found) for key, found in others.items()})
        self._follow(fault, partial(lead, world.store, dict.fromkeys(others, leader)))
        return bool(others)

    def _cut_ways(self, fault: Fault, addresses: list[str], host: BrokerHost) -> None:
        """Cut a host from others for a while, in one direction or both."""
        into = [(each, host.address) for each in addresses]
        out = [(host.address, each) for each in addresses]
        ways = {"in": into, "out": out, "both": into + out}[fault.how]
        for source, target in ways:
            self._world.network.cut(source, target)
        self._follow(fault, partial(self._world.network.mend, ways))

    def _lose(self, host: BrokerHost, fault: Fault, verb: str, key: str) -> Lost:
        """Lose one answer; the store may have done what was asked, or do it later."""
        del verb, key
        host.metadata.lose = None
        if fault.how == "overtaken":
            self._soon(Fault(kind=Kind.LEASE_LOST, at=fault.at, host=host.number))
        late_s = fault.seconds if fault.how in {"late", "overtaken"} else 0.0
        if fault.how == "overtaken" and self._world.faults.random() < AT_ONCE_SHARE:
            late_s = AT_ONCE_S
        return Lost(is_stored=fault.how != "not-stored", after_s=late_s)

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

    @staticmethod
    async def _start_again(host: BrokerHost) -> None:
        if host.broker is None:
            await host.start()

    async def _restart(self, host: BrokerHost) -> None:
        await host.stop()
        await self._start_again(host)

    async def _replace_disk(self, host: BrokerHost, loss: str) -> None:
        host.heal_disk()
        if host.needs_restart:
            host.needs_restart = False
            if loss:
                host.cut_power(Loss[loss])
            else:
                host.kill()
            await self._start_again(host)

    async def _rot(self, host: BrokerHost, fault: Fault) -> None:
        """Damage below the recovery point takes the partition offline and truncates nothing."""
        # Recovery may truncate damage in what a failed disk has not synced.
        if await host.stop() and not host.needs_restart:
            host.flip_a_bit()
        await self._start_again(host)
        await asyncio.sleep(fault.seconds)
        if host.flipped:
            host.kill()
            host.flip_back()
            await self._start_again(host)

    async def _rot_beside(self, host: BrokerHost, fault: Fault) -> None:
        """Damage to what can be rebuilt is found by its checksum, and repaired."""
        if fault.how == "killed":
            host.kill()
        if fault.how == "killed" or await host.stop():
            for _ in range(SIDE_FLIPS):
                host.flip_beside()
        await self._start_again(host)

    async def _mark_late(self, host: BrokerHost, fault: Fault) -> None:
        """Wait for a transaction of a producer that has a marker of a newer coordinator epoch."""
        for _ in range(LATE_MARKER_TRIES):
            await asyncio.sleep(LATE_MARKER_RETRY_S)
            if host.mark_late():
                self.injected[fault.kind] += 1
                self._report(fault)
                return

    @staticmethod
    def _quick_disk(host: BrokerHost) -> None:
        host.sync_factor = 1.0
