"""The killer: a process of its own that follows a stage's event log and carries out the kill plan.

It knows whom it may hit from ``started`` events, and answers everybody who waits at a point:
with a signal where the plan says so, and always with leave to go on.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from fencelog.demo.announce import answer
from fencelog.demo.events import Event, Follower, write_event
from fencelog.demo.plan import Course, Reached, Strike
from fencelog.demo.processes import Process, gone, send, tree

PAUSE_S = 0.005
SETTLE_S = 2.0


class Killer:
    """Carries out the plan on the processes of one stage."""

    def __init__(self, folder: Path) -> None:
        """Work on the stage of this folder."""
        self._folder = folder
        self._course = Course()
        self._pids: dict[str, int] = {}
        self._frozen: list[Process] = []
        self._frozen_batch = -1
        self._frozen_ticket = ""

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

    def _reached(self, event: Event) -> None:
        reached = Reached(
            point=event.text("point"),
            batch=event.number("batch"),
            tally=event.number("tally"),
            pid=event.number("pid"),
        )
        frozen = {process.pid for process in self._frozen}
        strike = None if reached.pid in frozen else self._course.strike(reached)
        if strike is not None:
            self._carry_out(strike, reached, event.text("ticket"))
        else:
            answer(self._folder, event.text("ticket"))
        # The successor has done the frozen driver's batch again: now the dead man wakes.
        successor = self._frozen and reached.pid not in frozen
        if successor and reached.point == "after-commit" and reached.batch >= self._frozen_batch:
            self.thaw()

    def _carry_out(self, strike: Strike, reached: Reached, ticket: str) -> None:
        targets = self._targets(strike, reached)
        number = signal.SIGSTOP if strike.freeze else signal.SIGKILL
        # Told before it is done: whoever sees a corpse finds the reason already in the log.
        write_event(
            self._folder,
            "struck",
            strike=strike.name,
            title=strike.title,
            role=strike.role,
            signal=number.name,
            batch=reached.batch,
            point=reached.point,
            killer=os.getpid(),
            pids={str(process.pid): process.name for process in targets},
        )
        hit = send(number, targets)
        for process in hit:
            if not strike.freeze:
                gone(process.pid, SETTLE_S)
        if strike.freeze:
            self._frozen, self._frozen_batch = hit, reached.batch
            self._frozen_ticket = ticket
        else:
            answer(self._folder, ticket)

    def _targets(self, strike: Strike, reached: Reached) -> list[Process]:
        if strike.role == "worker":
            return [process for process in tree(reached.pid) if process.pid == reached.pid]
        found = tree(self._pids[strike.role])
        if strike.role == "broker":
            return found[:1]
        # The driver is a Java process; its Python half and its workers must not outlive it here.
        return sorted(found, key=lambda process: process.name != "java")

    def thaw(self) -> None:
        """Wake whom we froze, and let it go on."""
        if not self._frozen:
            return
        answer(self._folder, self._frozen_ticket)
        hit = send(signal.SIGCONT, self._frozen)
        pids = {str(process.pid): process.name for process in hit}
        write_event(self._folder, "woken", signal="SIGCONT", batch=self._frozen_batch, pids=pids)
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
        time.sleep(PAUSE_S)
    killer.thaw()
    return 1


if __name__ == "__main__":
    sys.exit(main())
