"""Asks the leaders of partitions, and again those whose answer is missing."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from fencelog.client.cluster import Cluster
from fencelog.client.retry import retrying
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicPartition

T = TypeVar("T")


async def ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    ask: Callable[
        [Connection, list[TopicPartition], Deadline], Awaitable[Mapping[TopicPartition, T]]
    ],
) -> dict[TopicPartition, T]:
    """Return what ``ask`` finds of each partition, by one request to each leader.

    What an attempt has found is kept, the rest is asked for again. Raises RequestError.
    """
    found: dict[TopicPartition, T] = {}
    deadline = cluster.deadline()

    async def attempt() -> None:
        by_leader: dict[Connection, list[TopicPartition]] = {}
        for each in partitions:
            if each not in found:
                leader = await cluster.leader(each, deadline)
                by_leader.setdefault(leader, []).append(each)
        for connection, asked in by_leader.items():
            found.update(await ask(connection, asked, deadline))

    def stale() -> None:
        for each in partitions:
            cluster.forget(each.topic)

    await retrying(attempt, deadline, stale)
    return found
