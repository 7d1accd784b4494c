"""``./dev prove clients [--write]``: the programs that users copy, each through kills.

Two processes of each ``copy_exactly_once`` of ``examples/clients`` with the clients' own timeouts:
sessions of up to a minute, so a dead member is missed that late. Exit status 0: each copied every
record once. ``--write`` keeps the dated report in ``docs/internals/proofs``.
"""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic

from tests.clients.copying import Arena, Case
from tests.clients.install import NotInstalled, node_of, npm
from tests.proofs._report import ROOT, commit, head, run_with_report
from tests.support.broker import BrokerProcess

EXAMPLES = ROOT / "examples" / "clients"
PYTHON = ("confluent-kafka", "kafka-python", "aiokafka")
NODE = {
    "kafkajs": "node",
    "platformatic": "node",
    "confluent-javascript": "node-confluent",
}
SETTINGS = "group.initial.rebalance.delay.ms=50\n"
KILLS, BETWEEN_S, STEP_S = 6, 25.0, 420.0
PROSE = """\
Two processes of each `copy_exactly_once` join, are killed with a transaction open, leave,
come back and are frozen for a while, all on one broker that is killed as well. The output
must be the input, each record once, and no transaction may be left open.
"""
Plan = tuple[Case, Callable[[str], Sequence[str]], Path | None]


def arguments(options: str) -> list[str]:
    """ADDRESS SOURCE TARGET GROUP NAME, as the programs take them."""
    settings = json.loads(options)
    name = settings["transactional_id"].rpartition("-")[2]
    return [settings["bootstrap"], settings["source"], settings["target"], settings["group"], name]


def in_python(client: str) -> Callable[[str], list[str]]:
    """The command of a program in Python."""
    program = str(EXAMPLES / client / "copy_exactly_once.py")
    return lambda options: [sys.executable, program, *arguments(options)]


def in_node(client: str, where: Path) -> Callable[[str], list[str]]:
    """The command of a program in Node, beside the client's installation."""
    shutil.copytree(EXAMPLES / client, where / client, dirs_exist_ok=True)
    program = f"{client}/copy_exactly_once.mjs"
    return lambda options: [node_of(where), program, *arguments(options)]


def plans(broker: BrokerProcess, folder: Path) -> tuple[list[Plan], dict[str, str]]:
    """What is run, and what each client that cannot be is missing."""
    found: list[Plan] = []
    missing: dict[str, str] = {}
    for client in PYTHON:
        case = Case(client, broker, folder / client, step_s=STEP_S)
        found.append((case, in_python(client), None))
    for client, name in NODE.items():
        try:
            where = npm(name)
        except NotInstalled as error:
            missing[client] = str(error)
            continue
        case = Case(client, broker, folder / client, step_s=STEP_S)
        found.append((case, in_node(client, where), where))
    return found, missing


def verdict(arena: Arena, case: Case) -> str:
    """``ok``, or what went wrong."""
    if failure := arena.failure(case.client):
        return repr(failure)
    try:
        case.check()
    except AssertionError as wrong:
        return str(wrong)
    return "ok"


def prove(folder: Path, began: datetime) -> tuple[str, bool]:
    """Run all at once; the report, and whether it holds."""
    started = monotonic()
    with BrokerProcess(folder / "data", settings=SETTINGS) as broker:
        found, missing = plans(broker, folder)
        arena = Arena(broker, KILLS, BETWEEN_S)
        arena.run(found)
        rows = [(case, verdict(arena, case)) for case, _, _ in found]
    holds = all(said == "ok" for _, said in rows)
    lines = [
        *head(
            "Quickstarts through kills",
            began=began,
            holds=holds,
            summary=f"{KILLS} kills of the broker, {monotonic() - started:.0f} s",
            again="`./dev prove clients --write`",
            code=commit(),
        ),
        "",
        PROSE,
        "| client | records | killed with a transaction open | verdict |",
        "|---|---:|---:|---|",
        *(f"| {c.client} | {len(c.values):,} | {c.killed_open} | {said} |" for c, said in rows),
        *(f"| {client} | | | not installed: {why} |" for client, why in missing.items()),
    ]
    return "\n".join(lines) + "\n", holds


def main(argv: Sequence[str]) -> int:
    """Run all; returns the exit status."""
    return run_with_report("clients", __doc__, prove, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
