"""Where the replicas of new partitions go.

Any broker places them, from the registrations that it sees (``placed``), or takes the assignment of
a request (``assigned``), and stores their first states with the topic in one commit. The controller
adds replicas where there were too few brokers at that time (``widened``).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.controller.rules import (
    Brokers,
    Key,
    Refused,
    StoredPartition,
    reordered,
    settled,
)
from fencelog.errors import ErrorCode
from fencelog.types import LeaderEpoch, NodeId


def placed(
    count: int, factor: int, brokers: Brokers, existing: Iterable[PartitionState]
) -> list[PartitionState] | Refused:
    """Return the first states of ``count`` partitions with ``factor`` replicas each.

    As Kafka assigns them: in an order of brokers that goes from rack to rack, each partition begins
    one further, and its replicas are in different racks as far as there are enough. The first
    begins with the broker that is the first replica of the fewest ``existing`` partitions, so that
    many small topics are spread as one large one is. Brokers that stop get none.
    """
    order = _from_rack_to_rack(brokers)
    if not 1 <= factor <= len(order):
        return Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {factor}: {len(order)} brokers are available",
        )
    first, shift = _beginning(order, existing)
    racks = {n: _rack(brokers, n) for n in order}
    return [
        _first_state(_replicas(order, racks, factor, first + number, shift), brokers)
        for number in range(count)
    ]


def assigned(
    assignment: Sequence[Sequence[NodeId]], brokers: Brokers
) -> list[PartitionState] | Refused:
    """Return the first states of partitions with these replicas, in order of the partitions."""
    for number, replicas in enumerate(assignment):
        reason = ""
        if not replicas:
            reason = "no replicas"
        elif len(set(replicas)) != len(replicas):
            reason = f"a broker twice in {list(replicas)}"
        elif unknown := [n for n in replicas if n not in brokers]:
            reason = f"brokers {unknown} are not there"
        elif len(replicas) != len(assignment[0]):
            reason = f"{len(replicas)} replicas, partition 0 has {len(assignment[0])}"
        if reason:
            return Refused(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT, f"partition {number}: {reason}"
            )
    return [_first_state(tuple(replicas), brokers) for replicas in assignment]


def widened(
    partitions: Mapping[Key, StoredPartition],
    factor: int,
    brokers: Brokers,
    existing: Iterable[PartitionState],
) -> dict[Key, PartitionState]:
    """Return the states with more replicas of those partitions that have fewer than ``factor``.

    At most ``factor``, on brokers that do not stop: in the racks that a partition has least in, and
    of those the broker with the fewest of all ``existing`` replicas. None is in sync before it has
    copied the log; the leader stays, in its epoch. The partition's first replica is then the one
    that is the first of the fewest, so that ``moved_back`` spreads the leaders, too. A partition
    without a leader, or for which ``changes`` has a new state, is left as it is.
    """
    states = list(existing)
    held = Counter(node for each in states for node in each.replicas)
    begun = Counter(each.replicas[0] for each in states)
    found = {}
    for key, partition in partitions.items():
        state = partition.state
        more = _more(state.replicas, factor, brokers, held)
        if not more or state.leader == NO_LEADER or settled(partition, brokers) != state:
            continue
        held.update(more)
        replicas = state.replicas + more
        first = min(replicas, key=lambda node: begun[node])
        begun.subtract([state.replicas[0]])
        begun.update([first])
        found[key] = reordered(state, (first, *(n for n in replicas if n != first)))
    return found


def _more(
    replicas: tuple[NodeId, ...], factor: int, brokers: Brokers, held: Mapping[NodeId, int]
) -> tuple[NodeId, ...]:
    """Return the brokers that a partition gets in addition."""
    in_rack = Counter(_rack(brokers, node) for node in replicas if node in brokers)
    free = [n for n in _from_rack_to_rack(brokers) if n not in replicas]
    more: list[NodeId] = []
    while free and len(replicas) + len(more) < factor:
        node = min(free, key=lambda n: (in_rack[_rack(brokers, n)], held[n]))
        free.remove(node)
        more.append(node)
        in_rack[_rack(brokers, node)] += 1
    return tuple(more)


def _first_state(replicas: tuple[NodeId, ...], brokers: Brokers) -> PartitionState:
    leader = min(replicas, key=lambda n: brokers[n].registration.rank)
    return PartitionState(
        replicas=replicas,
        leader=leader,
        leader_epoch=LeaderEpoch(0),
        isr=replicas,
        leader_life=brokers[leader].registration.incarnation,
    )


def _rack(brokers: Brokers, node: NodeId) -> str:
    """Return a broker's rack; a broker without one is a rack of its own."""
    rack = brokers[node].registration.rack
    return f"broker {node}" if rack is None else f"rack {rack}"


def _from_rack_to_rack(brokers: Brokers) -> list[NodeId]:
    """Return the brokers that do not stop: the first of each rack, then the second of each …"""
    by_rack: dict[str, list[NodeId]] = {}
    for node in sorted(n for n in brokers if not brokers[n].registration.is_stopping):
        by_rack.setdefault(_rack(brokers, node), []).append(node)
    rounds = zip_longest(*by_rack.values())
    return [node for each in rounds for node in each if node is not None]


def _beginning(order: list[NodeId], existing: Iterable[PartitionState]) -> tuple[int, int]:
    """Return where the first partition begins, and how far its followers are shifted.

    Kafka draws both. What is there already decides here: the broker that leads least, and one more
    for each round over all brokers, so that its followers are not the same ones again.
    """
    led = dict.fromkeys(order, 0)
    for state in existing:
        if state.replicas[0] in led:
            led[state.replicas[0]] += 1
    least = min(led.values())
    return next(i for i, node in enumerate(order) if led[node] == least), least


def _replicas(
    order: list[NodeId], racks: Mapping[NodeId, str], factor: int, position: int, shift: int
) -> tuple[NodeId, ...]:
    """Return a partition's replicas (Kafka's ``AdminUtils.assignReplicasToBrokersRackAware``)."""
    turn, first = divmod(position, len(order))
    others = len(order) - 1
    step = (shift + turn) * len(set(racks.values()))
    followers = [order[(first + 1 + (step + k) % others) % len(order)] for k in range(others)]
    chosen = [order[first]]
    in_rack = Counter([racks[order[first]]])
    while len(chosen) < factor:
        follower = min(followers, key=lambda node: in_rack[racks[node]])
        followers.remove(follower)
        chosen.append(follower)
        in_rack[racks[follower]] += 1
    return tuple(chosen)
