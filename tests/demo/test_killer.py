"""The killer against real processes that stand for a pipeline."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fencelog_demo.announce import ANSWERS, announce
from fencelog_demo.events import Event, Follower, write_event
from fencelog_demo.killer import Killer
from fencelog_demo.plan import PIPELINES
from fencelog_demo.processes import describe, gone, send, tree

SLEEPER = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
)


@pytest.fixture
def start() -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Starts processes with a child each; all end with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def go() -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-c", SLEEPER])
        running.append(process)
        until(lambda: len(tree(process.pid)) == 2)
        return process

    yield go
    for process in running:
        send(signal.SIGKILL, tree(process.pid))
        process.wait(10)


def until(fact: Callable[[], bool]) -> None:
    """Wait for a fact, ten seconds at most."""
    deadline = time.monotonic() + 10
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def frozen(process: "subprocess.Popen[bytes]") -> bool:
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


def reached(point: str, batch: int, pid: int, ticket: str, pipeline: str) -> Event:
    facts = {"point": point, "batch": batch, "tally": 5, "pid": pid, "ticket": ticket}
    return Event(time.time(), "reached", {**facts, "pipeline": pipeline})


def both_reach(killer: Killer, point: str, batch: int, pids: list[int], ticket: str) -> None:
    """Both pipelines come to a point, each in a process."""
    for pid, pipeline in zip(pids, PIPELINES, strict=True):
        killer.handle(reached(point, batch, pid, f"{ticket}-{pipeline}", pipeline))


def started(role: str, process: "subprocess.Popen[bytes]") -> Event:
    return Event(time.time(), "started", {"role": role, "pid": process.pid})


def answered(folder: Path, ticket: str) -> list[bool]:
    """Whether each pipeline got its answer."""
    return [(folder / ANSWERS / f"{ticket}-{pipeline}").exists() for pipeline in PIPELINES]


def killer_after(folder: Path, faults: int) -> Killer:
    """A killer that has injected this many faults of the plan, into processes that had ended."""
    killer = Killer(folder)
    points = ["task-written", "task-writing", "before-commit", "after-commit"]
    gone_process = subprocess.Popen([sys.executable, "-c", ""])
    gone_process.wait(10)
    for role in ("broker", "driver"):
        killer.handle(started(role, gone_process))
    for batch in range(faults):
        both_reach(killer, points[batch], batch, [gone_process.pid] * 2, f"old-{batch}")
    return killer


def test_workers_are_killed_alone_and_the_log_names_them(tmp_path: Path, start) -> None:
    workers = [start(), start()]
    both_reach(Killer(tmp_path), "task-written", 0, [each.pid for each in workers], "t")
    assert [worker.wait(10) for worker in workers] == [-signal.SIGKILL] * 2
    (injected,) = [event for event in Follower(tmp_path).new() if event.kind == "injected"]
    assert (injected.text("role"), injected.text("signal")) == ("worker", "SIGKILL")
    assert list(injected.facts["pids"]) == [str(worker.pid) for worker in workers]
    assert answered(tmp_path, "t") == [True, True]


def test_a_process_that_waits_for_the_other_pipeline_gets_no_answer_yet(
    tmp_path: Path, start
) -> None:
    killer = Killer(tmp_path)
    killer.handle(reached("task-written", 0, start().pid, f"t-{PIPELINES[0]}", PIPELINES[0]))
    assert answered(tmp_path, "t") == [False, False]


def test_a_driver_is_killed_with_its_whole_tree(tmp_path: Path, start) -> None:
    driver = start()
    processes = tree(driver.pid)
    killer = killer_after(tmp_path, 2)
    killer.handle(started("driver", driver))
    both_reach(killer, "before-commit", 9, [1, 1], "t")
    assert driver.wait(10) == -signal.SIGKILL
    assert all(gone(process, 5) for process in processes)


def test_the_frozen_driver_resumes_when_its_successor_has_done_its_batches(tmp_path, start) -> None:
    zombie, successor = start(), start()
    killer = killer_after(tmp_path, 4)
    killer.handle(started("driver", zombie))
    both_reach(killer, "before-commit", 7, [zombie.pid] * 2, "frozen")
    until(lambda: frozen(zombie))
    assert answered(tmp_path, "frozen") == [False, False]
    killer.handle(started("driver", successor))
    both_reach(killer, "after-commit", 6, [successor.pid] * 2, "t6")
    assert answered(tmp_path, "frozen") == [False, False]
    both_reach(killer, "after-commit", 7, [successor.pid] * 2, "t7")
    until(lambda: (killer.look(), not frozen(zombie))[1])
    assert answered(tmp_path, "frozen") == [True, True]
    assert not frozen(successor)


def test_the_resume_is_logged_before_the_signal_is_sent(
    tmp_path: Path, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start()
    killer = killer_after(tmp_path, 4)
    killer.handle(started("driver", driver))
    both_reach(killer, "before-commit", 7, [driver.pid] * 2, "frozen")
    logged: list[str] = []

    def send_later(number: signal.Signals, targets: list[psutil.Process]) -> list[psutil.Process]:
        logged.extend(event.kind for event in Follower(tmp_path).new())
        return send(number, targets)

    monkeypatch.setattr("fencelog_demo.killer.send", send_later)
    killer.resume()
    assert logged[-1] == "resumed"


def test_a_process_at_another_point_gets_its_answer_at_once(tmp_path: Path) -> None:
    both_reach(Killer(tmp_path), "before-commit", 0, [os.getpid()] * 2, "t")
    assert answered(tmp_path, "t") == [True, True]
    assert not list(Follower(tmp_path).new())


def test_the_killer_follows_the_log_as_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fencelog_demo.killer", "--folder", str(tmp_path)]
    with subprocess.Popen(command) as killer:
        announce(tmp_path, "before-commit", batch=0, tally=1, pipeline=PIPELINES[0])
        assert list((tmp_path / ANSWERS).iterdir())
        write_event(tmp_path, "over")
        assert killer.wait(10) == 0


def test_half_a_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    follower = Follower(tmp_path)
    log.write_text('{"at": 1, "kind": "one"}\n{"at": 2, ')
    assert [event.kind for event in follower.new()] == ["one"]
    log.write_text('{"at": 1, "kind": "one"}\n{"at": 2, "kind": "two"}\n')
    assert [event.kind for event in follower.new()] == ["two"]


def test_a_process_that_has_ended_has_no_tree_and_gets_no_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = tree(process.pid)
        assert [each.pid for each in found] == [process.pid]
    assert send(signal.SIGCONT, found) == []
    assert tree(process.pid) == []


@pytest.mark.parametrize(
    ("status", "words"), [(0, "0"), (3, "3"), (-9, "-9 (SIGKILL)"), (None, "-")]
)
def test_an_exit_status_is_shown_with_its_signal(status: int | None, words: str) -> None:
    assert describe(status) == words
