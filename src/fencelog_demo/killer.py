"""The killer: a process of its own that follows the event log and carries out the kill plan.

It knows whom it may hit from ``started`` events, and answers everybody who waits at a point:
with a signal where the plan says so, and always with leave to go on.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from fencelog_demo.announce import answer
from fencelog_demo.events import Event, Follower, write_event
from fencelog_demo.plan import Blow, Course, Reached
from fencelog_demo.processes import gone, name_of, send, tree

PAUSE_S = 0.005
SETTLE_S = 2.0
OVERSLEEP_S = 1.0
"""How much longer the frozen driver sleeps; its successor has closed the batch for Spark then."""


class Killer:
    """Carries out the plan on the processes of one stage."""

    def __init__(self, folder: Path) -> None:
        """Work on the stage of this folder."""
        self._folder = folder
        self._course = Course()
        self._pids: dict[str, int] = {}
        self._frozen: list[psutil.Process] = []
        self._frozen_at: dict[str, Reached] = {}
        self._thaw_at = 0.0

    def hear(self, event: Event) -> bool:
        """Act on one event; False once the stage is over."""
        match event.kind:
            case "started":
                self._pids[event.text("role")] = event.number("pid")
            case "reached":
                self._reached(event)
            case "over":
                self.thaw()
                return False
            case _:
                pass
        return True

    def look(self) -> None:
        """Strike if it is time to, wake if it is time to."""
        now = time.monotonic()
        blow = self._course.due(now)
        if blow is not None:
            self._carry_out(blow)
        if self._frozen and not self._frozen_at and now >= self._thaw_at:
            self.thaw()

    def _reached(self, event: Event) -> None:
        reached = Reached(
            pipeline=event.text("pipeline"),
            point=event.text("point"),
            batch=event.number("batch"),
            tally=event.number("tally"),
            pid=event.number("pid"),
            ticket=event.text("ticket"),
        )
        if not self._course.holds(reached, time.monotonic()):
            answer(self._folder, reached.ticket)
        self.look()
        if self._frozen_at and reached.point == "after-commit":
            self._done_again(reached)

    def _done_again(self, reached: Reached) -> None:
        """Wake the frozen driver when its successor has done all its batches again."""
        frozen = self._frozen_at.get(reached.pipeline)
        if frozen is not None and reached.batch >= frozen.batch:
            del self._frozen_at[reached.pipeline]
            answer(self._folder, frozen.ticket)
        if not self._frozen_at:
            self._thaw_at = time.monotonic() + OVERSLEEP_S

    def _carry_out(self, blow: Blow) -> None:
        strike = blow.strike
        targets = self._targets(blow)
        number = signal.SIGSTOP if strike.freeze else signal.SIGKILL
        # Told before it is done: whoever sees a corpse finds the reason already in the log.
        write_event(
            self._folder,
            "struck",
            strike=strike.name,
            title=strike.title,
            role=strike.role,
            signal=number.name,
            batches={name: each.batch for name, each in blow.where.items()},
            point=strike.point,
            killer=os.getpid(),
            pids={str(process.pid): name_of(process) for process in targets},
        )
        hit = send(number, targets)
        if strike.freeze:
            self._frozen, self._frozen_at = hit, dict(blow.where)
            return
        for process in hit:
            gone(process, SETTLE_S)
        for reached in blow.where.values():
            answer(self._folder, reached.ticket)

    def _targets(self, blow: Blow) -> list[psutil.Process]:
        role = blow.strike.role
        if role == "worker":
            return [process for each in blow.where.values() for process in tree(each.pid)[:1]]
        found = tree(self._pids[role])
        if role == "broker":
            return found[:1]
        # The driver is a Java process; its Python half and its workers must not outlive it here.
        return sorted(found, key=lambda process: name_of(process) != "java")

    def thaw(self) -> None:
        """Wake whom we froze, and let it go on."""
        if not self._frozen:
            return
        # Logged first: the broker refuses the driver within milliseconds, and only a refusal that
        # is later than this event counts.
        pids = {str(process.pid): name_of(process) for process in self._frozen}
        write_event(self._folder, "woken", signal="SIGCONT", pids=pids)
        for reached in self._frozen_at.values():
            answer(self._folder, reached.ticket)
        send(signal.SIGCONT, self._frozen)
        self._frozen = []


def main(arguments: list[str] | None = None) -> int:
    """Follow the log until the stage is over, the deadline passes or the parent is gone."""
    parser = argparse.ArgumentParser(prog="killer", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--deadline-s", type=float, default=900.0)
    options = parser.parse_args(arguments)

    killer = Killer(options.folder)
    follower = Follower(options.folder)
    deadline = time.monotonic() + options.deadline_s
    parent = os.getppid()
    while time.monotonic() < deadline and os.getppid() == parent:
        for event in follower.new():
            if not killer.hear(event):
                return 0
        killer.look()
        time.sleep(PAUSE_S)
    killer.thaw()
    return 1


if __name__ == "__main__":
    sys.exit(main())
