"""Jepsen's queue workload: clients send unique values to partitions and poll partitions.

An operation is one to four sends and polls, plain or in a transaction, some of which are aborted on
purpose at some step. Full partitions give way to new ones.
"""

from fencelog.check.history import Event
from fencelog.sim.workloads.aio import AioLibrary, require_aiokafka
from fencelog.sim.workloads.own import OwnLibrary
from fencelog.sim.workloads.plans import Plan, Send
from fencelog.sim.workloads.player import Habit, Keys
from fencelog.sim.workloads.traffic import Traffic

STEPS_MAX = 4
SEND_SHARE = 0.6
TRANSACTION_SHARE = 0.6


def plan(keys: Keys) -> Plan:
    """Return one to four sends and polls."""
    steps = keys.random.randint(1, STEPS_MAX)
    return [_send(keys) if keys.random.random() < SEND_SHARE else None for _ in range(steps)]


def _send(keys: Keys) -> Send:
    number = keys.random.randrange(keys.scale.partitions)
    partition = keys.topics.partition(keys.generation(), number)
    return Send(partition, keys.names(keys.count()))


def judge(events: list[Event]) -> list[str]:
    """Nothing: the checker's anomalies are all that this workload claims."""
    return []


HABIT = Habit(plan, TRANSACTION_SHARE)


def queue() -> Traffic:
    """The workload on fencelog's own client."""
    return Traffic("queue", OwnLibrary, HABIT, judge)


def queue_aiokafka() -> Traffic:
    """The workload on aiokafka. Raises FencelogError where that is not installed."""
    require_aiokafka()
    return Traffic("queue-aiokafka", AioLibrary, HABIT, judge)
