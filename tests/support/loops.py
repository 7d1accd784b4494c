"""The event loops on which fencelog runs, and the switch of the tests between them.

``--loop NAME`` gives every loop that a test makes, and every broker process, that one. Without it,
tests run on asyncio's own loop, and broker processes on the one that users have: uvloop's.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import uvloop

from fencelog_sim.world.loop import SimLoop
from fencelog_sim.world.network import Network, Weather

T = TypeVar("T")

CHOSEN = "FENCELOG_TEST_LOOP"
"""The environment variable that hands the choice on to processes."""
REAL: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
LOOPS = (*REAL, "simulated")
HOST = "10.0.0.1"
WITHOUT_UVLOOP = (
    "import sys; sys.modules['uvloop'] = None; sys.argv[0] = 'fencelog'; "
    "from fencelog.cli.main import main; main()"
)


def choose(name: str) -> None:
    """Use this loop from now on, here and in the processes that are started."""
    os.environ[CHOSEN] = name
    asyncio.set_event_loop_policy(
        uvloop.EventLoopPolicy() if name == "uvloop" else asyncio.DefaultEventLoopPolicy()
    )


def fencelog_command() -> list[str]:
    """How a process of ``fencelog`` on the chosen loop is started; its arguments follow."""
    if os.environ.get(CHOSEN) == "asyncio":
        return [sys.executable, "-c", WITHOUT_UVLOOP]
    return [sys.executable, "-m", "fencelog"]


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
