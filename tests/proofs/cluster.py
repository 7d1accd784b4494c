"""``./dev prove cluster --minutes N``: workloads against three brokers and an etcd under faults.

Chapter after chapter a fresh etcd and three fresh brokers; they and the clients, processes of
their own, are killed, paused beyond the lease and stopped. Then everything is healed, the clients
must end, the log must come to rest, and the project's checker judges the history.
"""

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from fencelog_sim.workload import Scale
from tests.proofs._chaos_chapter import diary, hash_of, left_open
from tests.proofs._chaos_check import check_chapter
from tests.proofs._chaos_rig import Crew, Play
from tests.proofs._cluster_nemesis import BACK_S, FAULTS, SESSION_S, STOP_S, ClusterNemesis
from tests.proofs._report import chosen_seed, parser
from tests.support.broker import BrokerProcess
from tests.support.etcd import EtcdMember, running_etcd

BROKERS = 3
WORKLOADS = ("queue", "bank", "versioned", "copy", "queue-aiokafka", "owners")
SLOW = {"copy": 2}
"""Records at once, where a member copies each by itself."""
CHAPTER_S, GAP_S = 60.0, 3.0
PREPARE_S, END_S, SETTLE_S = 60.0, 60.0, 240.0
SCALE = Scale(clients=4, partitions=3, records_per_send=200, pause_s=0.02, key_records=50_000)
SETTINGS = f"""\
default.replication.factor=3
offsets.topic.replication.factor=3
min.insync.replicas=2
broker.session.timeout.ms={SESSION_S * 1000:.0f}
"""
TRACEBACK = re.compile(r"^Traceback ", re.MULTILINE)
SHOWN = 3000


def _arguments(argv: list[str]) -> argparse.Namespace:
    found = parser("cluster", __doc__)
    add = found.add_argument
    add("--minutes", type=float, default=5.0, help="of chapters")
    add("--chapter-seconds", type=float, default=CHAPTER_S, help="of faults in each chapter")
    add("--gap", type=float, default=GAP_S, help="mean seconds between two faults")
    add("--workloads", default=",".join(WORKLOADS), help="by chapters, in turn")
    add("--durability", default="os,fsync", help="by chapters, in turn")
    add("--faults", default=",".join(FAULTS), help="those to draw from")
    return found.parse_args(argv)


def _broker(etcd: EtcdMember, folder: Path, number: int, durability: str) -> BrokerProcess:
    broker = BrokerProcess(
        folder / f"broker-{number}",
        durability=durability,
        settings=SETTINGS,
        arguments=["--metadata", f"etcd://{etcd.endpoint}/chaos", "--node-id", str(number)],
    )
    broker.start_deadline_s, broker.stop_deadline_s = BACK_S, STOP_S
    return broker


def _play(
    workload: str, durability: str, seed: str, folder: Path, wanted: argparse.Namespace
) -> tuple[list[str], Counter[str]]:
    """Play a chapter; return what is wrong already, and how often each fault was there."""
    with ExitStack() as stack:
        (etcd,) = stack.enter_context(running_etcd()).members
        brokers = [
            stack.enter_context(_broker(etcd, folder, number, durability))
            for number in range(1, BROKERS + 1)
        ]
        play = Play(
            workload=workload,
            bootstrap=",".join(each.address for each in brokers),
            folder=folder,
            seed=hash_of(seed),
            scale=replace(SCALE, records_per_send=SLOW.get(workload, SCALE.records_per_send)),
        )
        if problem := play.run("prepare", "prepare", PREPARE_S):
            return [problem], Counter()
        crew = Crew(play)
        stack.callback(crew.close)
        nemesis = ClusterNemesis(brokers, etcd, crew, seed, diary(folder))
        crew.start()
        kinds = {each: FAULTS[each] for each in wanted.faults.split(",")}
        nemesis.run(kinds, wanted.chapter_seconds, wanted.gap)
        problems = nemesis.failures + crew.stop(END_S)
        problems += [f"a client ended by itself: {each}" for each in crew.gave_up]
        began = time.monotonic()
        if problem := play.run("settle", "final", SETTLE_S):
            problems.append(problem)
        print(f"  settled in {time.monotonic() - began:.1f} s", flush=True)
        problems += left_open(play.bootstrap)
        for number, each in enumerate(brokers, 1):
            problems += [] if each.running else [f"broker {number} has ended by itself"]
            (folder / f"broker-{number}.log").write_text(each.stderr)
            if found := TRACEBACK.search(each.stderr):
                text = each.stderr[found.start() : found.start() + SHOWN]
                problems.append(f"broker {number} has failed inside:\n{text}")
        return problems, nemesis.counts


def main(argv: list[str]) -> int:
    """Run what is asked for; returns the exit status."""
    wanted = _arguments(argv)
    seed = chosen_seed(wanted.seed)
    ends_at = time.monotonic() + 60 * wanted.minutes
    plays = [(w, d) for d in wanted.durability.split(",") for w in wanted.workloads.split(",")]
    bad, counts, faults = 0, Counter[str](), Counter[str]()
    for number, (workload, durability) in enumerate(cycle(plays), 1):
        if time.monotonic() >= ends_at:
            break
        folder = Path(tempfile.mkdtemp(prefix=f"fencelog-cluster-{number}-"))
        print(f"chapter {number}: {workload}, {durability}, {folder}", flush=True)
        problems, struck = _play(workload, durability, f"{seed}-{number}", folder, wanted)
        checked = check_chapter(workload, folder)
        problems += checked.problems
        faults += struck
        counts += Counter(checked.counts)
        bad += len(problems)
        print(f"  {sum(struck.values())} faults, {checked.counts}", flush=True)
        for each in problems:
            print(f"  BAD: {each}", flush=True)
    print(f"cluster: {bad} bad; faults: {dict(faults)}; {dict(counts)}")
    return 1 if bad or not counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
