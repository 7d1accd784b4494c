"""Jepsen's queue workload: clients send unique values to partitions and poll partitions.

An operation is one to four sends and polls, plain or in a transaction, some of which are aborted on
purpose at some step. Full partitions give way to new ones.
"""

from fencelog.check.history import Event
from fencelog_sim.workloads.aio import AioLibrary, require_aiokafka
from fencelog_sim.workloads.own import OwnLibrary
from fencelog_sim.workloads.plans import Plan, Send
from fencelog_sim.workloads.player import Habit, Keys
from fencelog_sim.workloads.traffic import Traffic

STEPS_MAX = 4
SEND_SHARE = 0.6
TRANSACTION_SHARE = 0.6
BURST_SHARE = 1 / 8
"""Of the operations, those that send to one partition more than a broker remembers of it."""
BURST_SENDS = (6, 14)
OUT_OF_ORDER = "(OUT_OF_ORDER_SEQUENCE_NUMBER)"


def plan(keys: Keys) -> Plan:
    """Return one to four sends and polls, or a burst of sends."""
    if keys.random.random() < BURST_SHARE:
        partition = _send(keys).partition
        sends = keys.random.randint(*BURST_SENDS)
        return [Send(partition, keys.names(1)) for _ in range(sends)]
    steps = keys.random.randint(1, STEPS_MAX)
    return [_send(keys) if keys.random.random() < SEND_SHARE else None for _ in range(steps)]


def _send(keys: Keys) -> Send:
    number = keys.random.randrange(keys.scale.partitions)
    partition = keys.topics.partition(keys.generation(), number)
    return Send(partition, keys.names(keys.count()))


def check(events: list[Event]) -> list[str]:
    """Name clients that got an out-of-order error: our client never sends out of order (E5)."""
    return [
        f"spurious-out-of-order: {event['process']}: {event['error']}"
        for event in events
        if OUT_OF_ORDER in str(event.get("error", ""))
    ]


HABIT = Habit(plan, TRANSACTION_SHARE)


def queue() -> Traffic:
    """The workload on fencelog's own client."""
    return Traffic("queue", OwnLibrary, HABIT, check, may_lose=True)


def queue_aiokafka() -> Traffic:
    """The workload on aiokafka. Raises FencelogError where that is not installed."""
    require_aiokafka()
    return Traffic("queue-aiokafka", AioLibrary, HABIT, lambda events: [])
