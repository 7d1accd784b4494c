"""The demo on several brokers: what it says without etcd, and who is killed."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from fencelog_demo import run
from fencelog_demo.cluster import BROKERS, EtcdAddress
from fencelog_demo.events import Event, Follower, write_event
from fencelog_demo.killer import Killer
from fencelog_demo.plan import CLUSTER_PLAN, PIPELINES, PLAN, Part
from fencelog_demo.stage import Child, Setup, Stage

SLEEP = "import time; time.sleep(60)"


def test_without_etcd_it_says_how_to_get_it_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    output = tmp_path / "output"
    started: list[object] = []

    def start(*arguments: object, **options: object) -> NoReturn:
        started.append(arguments)
        raise OSError("nothing is to be started")

    monkeypatch.setattr(subprocess, "Popen", start)
    assert run.main(["--cluster", "--output", str(output)]) == 1
    assert capsys.readouterr().err == (
        "demo: a cluster needs etcd, and there is none on the PATH; Debian and Ubuntu have it: "
        "apt-get install etcd-server\n"
    )
    assert not output.exists()
    assert not started


def test_what_else_is_killed_in_a_cluster_is_what_is_killed_with_one_broker() -> None:
    assert {fault.role for fault in CLUSTER_PLAN if fault.part} == {"broker"}
    others = [fault for fault in CLUSTER_PLAN if not fault.part]
    assert others == [fault for fault in PLAN if fault.role != "broker"]


@pytest.mark.parametrize("etcd", ["", "etcd"])
def test_each_fault_gets_a_batch_of_its_own_and_one_is_left(tmp_path: Path, etcd: str) -> None:
    setup = Setup(every=1, rows=1001, folder=tmp_path, produce_s=1.0, etcd=etcd)
    assert setup.brokers == (BROKERS if etcd else 1)
    assert setup.batch_rows * len(setup.plan) < setup.rows
    assert setup.batch_rows * (len(setup.plan) + 1) >= setup.rows


def test_a_broker_that_is_killed_between_two_looks_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(Setup(every=1, rows=10, folder=tmp_path / "stage", produce_s=1.0))
    stage.address = "127.0.0.1:1"
    log, restarted = tmp_path / "log", []
    monkeypatch.setattr(stage, "_start_broker", restarted.append)
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as process:
        broker = Child(role="broker", label="broker 1", process=process, log=log)
        stage._children.append(broker)
        stage._brokers[1] = broker
        read = stage._follower.new

        def read_then_killed() -> list[Event]:
            events = list(read())
            if process.poll() is None:
                pids = {str(process.pid): "python"}
                write_event(
                    tmp_path / "stage", "injected", role="broker", signal="SIGKILL", pids=pids
                )
                process.kill()
                process.wait()
            return events

        monkeypatch.setattr(stage._follower, "new", read_then_killed)
        stage.step()
        assert restarted == [], "who has killed it is read next"
        stage.step()
        assert restarted == [1]


@pytest.fixture
def brokers() -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Processes in the place of three brokers, by number."""
    started = {node: subprocess.Popen([sys.executable, "-c", SLEEP]) for node in (1, 2, 3)}
    yield started
    for process in started.values():
        process.kill()
        process.wait(10)


def begun(folder: Path, brokers: dict[int, subprocess.Popen[bytes]]) -> Killer:
    killer = Killer(folder, "etcd:1")
    killer.handle(Event(time.time(), "broker-ready", {"address": "a,b,c"}))
    for node, process in brokers.items():
        facts = {"role": "broker", "pid": process.pid, "node": node}
        killer.handle(Event(time.time(), "started", facts))
    return killer


def reach(killer: Killer, batch: int, point: str) -> None:
    """Both pipelines are at a point."""
    for pipeline in PIPELINES:
        facts = {"point": point, "batch": batch, "tally": 5, "pid": 2**22 + 1}
        facts |= {"ticket": f"{batch}-{pipeline}", "pipeline": pipeline}
        killer.handle(Event(time.time(), "reached", facts))


def dead(brokers: dict[int, subprocess.Popen[bytes]]) -> set[int]:
    return {node for node, process in brokers.items() if process.poll() == -signal.SIGKILL}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_broker_that_has_the_part_is_killed(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    brokers: dict[int, subprocess.Popen[bytes]],
) -> None:
    asked: list[tuple[Part, str, str]] = []

    def node_of(part: Part, address: str, etcd: str, topic: str) -> int:
        asked.append((part, address, etcd))
        if len(asked) == 1:
            raise LookupError("nobody, for a moment")
        return number

    monkeypatch.setattr("fencelog_demo.killer.node_of", node_of)
    killer = begun(tmp_path, brokers)
    for batch, point in enumerate(("task-written", "task-writing")):
        reach(killer, batch, point)
    assert brokers[number].wait(10) == -signal.SIGKILL
    assert dead(brokers) == {number}
    assert asked == [("leader", "a,b,c", "etcd:1")] * 2
    injected = [each for each in Follower(tmp_path).new() if each.kind == "injected"]
    assert injected[-1].text("title") == "the leader of a partition, while tasks write"


def test_a_leader_a_coordinator_and_the_controller_are_killed_in_this_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    brokers: dict[int, subprocess.Popen[bytes]],
) -> None:
    parts = {"leader": 2, "coordinator": 3, "controller": 1}
    monkeypatch.setattr("fencelog_demo.killer.node_of", lambda part, *where: parts[part])
    killer = begun(tmp_path, brokers)
    killed = []
    for batch, fault in enumerate(CLUSTER_PLAN[:4]):
        reach(killer, batch, fault.point)
        killed.append(dead(brokers))
    assert killed == [set(), {2}, {2, 3}, {1, 2, 3}]


def test_etcd_and_its_peers_have_ports_of_their_own(tmp_path: Path) -> None:
    etcd = EtcdAddress()
    assert etcd.clients != etcd.peers
    assert f"--listen-client-urls=http://{etcd.clients}" in etcd.command("etcd", tmp_path)
    assert not etcd.is_healthy
