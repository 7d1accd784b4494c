"""The event loops on which fencelog runs, and the switch of the tests between them.

``--loop NAME`` gives every loop that a test makes, and every broker process, that one. Without it,
tests run on asyncio's own loop, and broker processes on the one that users have: uvloop's.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import uvloop

from fencelog_sim.world.loop import SimLoop
from fencelog_sim.world.network import Network, Weather

T = TypeVar("T")

CHOSEN = "TESTS_OF_FENCELOG_LOOP"
"""The environment variable that hands the choice on to processes; no setting of fencelog."""
REAL: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
LOOPS = (*REAL, "simulated")
HOST = "10.0.0.1"
WITHOUT_UVLOOP = str(Path(__file__).with_name("without_uvloop"))


def choose(name: str) -> None:
    """Use this loop from now on, here and in the processes that are started."""
    os.environ[CHOSEN] = name
    asyncio.set_event_loop_policy(
        uvloop.EventLoopPolicy() if name == "uvloop" else asyncio.DefaultEventLoopPolicy()
    )


def on_chosen_loop(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with which a broker process runs on the chosen loop."""
    if environment.get(CHOSEN) != "asyncio":
        return environment
    path = [WITHOUT_UVLOOP, *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(path)}


def run_on(name: str, scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on one of ``LOOPS``."""
    if name == "simulated":
        loop = SimLoop("1")
        loop.wires = Network(loop, Random(1), Weather())
        process = loop.process("test", HOST)

        async def main() -> T:
            return await loop.start(process, scenario())

        found = loop.run(main(), limit_s=1000)
        assert loop.errors == []
        return found
    with asyncio.Runner(loop_factory=REAL[name]) as runner:
        return runner.run(scenario())
