"""Which replica leads a partition, and which are in sync: a partition's next state.

The broker that holds the controller's key calls ``changes`` after each change that it sees, and
``moved_back`` now and then. The rules look at what is stored, not at events, so that it does not
matter which changes were seen one by one and which together. Each new state is committed by
comparing the version of the partition's key, and by the controller its own key, too.

``isr_changed`` and ``handed_over`` are for the leader, which writes its ISR itself and ends its
leadership itself: while its life goes on, nobody else leads who could show readers more than it
does. ``without`` is for a broker before it registers, ``given_up`` for one whose disk has failed;
``unclean`` for an operator. All keep these invariants, and expect them:

- the leader is in the ISR; the ISR and the eligible replicas are replicas, and no replica is both;
- the heir is in the ISR and is not the leader;
- the leader epoch grows exactly when the leader changes, its process is another one, or it has
  resigned and leads again;
- the ISR is empty only where the last member may have lost records (``without``);
- a replica of the ISR or an eligible one has every committed record, if the leader moves the high
  watermark only while the ISR has ``isr_size_needed`` members.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from fencelog.coordination.controller.model import NO_LEADER, PartitionState, Registration
from fencelog.errors import ErrorCode
from fencelog.types import LeaderEpoch, NodeId

Key = TypeVar("Key")


class LiveBroker(NamedTuple):
    """A broker that is registered."""

    registration: Registration
    version: int
    """The version of its key."""

    @property
    def begun_at(self) -> int:
        """The version with which its life has begun."""
        return self.registration.begun_at or self.version


class StoredPartition(NamedTuple):
    """A partition's state as it is stored."""

    state: PartitionState
    version: int
    """The version of its key. A life that has begun with a higher one is newer than the state."""
    min_isr: int
    """``min.insync.replicas`` of its topic."""


class Refused(NamedTuple):
    """What was asked for is not done."""

    error: ErrorCode
    reason: str


class UncleanElection(NamedTuple):
    """The election of a replica that may lack committed records (``unclean``)."""

    state: PartitionState
    given_up: tuple[NodeId, ...]
    """The replicas that have them all: what they have beyond the new leader's log is lost."""


Brokers = Mapping[NodeId, LiveBroker]


def changes(
    partitions: Mapping[Key, StoredPartition], brokers: Brokers
) -> dict[Key, PartitionState]:
    """Return the new states of those partitions that are not as they should be.

    ``brokers``: all that are registered. A partition whose state changes neither by itself nor by
    a broker of it need not be passed.
    """
    found = {}
    for key, partition in partitions.items():
        state = settled(partition, brokers)
        if state != partition.state:
            found[key] = state
    return found


def settled(partition: StoredPartition, brokers: Brokers) -> PartitionState:
    """Return the state that follows from these registrations.

    Brokers that are gone leave the ISR, and so do those that came back: their leader adds them
    again. If none of it is left, those that came back stay; else the first live eligible replica
    is elected; else nobody, and the ISR stays as it is, because it has every committed record.

    A leader that stops, or whose disk is full, is told to hand over to a member that does not, or
    has room. Where one with room leads on, members without leave the ISR: all would wait for them.
    """
    state = partition.state
    isr = tuple(n for n in state.isr if n in brokers and not _came_back(partition, brokers[n]))
    isr = isr or tuple(n for n in state.isr if n in brokers)
    if not isr:
        candidate = _first(state.replicas, state.eligible, brokers)
        isr = () if candidate is None else (candidate,)
    if not isr:
        return _led(state, NO_LEADER, brokers)
    if state.leader not in isr or not _is_elected(state, brokers):
        leader = _first(state.replicas, isr, brokers)
        assert leader is not None
        state = _led(state, leader, brokers)
    state = state._replace(heir=_heir(state, isr, brokers))
    if state.heir == NO_LEADER and not brokers[state.leader].registration.is_full:
        isr = tuple(n for n in isr if not brokers[n].registration.is_full)
    return _with_isr(state, isr, partition.min_isr)


def moved_back(
    partitions: Mapping[Key, StoredPartition], brokers: Brokers
) -> dict[Key, PartitionState]:
    """Return the states in which the first replica is the heir, where it can lead.

    It must be in the ISR, live and not stopping, and its disk not full. A partition for which
    ``changes`` has a new state gets none here.
    """
    found = {}
    for key, partition in partitions.items():
        state = preferred(partition, brokers)
        if isinstance(state, PartitionState) and state != partition.state:
            found[key] = state
    return found


def preferred(partition: StoredPartition, brokers: Brokers) -> PartitionState | Refused:
    """Return the state in which the first replica is the heir (preferred election, KIP-460).

    Refused if it leads already, or cannot now: it must be in the ISR, live and not stopping, its
    disk must have room, and ``changes`` must have no new state.
    """
    state = partition.state
    first = state.replicas[0]
    if state.leader == first:
        return Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {first} leads it already")
    is_settled = state.leader != NO_LEADER and settled(partition, brokers) == state
    if not is_settled or _first(state.replicas, state.isr, brokers) != first:
        return Refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {first} is not live, stops, has a full disk, or is not in sync",
        )
    return state._replace(heir=first)


def handed_over(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """Return the state in which the heir leads; for a leader that serves readers no more.

    Where no heir is left by now, it is the in-sync replica that is to lead first, this leader
    perhaps, in the next epoch. None while none of them is registered.
    """
    heir = state.heir if state.heir in brokers else _first(state.replicas, state.isr, brokers)
    return None if heir is None else _led(state, heir, brokers)


def isr_changed(state: PartitionState, isr: Iterable[NodeId], min_isr: int) -> PartitionState:
    """Return the state with the ISR that the leader wants; it stays the leader in its epoch.

    The commit compares the leader's own registration and those of the replicas that join. A member
    that leaves an ISR below ``min.insync.replicas`` is eligible, until the ISR has that size again.
    """
    members = tuple(isr)
    assert state.leader in members, (state, members)
    assert len(set(members)) == len(members), members
    assert set(members) <= set(state.replicas), (state, members)
    return _with_isr(state, members, min_isr)


def isr_size_needed(state: PartitionState, min_isr: int) -> int:
    """Return how many in-sync replicas the leader needs to move the high watermark.

    Where there are eligible replicas it must not move at all: they would lack what it passes. That
    is so for a moment after ``min.insync.replicas`` was lowered, until ``changes`` has seen it.
    """
    return max(min_isr, len(state.isr) + 1) if state.eligible else min_isr


def without(state: PartitionState, node: NodeId) -> PartitionState:
    """Return the state where a broker may have lost what it had acknowledged.

    After a power loss in ``os`` mode, and with an empty data directory, it calls this for all its
    partitions before it registers. If nobody is left to elect, they wait for their operator.
    """
    state = state._replace(
        isr=tuple(n for n in state.isr if n != node),
        eligible=tuple(n for n in state.eligible if n != node),
        heir=NO_LEADER if node == state.heir else state.heir,
    )
    return _led(state, NO_LEADER, {}) if state.leader == node else state


def reordered(state: PartitionState, replicas: tuple[NodeId, ...]) -> PartitionState:
    """Return the state with these replicas, which are those it has and perhaps more."""
    assert set(state.replicas) <= set(replicas), (state, replicas)
    return state._replace(
        replicas=replicas,
        isr=_in_order(replicas, state.isr),
        eligible=_in_order(replicas, state.eligible),
    )


def given_up(
    state: PartitionState, node: NodeId, live: Collection[NodeId]
) -> PartitionState | None:
    """Return the state without a replica whose files have failed; None if it has to stay.

    It stays while no other live replica has every committed record: nobody could lead then, and
    what its files still have may be all that is left.
    """
    left = without(state, node)
    return left if {*left.isr, *left.eligible} & {*live} else None


def behind(state: PartitionState, newest: LeaderEpoch) -> PartitionState | None:
    """Return the state of a partition of which a replica was written in a newer epoch.

    None if ``newest``, the epoch of that replica, is not newer. The metadata have lost changes (an
    older backup was restored): what they call in sync may lack committed records. So nobody leads
    until an operator has compared the replicas and elected one.
    """
    if newest <= state.leader_epoch:
        return None
    return state._replace(
        leader=NO_LEADER,
        leader_epoch=LeaderEpoch(newest + 1),
        isr=(),
        eligible=(),
        leader_life="",
        heir=NO_LEADER,
    )


def unclean(
    state: PartitionState, node: NodeId | None, brokers: Brokers
) -> UncleanElection | Refused:
    """Elect a replica that may lack committed records: only ever at an operator's explicit request.

    ``node``: None for the first live one, which is what Kafka's tools ask for. Refused while a
    replica that has them all is live.
    """
    if node is None:
        node = _first(state.replicas, state.replicas, brokers)
        if node is None:
            return Refused(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"none of {list(state.replicas)} is live"
            )
    if node not in state.replicas or node not in brokers:
        return Refused(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"broker {node} is no live replica of it"
        )
    complete = _in_order(state.replicas, (*state.isr, *state.eligible))
    live = [n for n in complete if n in brokers]
    if live:
        return Refused(
            ErrorCode.ELECTION_NOT_NEEDED,
            f"brokers {live} are live and have every committed record",
        )
    state = _led(state, node, brokers)._replace(isr=(node,), eligible=())
    return UncleanElection(state, complete)


def _came_back(partition: StoredPartition, broker: LiveBroker) -> bool:
    """Whether a member of the ISR has another life than the one that was a member.

    A life may write its registration again. One that came back and is not noticed, because the
    state was written since, does no harm: a process that was killed has everything that it
    acknowledged, and others call ``without`` first.
    """
    state, registration = partition.state, broker.registration
    if registration.node_id == state.leader:
        return registration.incarnation != state.leader_life
    return broker.begun_at > partition.version


def _is_elected(state: PartitionState, brokers: Brokers) -> bool:
    """Whether the leader, a registered broker, is in the life that was elected."""
    return brokers[state.leader].registration.incarnation == state.leader_life


def _heir(state: PartitionState, isr: tuple[NodeId, ...], brokers: Brokers) -> NodeId:
    """Return to whom the leader is to hand over: its heir, or who should lead in its place."""
    first = _first(state.replicas, isr, brokers)
    assert first is not None
    lowest = brokers[first].registration.rank
    if brokers[state.leader].registration.rank > lowest:
        return first
    is_heir = state.heir in isr and brokers[state.heir].registration.rank == lowest
    return state.heir if is_heir else NO_LEADER


def _first(
    replicas: tuple[NodeId, ...], candidates: tuple[NodeId, ...], brokers: Brokers
) -> NodeId | None:
    """Return the first live candidate in the replicas' order, of those with the lowest rank."""
    live = [n for n in replicas if n in candidates and n in brokers]
    return min(live, key=lambda n: brokers[n].registration.rank, default=None)


def _led(state: PartitionState, leader: NodeId, brokers: Brokers) -> PartitionState:
    """Return the state in the next leader epoch; as it is if it has no leader and gets none."""
    if leader == state.leader == NO_LEADER:
        return state
    return state._replace(
        leader=leader,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        leader_life="" if leader == NO_LEADER else brokers[leader].registration.incarnation,
        heir=NO_LEADER,
    )


def _with_isr(state: PartitionState, isr: tuple[NodeId, ...], min_isr: int) -> PartitionState:
    """Return the state with this ISR and the eligible replicas that follow (KIP-966)."""
    eligible = () if len(isr) >= min_isr else {*state.isr, *state.eligible} - {*isr}
    return state._replace(
        isr=_in_order(state.replicas, isr),
        eligible=_in_order(state.replicas, eligible),
        heir=state.heir if state.heir in isr else NO_LEADER,
    )


def _in_order(replicas: tuple[NodeId, ...], some: Iterable[NodeId]) -> tuple[NodeId, ...]:
    chosen = set(some)
    return tuple(n for n in replicas if n in chosen)
