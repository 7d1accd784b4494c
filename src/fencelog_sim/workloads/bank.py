"""A bank whose accounts are partitions: every transfer takes from one what it gives to another.

A transfer's two halves are written in one transaction, so what is visible in the end adds up to
nothing, transfer by transfer. This shows a torn transaction even where no poll has met it.
"""

from fencelog.check.history import Event
from fencelog_sim.workloads import queue
from fencelog_sim.workloads.own import OwnLibrary
from fencelog_sim.workloads.plans import Plan, Send
from fencelog_sim.workloads.player import Habit, Keys
from fencelog_sim.workloads.settling import seen_in_the_end
from fencelog_sim.workloads.traffic import Traffic

AMOUNT_MAX = 100
POLL_SHARE = 0.3
PROBLEMS_MAX = 20


def plan(keys: Keys) -> Plan:
    """Return transfers from one partition to another, half by half, and sometimes a poll."""
    partitions = keys.scale.partitions
    source = keys.random.randrange(partitions)
    target = (source + keys.random.randrange(1, max(partitions, 2))) % partitions
    amounts = [keys.random.randint(1, AMOUNT_MAX) for _ in range(keys.count())]
    names = keys.names(len(amounts))
    taken = [f"{name}:{-amount}" for name, amount in zip(names, amounts, strict=True)]
    given = [f"{name}:{amount}" for name, amount in zip(names, amounts, strict=True)]
    steps: list[Send | None] = [
        Send(keys.topics.partition(keys.generation(), source), taken),
        Send(keys.topics.partition(keys.generation(), target), given),
    ]
    if keys.random.random() < POLL_SHARE:
        steps.insert(keys.random.randint(0, len(steps)), None)
    return steps


def check(events: list[Event]) -> list[str]:
    """Name the transfers of which not exactly both halves are visible in the end."""
    halves: dict[str, list[str]] = {}
    for key, offset, value in seen_in_the_end(events):
        name, _, _ = value.rpartition(":")
        halves.setdefault(name, []).append(f"{value.removeprefix(name)[1:]} at {key} {offset}")
    problems = [
        f"transfer {name} is seen as {', '.join(found)}"
        for name, found in halves.items()
        if len(found) != 2 or sum(int(half.split()[0]) for half in found) != 0
    ]
    if len(problems) > PROBLEMS_MAX:
        problems[PROBLEMS_MAX:] = [f"and {len(problems) - PROBLEMS_MAX} more transfers"]
    return problems + queue.check(events)


HABIT = Habit(plan, transaction_share=1.0)


def bank() -> Traffic:
    """The workload on fencelog's own client."""
    return Traffic("bank", OwnLibrary, HABIT, check)
