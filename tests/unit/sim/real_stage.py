"""A small stage on a real event loop: clients of one workload, bounded by operations."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from fencelog.check.history import Event, Recorder
from fencelog_sim.workload import Scale, Workload


@dataclass
class RealStage:
    """What one client is given; it stops after so many invocations."""

    bootstrap: str
    random: Random
    process: str
    scale: Scale
    events: list[Event]
    operations: int
    on_event: Callable[[int], None] = lambda count: None
    stopping: bool = False
    history: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.history = Recorder(self.process, now=self.now, write=self._write)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def pause(self) -> None:
        await asyncio.sleep(self.random.uniform(0, 2 * self.scale.pause_s))

    def _write(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(len(self.events))
        if event["type"] in ("invoke", "meta"):
            self.operations -= 1
            self.stopping = self.operations <= 0


def play(
    workload: Workload,
    bootstrap: str,
    *,
    operations: int,
    scale: Scale,
    seed: int = 1,
    lives: int = 1,
    deadline_s: float = 60.0,
    on_event: Callable[[int], None] = lambda count: None,
) -> list[Event]:
    """Return the history of so many operations of each client, over so many processes, and the end.

    ``on_event`` is called with the number of events.
    """
    events: list[Event] = []

    def stage(process: str) -> RealStage:
        random = Random(f"{seed} {process}")
        return RealStage(bootstrap, random, process, scale, events, operations, on_event)

    async def live(index: int) -> None:
        for life in range(lives):
            await workload.client(stage(f"c{index}-{life}"), index)

    async def run() -> None:
        async with asyncio.timeout(deadline_s):
            await workload.prepare(stage("prepare"))
            async with asyncio.TaskGroup() as clients:
                for index in range(scale.clients):
                    clients.create_task(live(index))
            await workload.settle(stage("final"))

    asyncio.run(run())
    return events
