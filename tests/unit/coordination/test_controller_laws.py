"""Laws of the controller's rules: no committed record is lost, whatever comes in which order.

Three replicas of one partition append, fetch, die, lose power, lose their registrations and come
back; all see what is stored late, the controller too, and a write is applied long after it was
sent, or never. The committed records, which nobody in the cluster knows, are the yardstick.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.controller.placement import assigned, widened
from fencelog.coordination.controller.rules import (
    Brokers,
    LiveBroker,
    StoredPartition,
    changes,
    handed_over,
    isr_changed,
    isr_size_needed,
    moved_back,
    without,
)
from fencelog.types import NodeId
from tests.unit.coordination.cluster import ONE, THREE, TWO, broker, life

NODES = (ONE, TWO, THREE)
Record = tuple[int, int]
"""Leader epoch and a number that no other record has."""


@dataclass
class Write:
    """A change of the partition's key that was sent; it is applied at some time, or never."""

    compared: int
    state: PartitionState
    lives: dict[NodeId, int]
    """Versions of registrations that it compares."""


@dataclass
class Replica:
    """A broker's process, and its log."""

    log: list[Record] = field(default_factory=list)
    number: int = 1
    runs: bool = True
    lost_power: bool = False
    """Its log may be shorter than what it acknowledged; it has not said so yet."""
    known: PartitionState | None = None
    """The partition's state as it has seen it last, with its version and min.insync.replicas."""
    known_version: int = 0
    min_isr: int = 1
    acknowledged: dict[NodeId, int] = field(default_factory=dict)
    sent: list[Write] = field(default_factory=list)
    """Writes of its ISR of which it does not know yet that they can no longer be applied."""
    high_watermark: int = 0
    epoch_start: int = 0
    resigned: int = -1
    """The leader epoch in which it leads no more, though it may not know of a newer one."""

    def leads(self, node: NodeId) -> bool:
        known = self.known
        return (
            self.runs
            and known is not None
            and known.leader_epoch != self.resigned
            and (known.leader, known.leader_life) == (node, life(node, self.number))
        )


def fork(one: list[Record], other: list[Record]) -> int:
    """How many records two logs have in common."""
    same = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(same) if a != b), min(len(one), len(other)))


class Cluster:
    """One partition, and what is drawn for it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.version = 10
        self.brokers = {n: broker(n, self.version) for n in NODES}
        states = assigned([random.choice([NODES, NODES[:2], NODES[:1]])], self.brokers)
        assert isinstance(states, list)
        self.state = states[0]
        self.stored_at = self.version = 11
        self.min_isr = 2
        self.replicas = {n: Replica() for n in NODES}
        self.controller: dict[str, PartitionState] = {}
        self.controller_read = 0
        self.committed: list[Record] = []
        self.led: dict[int, str] = {0: life(ONE)}
        self.serial = 0
        self.power_was_lost = False

    def store(self, state: PartitionState) -> None:
        """A commit: who leads from here on has every committed record."""
        before, self.state = self.state, state
        self.version += 1
        self.stored_at = self.version
        if state.leader_epoch == before.leader_epoch:
            assert (state.leader, state.leader_life) == (before.leader, before.leader_life)
            return
        assert state.leader_epoch == before.leader_epoch + 1
        assert state.leader_epoch not in self.led
        self.led[state.leader_epoch] = state.leader_life
        if state.leader != NO_LEADER:
            self.has_every_committed_record(state.leader)

    def has_every_committed_record(self, node: NodeId) -> None:
        replica = self.replicas[node]
        if not replica.lost_power:  # else it takes itself out before it can lead
            same = fork(replica.log, self.committed)
            assert same == len(self.committed), (node, replica.log, self.committed)

    # -- the controller ----------------------------------------------------------------------

    def partition(self) -> dict[str, StoredPartition]:
        needed = min(self.min_isr, len(self.state.replicas))
        return {"k": StoredPartition(self.state, self.stored_at, needed)}

    def with_more_replicas(
        self, partitions: Mapping[str, StoredPartition], brokers: Brokers
    ) -> dict[str, PartitionState]:
        return widened(partitions, self.random.randint(1, 3), brokers, [self.state])

    def the_controller_reads(self) -> None:
        decide = self.random.choice((changes, changes, moved_back, self.with_more_replicas))
        self.controller = decide(self.partition(), dict(self.brokers))
        self.controller_read = self.stored_at

    def the_controller_commits(self) -> None:
        if self.controller and self.controller_read == self.stored_at:
            self.store(self.controller["k"])
        self.controller = {}

    def the_minimum_changes(self) -> None:
        self.min_isr = self.random.randint(1, 3)

    # -- replicas ----------------------------------------------------------------------------

    def sees_what_is_stored(self, node: NodeId) -> None:
        replica = self.replicas[node]
        if not replica.runs:
            return
        if replica.known is None or replica.known.leader_epoch != self.state.leader_epoch:
            replica.acknowledged = {}
            replica.epoch_start = len(replica.log)
        replica.known, replica.known_version = self.state, self.stored_at
        replica.min_isr = self.min_isr
        # An older write may still be applied as long as the version that it compares is there.
        replica.sent = [each for each in replica.sent if each.compared >= self.stored_at]

    def appends(self, node: NodeId) -> None:
        replica = self.replicas[node]
        if replica.leads(node):
            assert replica.known is not None
            for _ in range(self.random.randint(1, 3)):
                self.serial += 1
                replica.log.append((replica.known.leader_epoch, self.serial))

    def fetches(self, node: NodeId, follower: NodeId) -> None:
        leader, other = self.replicas[node], self.replicas[follower]
        if node == follower or not leader.leads(node) or not other.runs:
            return
        assert leader.known is not None
        if follower not in leader.known.replicas:
            return
        if other.known is None or other.known.leader_epoch != leader.known.leader_epoch:
            return
        same = fork(other.log, leader.log)
        assert same >= other.high_watermark
        other.log = leader.log[: same + self.random.randint(1, 4)]
        other.high_watermark = max(other.high_watermark, min(leader.high_watermark, len(other.log)))
        leader.acknowledged[follower] = len(other.log)

    def moves_the_high_watermark(self, node: NodeId) -> None:
        replica = self.replicas[node]
        if not replica.leads(node):
            return
        known = replica.known
        assert known is not None
        if len(known.isr) < min(isr_size_needed(known, replica.min_isr), len(known.replicas)):
            return
        counted = {*known.isr, *(n for write in replica.sent for n in write.state.isr)}
        ends = [len(replica.log) if n == node else replica.acknowledged.get(n, 0) for n in counted]
        replica.high_watermark = max(replica.high_watermark, min(ends))
        if replica.high_watermark > len(self.committed):
            self.committed = replica.log[: replica.high_watermark]

    def some_records_are_committed(self) -> None:
        """All that works does what it should, once."""
        for node in NODES:
            self.sees_what_is_stored(node)
        leader = self.state.leader
        if leader == NO_LEADER or not self.replicas[leader].leads(leader):
            return
        self.appends(leader)
        for node in NODES:
            self.fetches(leader, node)
        if self.random.random() < 0.5:
            caught_up = self.replicas[leader].acknowledged.keys()
            self.asks_for(leader, {leader, *caught_up & self.brokers.keys()})
        self.moves_the_high_watermark(leader)

    def asks_for_another_isr(self, node: NodeId) -> None:
        self.asks_for(node, {node, *self.random.sample(NODES, self.random.randint(0, 2))})

    def asks_for(self, node: NodeId, members: set[NodeId]) -> None:
        replica = self.replicas[node]
        if not replica.leads(node):
            return
        known = replica.known
        assert known is not None
        joining = members - set(known.isr)
        enough = max(replica.high_watermark, replica.epoch_start)
        if not all(
            n in self.brokers and replica.acknowledged.get(n, -1) >= enough for n in joining
        ):
            return
        wanted = isr_changed(known, sorted(members), replica.min_isr)
        lives = {n: self.brokers[n].version for n in joining}
        if node in self.brokers:
            lives[node] = self.brokers[node].version
            replica.sent.append(Write(replica.known_version, wanted, lives))

    def a_write_is_applied(self, node: NodeId) -> None:
        replica = self.replicas[node]
        if replica.sent:
            write = self.random.choice(replica.sent)
            lives = {n: self.brokers[n].version for n in write.lives if n in self.brokers}
            if write.compared == self.stored_at and write.lives == lives:
                self.store(write.state)

    def resigns(self, node: NodeId) -> None:
        replica = self.replicas[node]
        if replica.leads(node) and not replica.sent:
            assert replica.known is not None
            if replica.known.heir != NO_LEADER:
                replica.resigned = replica.known.leader_epoch

    def hands_over(self, node: NodeId) -> None:
        """It stores who leads in its place, until it sees that somebody does."""
        replica = self.replicas[node]
        known = replica.known
        if not replica.runs or known is None or known.leader_epoch != replica.resigned:
            return
        state = handed_over(known, self.brokers)
        if state is not None:
            lives = {n: self.brokers[n].version for n in state.replicas if n in self.brokers}
            replica.sent.append(Write(replica.known_version, state, lives))

    # -- processes and registrations ---------------------------------------------------------

    def is_killed(self, node: NodeId) -> None:
        self.replicas[node].runs = False

    def loses_power(self, node: NodeId) -> None:
        self.replicas[node].runs = False
        self.replicas[node].lost_power = self.power_was_lost = True
        log = self.replicas[node].log
        del log[self.random.randint(0, len(log)) :]

    def its_registration_ends(self, node: NodeId) -> None:
        self.brokers.pop(node, None)

    def begins_a_new_life(self, node: NodeId) -> None:
        old = self.replicas[node]
        if old.lost_power and without(self.state, node) != self.state:
            self.store(without(self.state, node))
        self.version += 1
        self.replicas[node] = Replica(
            old.log, old.number + 1, high_watermark=min(old.high_watermark, len(old.log))
        )
        self.replicas[node].sent = old.sent  # they are on their way
        self.brokers[node] = broker(node, self.version, number=old.number + 1)

    def is_about_to_stop(self, node: NodeId) -> None:
        if node in self.brokers:
            self.version += 1
            known = self.brokers[node]
            stopping = known.registration._replace(is_stopping=True, begun_at=known.begun_at)
            self.brokers[node] = LiveBroker(stopping, self.version)

    def its_disk_is_full_or_has_room_again(self, node: NodeId) -> None:
        if node in self.brokers:
            self.version += 1
            known = self.brokers[node]
            other = not known.registration.is_full
            changed = known.registration._replace(is_full=other, begun_at=known.begun_at)
            self.brokers[node] = LiveBroker(changed, self.version)

    # -- what always holds -------------------------------------------------------------------

    def the_state_is_sound(self) -> None:
        state = self.state
        assert state.leader in (*state.isr, NO_LEADER)
        assert not set(state.isr) & set(state.eligible)
        assert {*state.isr, *state.eligible} <= set(state.replicas)
        assert state.isr or self.power_was_lost
        assert state.heir == NO_LEADER or state.heir in state.isr
        assert state.heir != state.leader or state.heir == NO_LEADER
        assert (state.leader == NO_LEADER) == (state.leader_life == "")

    def one_live_broker_leads(self) -> None:
        """Nobody shows readers less than another leader does: of those that have a lease (F8)."""
        leading = [
            node
            for node in NODES
            if self.replicas[node].leads(node)
            and node in self.brokers
            and self.brokers[node].registration.incarnation
            == life(node, self.replicas[node].number)
        ]
        assert len(leading) <= 1, leading

    def whoever_may_be_elected_has_every_committed_record(self) -> None:
        for node in (*self.state.isr, *self.state.eligible):
            self.has_every_committed_record(node)

    def all_come_back(self) -> None:
        """All come back: the partition has a leader at once, if anybody has all its records."""
        for node in NODES:
            self.begins_a_new_life(node)
        waits = not self.state.isr and not self.state.eligible
        for state in changes(self.partition(), self.brokers).values():
            self.store(state)
        assert changes(self.partition(), self.brokers) == {}
        assert (self.state.leader == NO_LEADER) == waits
        if not waits:
            leader = self.brokers[self.state.leader].registration
            assert leader.incarnation == self.state.leader_life
        for state in moved_back(self.partition(), self.brokers).values():
            self.store(state)
            led = handed_over(state, self.brokers)
            assert led is not None
            self.store(led)
        assert waits or self.state.leader == self.state.isr[0]
        for state in widened(self.partition(), 3, self.brokers, [self.state]).values():
            self.store(state)
        assert waits or {*self.state.replicas} == {*NODES}


ONE_REPLICA: dict[Callable[[Cluster, NodeId], None], int] = {
    Cluster.sees_what_is_stored: 12,
    Cluster.appends: 6,
    Cluster.moves_the_high_watermark: 8,
    Cluster.asks_for_another_isr: 6,
    Cluster.a_write_is_applied: 8,
    Cluster.resigns: 6,
    Cluster.hands_over: 4,
    Cluster.is_killed: 1,
    Cluster.loses_power: 1,
    Cluster.its_registration_ends: 2,
    Cluster.begins_a_new_life: 3,
    Cluster.is_about_to_stop: 1,
    Cluster.its_disk_is_full_or_has_room_again: 2,
}
THE_CLUSTER: dict[Callable[[Cluster], None], int] = {
    Cluster.the_controller_reads: 8,
    Cluster.the_controller_commits: 8,
    Cluster.the_minimum_changes: 1,
    Cluster.some_records_are_committed: 12,
}


def step(cluster: Cluster) -> None:
    """Do one thing that is drawn."""
    random = cluster.random
    node, other = random.sample(NODES, 2)
    kind = random.choices(("replica", "fetch", "cluster"), (48, 15, 29))[0]
    if kind == "replica":
        random.choices([*ONE_REPLICA], [*ONE_REPLICA.values()])[0](cluster, node)
    elif kind == "fetch":
        cluster.fetches(node, other)
    else:
        random.choices([*THE_CLUSTER], [*THE_CLUSTER.values()])[0](cluster)


@pytest.mark.parametrize("hundred", range(10))
def test_no_history_loses_a_committed_record_or_leaves_a_partition_without_leader(
    hundred: int,
) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        cluster = Cluster(Random(f"controller/{seed}"))
        for _ in range(120):
            step(cluster)
            cluster.the_state_is_sound()
            cluster.one_live_broker_leads()
            cluster.whoever_may_be_elected_has_every_committed_record()
        cluster.all_come_back()
