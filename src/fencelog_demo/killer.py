"""The killer: a process of its own that follows the event log and injects the planned faults.

It learns the processes from ``started`` events. It answers each process that waits at a point, so
that it continues; where the plan says so, it sends a signal first.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from fencelog.errors import FencelogError
from fencelog_demo.announce import answer
from fencelog_demo.cluster import node_of
from fencelog_demo.events import Event, Follower, write_event
from fencelog_demo.plan import CLUSTER_PLAN, PLAN, Injection, Part, PlanProgress, Reached
from fencelog_demo.processes import gone, name_of, send, tree
from fencelog_demo.settings import COMPARED

PAUSE_S = 0.005
SETTLE_S = 2.0
LOOK_UP_S = 15.0
RESUME_DELAY_S = 1.0
"""How long the frozen driver still waits; by then its successor has closed the batch for Spark."""


class Killer:
    """Carries out the plan on the processes of one stage."""

    def __init__(self, folder: Path, etcd: str = "") -> None:
        """Work on the stage of this folder; ``etcd``: its address, where the stage has one."""
        self._folder = folder
        self._etcd = etcd
        self._address = ""
        self._progress = PlanProgress(CLUSTER_PLAN if etcd else PLAN)
        self._brokers: dict[int, int] = {}
        self._pids: dict[str, int] = {}
        self._frozen: list[psutil.Process] = []
        self._frozen_at: dict[str, Reached] = {}
        self._resume_at = 0.0

    def handle(self, event: Event) -> bool:
        """Act on one event; False once the stage is over."""
        match event.kind:
            case "broker-ready":
                self._address = event.text("address")
            case "started":
                self._pids[event.text("role")] = event.number("pid")
                self._brokers[event.number("node")] = event.number("pid")
            case "reached":
                self._reached(event)
            case "over":
                self.resume()
                return False
            case _:
                pass
        return True

    def look(self) -> None:
        """Inject the next fault if it is due, resume the paused driver if that is due."""
        now = time.monotonic()
        injection = self._progress.due(now)
        if injection is not None:
            self._carry_out(injection)
        if self._frozen and not self._frozen_at and now >= self._resume_at:
            self.resume()

    def _reached(self, event: Event) -> None:
        reached = Reached(
            pipeline=event.text("pipeline"),
            point=event.text("point"),
            batch=event.number("batch"),
            tally=event.number("tally"),
            pid=event.number("pid"),
            ticket=event.text("ticket"),
        )
        if not self._progress.holds(reached, time.monotonic()):
            answer(self._folder, reached.ticket)
        self.look()
        if self._frozen_at and reached.point == "after-commit":
            self._done_again(reached)

    def _done_again(self, reached: Reached) -> None:
        """Resume the frozen driver when its successor has done all its batches again."""
        frozen = self._frozen_at.get(reached.pipeline)
        if frozen is not None and reached.batch >= frozen.batch:
            del self._frozen_at[reached.pipeline]
            answer(self._folder, frozen.ticket)
        if not self._frozen_at:
            self._resume_at = time.monotonic() + RESUME_DELAY_S

    def _carry_out(self, injection: Injection) -> None:
        fault = injection.fault
        targets = self._targets(injection)
        number = signal.SIGSTOP if fault.freeze else signal.SIGKILL
        # Logged before it is done, so whoever sees an ended process finds the reason in the log.
        write_event(
            self._folder,
            "injected",
            fault=fault.name,
            title=fault.title,
            role=fault.role,
            signal=number.name,
            batches={name: each.batch for name, each in injection.where.items()},
            point=fault.point,
            killer=os.getpid(),
            pids={str(process.pid): name_of(process) for process in targets},
        )
        hit = send(number, targets)
        if fault.freeze:
            self._frozen, self._frozen_at = hit, dict(injection.where)
            return
        for process in hit:
            gone(process, SETTLE_S)
        for reached in injection.where.values():
            answer(self._folder, reached.ticket)

    def _targets(self, injection: Injection) -> list[psutil.Process]:
        role = injection.fault.role
        if role == "worker":
            return [process for each in injection.where.values() for process in tree(each.pid)[:1]]
        part = injection.fault.part
        pid = self._pids[role] if part is None else self._brokers[self._node(part)]
        found = tree(pid)
        if role == "broker":
            return found[:1]
        # The driver is a Java process; its Python process and its workers end with it.
        return sorted(found, key=lambda process: name_of(process) != "java")

    def _node(self, part: Part) -> int:
        """Ask until somebody has this part: it may be without anyone for a moment."""
        ends_at = time.monotonic() + LOOK_UP_S
        while True:
            try:
                return node_of(part, self._address, self._etcd, COMPARED)
            except (FencelogError, OSError, LookupError, ValueError):
                if time.monotonic() > ends_at:
                    raise
            time.sleep(PAUSE_S)

    def resume(self) -> None:
        """Resume the frozen driver."""
        if not self._frozen:
            return
        # Logged first: the broker refuses the driver within milliseconds, and only a refusal that
        # is later than this event counts.
        pids = {str(process.pid): name_of(process) for process in self._frozen}
        write_event(self._folder, "resumed", signal="SIGCONT", pids=pids)
        for reached in self._frozen_at.values():
            answer(self._folder, reached.ticket)
        send(signal.SIGCONT, self._frozen)
        self._frozen = []


def main(arguments: list[str] | None = None) -> int:
    """Follow the log until the stage is over, the deadline passes or the parent has ended."""
    parser = argparse.ArgumentParser(prog="killer", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--etcd", default="", help="its address, where there is a cluster")
    parser.add_argument("--deadline-s", type=float, default=900.0)
    options = parser.parse_args(arguments)

    killer = Killer(options.folder, options.etcd)
    follower = Follower(options.folder)
    deadline = time.monotonic() + options.deadline_s
    parent = os.getppid()
    while time.monotonic() < deadline and os.getppid() == parent:
        for event in follower.new():
            if not killer.handle(event):
                return 0
        killer.look()
        time.sleep(PAUSE_S)
    killer.resume()
    return 1


if __name__ == "__main__":
    sys.exit(main())
