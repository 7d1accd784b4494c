"""How a process of the pipeline announces a point, and waits there for the killer's answer.

The line goes into the stage's event log as ``reached``; the answer is an empty file. The wait is
bounded: without an answer the process continues.
"""

import itertools
import os
import time
from pathlib import Path

from fencelog_demo.events import write_event

ANSWERS = "answers"
WAIT_S = 25.0
PAUSE_S = 0.005

_numbers = itertools.count(1)


def announce(folder: Path, point: str, **facts: object) -> None:
    """Log that this process reached ``point`` and return when the killer answers, or in WAIT_S."""
    ticket = f"{os.getpid()}-{next(_numbers)}"
    write_event(folder, "reached", point=point, pid=os.getpid(), ticket=ticket, **facts)
    answer_file = folder / ANSWERS / ticket
    deadline = time.monotonic() + WAIT_S
    while not answer_file.exists() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)


def answer(folder: Path, ticket: str) -> None:
    """Let the process that waits with this ticket continue."""
    answers = folder / ANSWERS
    answers.mkdir(exist_ok=True)
    (answers / ticket).touch()
