"""One chapter of ``./dev prove cluster``: fresh brokers and etcd, faults, healing, and rest."""

import re
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fencelog_sim.workload import Scale
from tests.proofs._chaos_chapter import END_S, PREPARE_S, SETTLE_S, diary, hash_of, left_open
from tests.proofs._chaos_check import Checked
from tests.proofs._chaos_disk import FullDisk, LimitedFiles
from tests.proofs._chaos_rig import Crew, Play
from tests.proofs._cluster_nemesis import BACK_S, FAULTS, SESSION_S, STOP_S, ClusterNemesis
from tests.support.broker import BrokerProcess
from tests.support.etcd import HERE, Etcd, Host, running_etcd
from tests.support.network import Network, SmallDisk
from tests.support.waiting import wait_until

BROKERS = MEMBERS = 3
HOSTS = [f"{kind}{number}" for kind in "be" for number in range(1, 4)]
DISK_MEBIBYTES = 1024
SETTINGS = f"""\
default.replication.factor=3
offsets.topic.replication.factor=3
min.insync.replicas=2
broker.session.timeout.ms={SESSION_S * 1000:.0f}
"""
TRACEBACK = re.compile(r"^Traceback ", re.MULTILINE)
SHOWN = 3000
BEGIN_S = 30.0


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


@dataclass
class Chapter:
    """What happened."""

    script: Script
    seconds: float = 0.0
    rest_s: float = 0.0
    """From the last fault's end until everything was read to its end."""
    lives: int = 0
    """Client processes that were started."""
    counts: Counter[str] = field(default_factory=Counter)
    """Faults, and what else the nemesis counted."""
    own_problems: list[str] = field(default_factory=list)
    checked: Checked | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.script.number} ({self.script.workload}, {self.script.durability})"

    @property
    def problems(self) -> list[str]:
        """What is wrong with it."""
        return self.own_problems + (self.checked.problems if self.checked else ["never checked"])

    @property
    def faults(self) -> Counter[str]:
        """How often each fault was there."""
        kinds = {kind for row in FAULTS.values() for kind in row}
        return Counter({kind: count for kind, count in self.counts.items() if kind in kinds})


def play(script: Script, folder: Path, network: Network | None) -> Chapter:
    """Play a chapter in an empty folder; its history is not checked yet."""
    began = time.monotonic()
    chapter = Chapter(script)
    hosts = {} if network is None else network.hosts
    with ExitStack() as stack:
        members = [hosts.get(f"e{number}", HERE) for number in range(1, MEMBERS + 1)]
        etcd = stack.enter_context(running_etcd(hosts=members))
        disks: list[FullDisk] = []
        brokers = []
        for number in range(1, BROKERS + 1):
            place = folder / f"broker-{number}"
            if network is None:
                place.mkdir()
                disk: FullDisk = LimitedFiles(place)
            else:
                disk = stack.enter_context(SmallDisk(place, DISK_MEBIBYTES))
            disks.append(disk)
            host = hosts.get(f"b{number}", HERE)
            brokers.append(
                stack.enter_context(_broker(etcd, disk, number, host, script.durability))
            )
        play = Play(
            workload=script.workload,
            bootstrap=",".join(each.address for each in brokers),
            folder=folder,
            seed=hash_of(script.seed),
            scale=script.scale,
        )
        crew = Crew(play)
        stack.callback(crew.close)
        nemesis = ClusterNemesis(
            brokers, disks, etcd.members, network, crew, script.seed, diary(folder)
        )
        try:
            _act(chapter, nemesis)
        finally:
            chapter.lives, chapter.counts = crew.lives, nemesis.counts
            for number, each in enumerate(brokers, 1):
                (folder / f"broker-{number}.log").write_text(each.stderr)
    chapter.seconds = time.monotonic() - began
    return chapter


def _act(chapter: Chapter, nemesis: ClusterNemesis) -> None:
    script, crew, problems = chapter.script, nemesis.crew, chapter.own_problems
    if problem := crew.play.run("prepare", "prepare", PREPARE_S):
        problems.append(problem)
        return
    crew.start()
    try:
        # Of a chapter of faults alone nothing would be left to judge.
        wait_until(
            lambda: crew.play.counts()[0], deadline_s=BEGIN_S, what="a record is acknowledged"
        )
    except AssertionError as error:
        problems.append(str(error))
        return
    nemesis.run(script.seconds, script.gap_s)
    problems += nemesis.failures
    healed = time.monotonic()
    problems += crew.stop(END_S)
    problems += [f"a client ended by itself: {each}" for each in crew.gave_up]
    if problem := crew.play.run("settle", "final", SETTLE_S):
        problems.append(problem)
    chapter.rest_s = time.monotonic() - healed
    problems += left_open(crew.play.bootstrap)
    for number, each in enumerate(nemesis.brokers, 1):
        problems += [] if each.running else [f"broker {number} has ended by itself"]
        if found := TRACEBACK.search(each.stderr):
            text = each.stderr[found.start() : found.start() + SHOWN]
            problems.append(f"broker {number} has failed inside:\n{text}")


def _broker(etcd: Etcd, disk: FullDisk, number: int, host: Host, durability: str) -> BrokerProcess:
    endpoints = ",".join(each.endpoint for each in etcd.members)
    broker = BrokerProcess(
        disk.data_dir,
        durability=durability,
        settings=SETTINGS,
        host=host.address,
        within=host.within,
        arguments=["--metadata", f"etcd://{endpoints}/chaos", "--node-id", str(number)],
    )
    broker.start_deadline_s, broker.stop_deadline_s = BACK_S, STOP_S
    return broker
