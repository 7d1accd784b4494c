"""Who a broker is to the others, and what its connections are for."""

from enum import IntEnum
from typing import NamedTuple

from fencelog.types import NodeId


class Identity(NamedTuple):
    """What a broker says of itself, and the secret by which it proves it."""

    cluster_id: str
    node_id: NodeId
    incarnation: str
    secret: bytes


class Lane(IntEnum):
    """What a connection carries: a broker answers a connection in the order of its requests."""

    FETCHES = 0
    """Replica fetches, which wait for news."""
    LEADERS = 1
    """Requests to leaders of partitions and shards."""


def connection_number(count: int, lane: Lane) -> int:
    """Return the number of the opener's connection number ``count``; it tells the lane."""
    return count * len(Lane) + lane


def lane_of(number: int) -> Lane:
    """Return the lane of a connection: a newer connection closes older ones of its lane."""
    return Lane(number % len(Lane))
