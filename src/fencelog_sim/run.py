"""One run: the seed's setting, the clients, the faults and the checks at the end."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Self, TypeAlias
from zlib import crc32

from fencelog.check import check
from fencelog.check.history import FINAL, Event, Recorder
from fencelog.errors import StorageError
from fencelog_sim.cluster_faults import draw_for_cluster
from fencelog_sim.clustered import clustered, led_epoch, other_producers, shown_offsets
from fencelog_sim.faults import Fault, Kind, Plan, draw, losses_in
from fencelog_sim.monitors.invariants import Monitor
from fencelog_sim.monitors.leaderships import Leaderships
from fencelog_sim.monitors.replication import ReplicationMonitor
from fencelog_sim.nemesis import Nemesis
from fencelog_sim.operator import Operator
from fencelog_sim.surviving import surviving
from fencelog_sim.workload import Scale, Workload
from fencelog_sim.workloads import POINTS, WORKLOADS
from fencelog_sim.world import trampolines
from fencelog_sim.world.endless import EndlessStepError
from fencelog_sim.world.loop import SimLoop, StuckError
from fencelog_sim.world.network import Weather
from fencelog_sim.world.world import Setting, World, client_host

PREPARE_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
SETTLE_LIMIT_S = 180.0
RUN_LIMIT_S = 600.0
CLIENT_DOWN_S = 0.5
CATCH_UP_LIMIT_S = 120.0
CATCH_UP_LOOK_S = 0.5
REPLICAS = 3
REPLICA_LAGS_S = (0.5, 2.0, 5.0)
"""One that hears nothing more leaves before a client's call ends (``CALL_S``)."""
COMMITS_AT_ALL_SHARE = 0.1
PARTIAL_SHARE = 0.2
"""Of all runs, those where each partition has a broker that has no replica of it."""
DISK_FAULTS = {Kind.SYNC_FAILS, Kind.WRITE_FAILS, Kind.FULL}
"""Faults after which a broker may stop by itself with a StorageError."""
OFFICE_HOST = "10.0.2.1"
"""The host that creates the topics and reads everything at the end."""


Observed: TypeAlias = Monitor | ReplicationMonitor


@dataclass(frozen=True)
class Case:
    """What determines a run: the seed, and what a user or the shrinker overrides."""

    seed: int
    workload: str
    plan: Plan | None = None
    """Instead of the one that the seed would draw."""
    clients: int | None = None
    span_s: float | None = None
    brokers: int = 1

    def to_json(self) -> dict[str, object]:
        """A JSON object that ``from_json`` reads."""
        plan = None if self.plan is None else [fault.to_json() for fault in self.plan]
        entries = {**asdict(self), "plan": plan}
        if self.brokers == 1:
            del entries["brokers"]
        return {name: value for name, value in entries.items() if value is not None}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Self:
        """Read a case. Raises ValueError, TypeError or KeyError for anything else."""
        plan = tuple(Fault.from_json(fault) for fault in entry["plan"])
        if entry["workload"] not in WORKLOADS:
            raise ValueError(f"there is no workload {entry['workload']!r}")
        return cls(**{**entry, "plan": plan})


@dataclass
class Result:
    """What a run did and what was wrong with it."""

    case: Case
    setting: Setting
    scale: Scale
    plan: Plan
    span_s: float
    """How long the clients acted, in virtual seconds."""
    digest: str = ""
    events: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    injected: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    """The faults in the order of injection, one line each."""


@dataclass
class SimStage:
    """The stage of one client process."""

    bootstrap: str
    random: Random
    history: Recorder
    scale: Scale
    loop: SimLoop
    stopping: bool = False

    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.time()

    async def pause(self) -> None:
        """Wait for as long as the scale says, on average."""
        await asyncio.sleep(self.random.expovariate(1.0) * self.scale.pause_s)


def run(case: Case) -> Result:
    """Run a case in this process and check it.

    The tasks of its killed processes stay in memory, so a process that runs many cases has to be
    replaced from time to time.
    """
    trampolines.install()
    name = f"{case.workload}/{case.seed}" + f"/{case.brokers}" * (case.brokers > 1)
    trampolines.seed(name)
    collecting = gc.isenabled()
    # A collection at another moment would run other finalizers at another virtual time.
    gc.disable()
    try:
        return _Run(case, name).play()
    finally:
        if collecting:
            gc.enable()


class _Run:
    """The phases of one run, as a coroutine of the world itself."""

    def __init__(self, case: Case, name: str) -> None:
        self._workload: Workload = WORKLOADS[case.workload]()
        random = Random(f"{name}/setting")
        setting, scale, span_s = _draw_setting(random, case, expires=self._workload.expires)
        if case.brokers > 1:
            setting, more_s = _draw_cluster(Random(f"{name}/cluster"), setting, case.brokers)
            span_s = case.span_s or span_s + more_s
        plan = case.plan
        if plan is None:
            plan = self._draw_plan(Random(f"{name}/plan"), setting, scale, span_s, case.brokers)
        self._result = Result(case, setting, scale, plan, span_s)
        self._world, self._monitor = _observed(name, setting, case.brokers)
        self._nemesis = Nemesis(self._world, plan, self._report_fault)
        if isinstance(self._monitor, ReplicationMonitor):
            self._nemesis.answered = self._monitor.answered
        self._stages: dict[int, SimStage] = {}
        self._stopping = False

    def play(self) -> Result:
        result, world = self._result, self._world
        began = time.perf_counter()
        try:
            world.loop.run(self._main(), limit_s=RUN_LIMIT_S)
        except (TimeoutError, StuckError, EndlessStepError) as error:
            result.problems.append(f"stuck: {error}")
        history = surviving(result.history, world.lost_at)
        verdict = check(history)
        notes = sum(event["type"] == "meta" for event in result.history)
        result.problems += [f"{each.kind}: {each.text}" for each in verdict.problems]
        result.problems += self._workload.check(history)
        result.problems += self._monitor.violations
        result.problems += world.crashes
        is_excused = bool(DISK_FAULTS & self._nemesis.injected.keys())
        result.problems += [
            f"the broker ended by itself: {type(end).__name__}: {end}"
            for end in world.ends
            if not (is_excused and isinstance(end, StorageError))
        ]
        result.problems += [f"unhandled in a callback: {each}" for each in world.loop.errors]
        result.counts = {
            **verdict.counts,
            **self._monitor.counts,
            "table events": notes,
            "runs with nothing to check": int(verdict.outcome == "nothing-checked" and not notes),
        }
        result.injected = dict(self._nemesis.injected)
        result.digest = world.loop.digest()
        result.events = world.loop.events
        result.virtual_s = world.loop.time()
        result.real_s = time.perf_counter() - began
        return result

    # -- phases --------------------------------------------------------------------------------

    async def _main(self) -> None:
        world, scale = self._world, self._result.scale
        for host in world.hosts:
            await host.start()
        if world.is_cluster:
            world.loop.start(world.loop.outside, Operator(world).run())
        office = self._stage("prepare")
        await self._in_office("prepare", self._workload.prepare(office), PREPARE_LIMIT_S)
        keepers = [
            world.loop.start(world.loop.outside, self._keep_client(index))
            for index in range(scale.clients)
        ]
        await self._nemesis.run()
        await asyncio.sleep(max(0.0, self._result.span_s - world.loop.time()))
        await self._nemesis.heal()
        self._stopping = True
        for stage in self._stages.values():
            stage.stopping = True
        _, late = await asyncio.wait(keepers, timeout=STOP_LIMIT_S)
        for process in list(world.clients.values()) if late else []:
            self._result.problems.append(
                f"stuck: client {process.name} did not end within {STOP_LIMIT_S:.0f} s"
            )
            world.kill_client(process)
        settling = self._workload.settle(self._stage(FINAL))
        await self._in_office(FINAL, settling, SETTLE_LIMIT_S)
        if isinstance(self._monitor, ReplicationMonitor):
            await self._catch_up(self._monitor)
        for host in world.hosts:
            await host.stop()

    async def _catch_up(self, monitor: ReplicationMonitor) -> None:
        """Wait until every replica has all that is committed, and report what is missing."""
        deadline = self._world.loop.time() + CATCH_UP_LIMIT_S
        while (  # noqa: ASYNC110 - the time is virtual
            not monitor.is_complete() and self._world.loop.time() < deadline
        ):
            await asyncio.sleep(CATCH_UP_LOOK_S)
        monitor.finish()

    def _draw_plan(
        self, random: Random, setting: Setting, scale: Scale, span_s: float, brokers: int
    ) -> Plan:
        own = POINTS.get(self._workload.name, ())
        if brokers > 1:
            return draw_for_cluster(
                random,
                span_s,
                brokers=brokers,
                clients=scale.clients,
                durability=setting.durability,
                own=own,
            )
        losses = losses_in(setting.durability, may_lose=self._workload.may_lose)
        return draw(random, span_s, clients=scale.clients, losses=losses, own=own)

    async def _in_office(self, name: str, work: Coroutine[Any, Any, None], limit_s: float) -> None:
        """Do one of the workload's own tasks, as a process of its own, within a limit."""
        done = asyncio.Event()

        async def main() -> None:
            try:
                await work
            finally:
                done.set()

        self._world.start_client(name, OFFICE_HOST, main)
        try:
            async with asyncio.timeout(limit_s):
                await done.wait()
        except TimeoutError:
            self._result.problems.append(f"{name} did not end within {limit_s:.0f} s")

    async def _keep_client(self, index: int) -> None:
        """Start a client, and another one after each end of it."""
        world, incarnation = self._world, 0
        random = world.stream(f"keeper/{index}")
        while not self._stopping:
            incarnation += 1
            stage = self._stages[index] = self._stage(f"w{index}.{incarnation}")
            ended = asyncio.Event()
            process = world.start_client(
                stage.history.process, client_host(index), self._client(stage, index)
            )
            process.on_end = ended.set
            await ended.wait()
            if not stage.stopping:
                await asyncio.sleep(random.expovariate(1.0) * CLIENT_DOWN_S)

    def _client(self, stage: SimStage, index: int) -> Callable[[], Coroutine[Any, Any, None]]:
        return lambda: self._workload.client(stage, index)

    # -- history -------------------------------------------------------------------------------

    def _stage(self, process: str) -> SimStage:
        world = self._world
        return SimStage(
            bootstrap=world.bootstrap,
            random=world.stream(f"client/{process}"),
            history=Recorder(process, now=world.loop.time, write=self._write),
            scale=self._result.scale,
            loop=world.loop,
            stopping=self._stopping,
        )

    def _write(self, event: Event) -> None:
        self._result.history.append(event)
        self._world.loop.note(crc32(repr(event).encode()).to_bytes(4, "big"))

    def _report_fault(self, fault: Fault) -> None:
        at = self._world.loop.time()
        self._result.story.append(f"{at:8.3f} s  {fault}")
        self._result.history.append({"type": "fault", "time": at, "what": str(fault.kind)})


def _observed(name: str, setting: Setting, brokers: int) -> tuple[World, Observed]:
    """A world, and what watches it."""
    if brokers == 1:
        world = World(name, setting)
        return world, Monitor(world)
    world = World(name, setting, brokers=brokers, build=clustered)
    defaults = dict(setting.topic_defaults)
    return world, ReplicationMonitor(
        world,
        led_epoch,
        lambda topic: topic.log_config(defaults).min_insync_replicas,
        shown_offsets,
        other_producers,
        Leaderships().problems,
    )


def _draw_cluster(random: Random, setting: Setting, brokers: int) -> tuple[Setting, float]:
    """Draw what only a cluster has, and how much longer its clients act: elections take time."""
    session_s, lag_s = random.choice((1.0, 3.0)), random.choice(REPLICA_LAGS_S)
    share = random.random()
    is_partial = COMMITS_AT_ALL_SHARE <= share < COMMITS_AT_ALL_SHARE + PARTIAL_SHARE
    cluster = replace(
        setting,
        topic_defaults=(*setting.topic_defaults, ("min.insync.replicas", "2")),
        replicas=min(brokers, REPLICAS) - is_partial,
        broker_session_s=session_s,
        replica_lag_s=lag_s,
        commits_at_all=share < COMMITS_AT_ALL_SHARE,
    )
    return cluster, random.uniform(4.0, 12.0)


def _draw_setting(random: Random, case: Case, *, expires: bool) -> tuple[Setting, Scale, float]:
    """Draw from the seed all settings except the faults."""
    setting = Setting(
        durability="fsync" if random.random() < 0.7 else "os",
        weather=Weather(
            jitter_s=random.choice((0.0005, 0.002, 0.02)),
            split=random.choice((0.0, 0.05, 0.3)),
            retransmit=random.choice((0.0, 0.002, 0.02)),
        ),
        sync_s=random.choice((0.0005, 0.003, 0.02)),
        topic_defaults=(("segment.bytes", random.choice(("1024", "4096", "1048576"))),),
        internal_partitions=random.randint(1, 3),
        upkeep_s=random.choice((0.3, 1.0, 5.0)),
        compaction_s=random.choice((0.1, 0.4, 1.5)),
        expiry_min=int(expires),
    )
    clients, span_s = random.randint(2, 4), random.uniform(3.0, 8.0)
    scale = Scale(
        clients=case.clients or clients,
        partitions=random.randint(1, 4),
        records_per_send=random.randint(1, 4),
        pause_s=random.choice((0.03, 0.15, 0.4)),
        key_records=random.choice((16, 64, 256)),
        session_s=random.choice((0.6, 1.0, 2.0)),
        expiry_s=60.0 if expires else 0.0,
    )
    return setting, scale, case.span_s or span_s
