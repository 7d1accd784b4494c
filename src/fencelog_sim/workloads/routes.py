"""Connections of a process's own, to whichever broker leads what it asks for.

Of one broker nothing is asked who leads: a process without metadata reaches it all the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from fencelog.client.cluster import Address, Cluster, parse_address
from fencelog.client.retry import STALE_ROUTE
from fencelog.errors import RequestError
from fencelog.rpc.connection import Connection, connect
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicPartition
from fencelog_sim.workload import Stage

CONNECT_S = 2.0


async def dial(stage: Stage, address: Address) -> Connection:
    """Open a connection of its own. Raises RequestError."""
    return await connect(*address, stage.history.process, Deadline(CONNECT_S))


async def leader_of(stage: Stage, cluster: Cluster, partition: TopicPartition) -> Address:
    """Return where a partition is led. Raises RequestError."""
    if "," not in stage.bootstrap:
        return parse_address(stage.bootstrap)
    return parse_address((await cluster.leader(partition, Deadline(CONNECT_S))).address)


async def coordinator_of(stage: Stage, cluster: Cluster, kind: int, key: str) -> Address:
    """Return where a coordinator is. Raises RequestError."""
    if "," not in stage.bootstrap:
        return parse_address(stage.bootstrap)
    return await cluster.coordinator_address(kind, key, Deadline(CONNECT_S))


@contextmanager
def led(cluster: Cluster, partition: TopicPartition) -> Iterator[None]:
    """Look up anew who leads a partition, where an error says that the route is stale."""
    try:
        yield
    except RequestError as error:
        if error.code in STALE_ROUTE:
            cluster.forget(partition.topic)
        raise


@contextmanager
def coordinated(cluster: Cluster, kind: int, key: str) -> Iterator[None]:
    """The same of a coordinator."""
    try:
        yield
    except RequestError as error:
        if error.code in STALE_ROUTE:
            cluster.forget_coordinator(kind, key)
        raise
