"""One chapter of chaos: a fresh broker, clients, faults for a while, healing, and rest."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fencelog.check.history import Recorder
from fencelog.client.blocking import Client
from fencelog.errors import FencelogError
from fencelog_sim.workload import Scale
from tests.proofs._chaos_client import HistoryFile
from tests.proofs._chaos_disk import small_disk
from tests.proofs._chaos_nemesis import FAULTS, Faults, Nemesis, number_of
from tests.proofs._chaos_rig import Crew, Play, ProxyProcess
from tests.support.broker import BrokerProcess
from tests.support.hangs import hanging

PREPARE_S = 60.0
END_S = 60.0
"""A client that has not ended its operation so long after the last fault is stuck (row 20)."""
SETTLE_S = 240.0
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a chapter is to be."""

    number: int
    workload: str
    durability: str
    seed: str
    seconds: float
    gap_s: float
    """Mean time between two faults of a row."""
    scale: Scale
    faults_min: int = 0
    """It takes longer than ``seconds`` if there were fewer faults by then, or no record."""
    faults: Faults = field(default_factory=lambda: FAULTS)
    disk_mebibytes: int = 4096
    """Client ids whose EndTxn the proxy does not hold; ``_chaos_holds``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The broker's: a copy of the source with a fault may run in its place."""


@dataclass
class Outcome:
    """What happened, before anyone looked at the history."""

    script: Script
    folder: Path
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    network: Counter[str] = field(default_factory=Counter)
    """What the proxy counted."""
    lives: int = 0
    """Client processes that were started."""
    problems: list[str] = field(default_factory=list)
    settle_s: float = 0.0


def play(
    script: Script, folder: Path, watch: Callable[[Callable[[], tuple[int, int]]], None]
) -> Outcome:
    """Play a chapter in an empty folder. ``watch`` is given what tells the records so far."""
    began = time.monotonic()
    outcome = Outcome(script, folder)
    with (
        ProxyProcess(hash_of(script.seed), folder / "proxy.log") as proxy,
        small_disk(folder, script.disk_mebibytes) as disk,
        BrokerProcess(
            disk.data_dir,
            durability=script.durability,
            settings=f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}\n",
            environment=script.environment,
        ) as broker,
    ):
        proxy.tell("upstream", port=broker.port)
        play = Play(
            workload=script.workload,
            bootstrap=f"127.0.0.1:{proxy.port}",
            folder=folder,
            seed=hash_of(script.seed),
            scale=script.scale,
        )
        crew = Crew(play)
        nemesis = Nemesis(broker, crew, proxy, disk, script.seed, diary(folder))
        try:
            _act(script, outcome, nemesis, lambda: watch(play.counts))
        finally:
            crew.close()
            outcome.faults, outcome.lives = nemesis.counts, crew.lives
            outcome.network = proxy.tell("counts")
            # Whatever a cluster does to it, a client has an answer; what it raises is a defect.
            outcome.problems += [f"a client ended by itself: {each}" for each in crew.gave_up]
            (folder / "broker.log").write_text(broker.stderr)
    outcome.seconds = time.monotonic() - began
    return outcome


def _act(script: Script, outcome: Outcome, nemesis: Nemesis, started: Callable[[], None]) -> None:
    crew = nemesis.crew
    if problem := crew.play.run("prepare", "prepare", PREPARE_S):
        outcome.problems.append(problem)
        return
    crew.start()
    started()

    def is_enough() -> bool:
        least = script.faults_min
        return not least or (number_of(nemesis.counts) >= least and crew.play.counts()[0] > 0)

    nemesis.run(script.faults, script.seconds, script.gap_s, is_enough=is_enough)
    outcome.problems += nemesis.failures
    outcome.problems += crew.stop(END_S)
    if not nemesis.broker.running:
        outcome.problems.append(f"the broker ended by itself:\n{nemesis.broker.stderr[-2000:]}")
        return
    began = time.monotonic()
    if problem := crew.play.run("settle", "final", SETTLE_S):
        outcome.problems.append(problem)
    outcome.settle_s = time.monotonic() - began
    outcome.problems += left_open(crew.play.bootstrap)
    if status := nemesis.broker.terminate():
        outcome.problems.append(f"the broker did not end cleanly: status {status}")


def left_open(bootstrap: str) -> list[str]:
    """Transactions that their coordinator does not list as ended, and those that hang."""
    try:
        with Client(bootstrap) as client:
            left = [
                f"transaction {each.transactional_id} is left in state {each.state}"
                for each in client.list_transactions()
                if each.state in OPEN_STATES
            ]
        return left + hanging(bootstrap)
    except FencelogError as error:
        return [f"transactions cannot be listed: {error}"]


def diary(folder: Path) -> Recorder:
    """Where the faults are written down, beside what the clients write."""
    file = HistoryFile(folder / "nemesis.jsonl")
    return Recorder("nemesis", now=time.monotonic, write=file.write)


def hash_of(seed: str) -> int:
    """A number from a seed's text, the same in every process."""
    return int.from_bytes(seed.encode(), "big") % (1 << 61)
