"""The plan of faults of a run with several brokers: what one broker has, on one host, and more."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from fencelog.broker.coordinators.cluster_leaders import REQUEST_TIMEOUT_S
from fencelog_sim.faults import LONG_SHARE, Fault, Kind, Plan, Points, draw_one
from fencelog_sim.world.disk import Loss

WEIGHTS: Sequence[tuple[Kind, float]] = (
    (Kind.KILL, 6),
    (Kind.POWER, 3),
    (Kind.RESTART, 1.5),
    (Kind.PAUSE, 3),
    (Kind.LINK, 3),
    (Kind.ISOLATE, 3),
    (Kind.NO_STORE, 2),
    (Kind.LEASE_LOST, 1),
    (Kind.LATE_WATCH, 1.5),
    (Kind.LOST_ANSWER, 2),
    (Kind.COMPACTION, 0.7),
    (Kind.GARBLE, 0.7),
    (Kind.SITE_POWER, 0.7),
    (Kind.CLIENT_KILL, 2),
    (Kind.CLIENT_PAUSE, 1),
    (Kind.CUT, 0.7),
    (Kind.DELAY, 0.7),
    (Kind.RESET, 1),
    (Kind.SWALLOW, 0.7),
    (Kind.STRAND, 1),
    (Kind.SYNC_FAILS, 0.4),
    (Kind.WRITE_FAILS, 0.4),
    (Kind.FULL, 0.5),
    (Kind.SKEW, 0.3),
    (Kind.SLOW_DISK, 1),
)
"""None that damages a stored batch: its replica stays offline until it is replaced by hand."""
FAULTS_MAX = 8
DENSE_SHARE = 0.25
"""Of all plans, those with many faults, and most of them soon after another one."""
DENSE_FAULTS_MAX = 18
DENSE_SOON_SHARE = 0.45
NO_FAULTS_SHARE = 0.04
SOON_S = 0.5
SOON_SHARE = 0.3
"""Of all faults, those that meet what the one before has set in motion."""
SHORT_S = (0.05, 1.5)
LONG_S = (3.0, 12.0)
LOSSES: Sequence[Loss] = (Loss.ALL, Loss.NONE, Loss.TORN, Loss.HOLES)
HOW: dict[Kind, Sequence[str]] = {
    Kind.LINK: ("in", "out", "both"),
    Kind.ISOLATE: ("in", "out", "both"),
    Kind.NO_STORE: ("one", "one", "one", "all"),
    Kind.LOST_ANSWER: ("stored", "not-stored", "late", "overtaken"),
}
LASTING = frozenset({Kind.LINK, Kind.ISOLATE, Kind.NO_STORE, Kind.LATE_WATCH})
POINTS: Sequence[tuple[str, int]] = (
    ("commit partition/*", 6),
    ("commit controller", 2),
    ("truncate *", 3),
    ("request ReplicaFetch", 30),
    ("answer ReplicaFetch", 30),
    ("request BrokerWriteMarkers", 4),
    ("answer BrokerWriteMarkers", 4),
    ("request BrokerVerify", 8),
    ("answer BrokerVerify", 8),
    ("request BrokerOutcomes", 2),
)
"""Points that only a cluster has, and up to which match a fault may wait for."""
POINTED = frozenset({Kind.KILL, Kind.POWER, Kind.PAUSE, Kind.RESET, Kind.ISOLATE})
POINTED_SHARE = 0.35
STRANDED: Sequence[tuple[str, int]] = (
    ("request BrokerWriteMarkers", 6),
    ("request BrokerVerify", 12),
    ("request ReplicaFetch", 30),
)
"""Requests between brokers whose late arrival is dangerous."""
STRANDED_SHARE = 0.5
LATE_REQUESTS = (("request BrokerWriteMarkers", 3), ("request Produce", 6), ("request EndTxn", 2))
MISSED_SHARE = 0.7
BUSY_SHARE = 0.7
MOVES_SHARE = 0.3
"""Of all plans, those in which leaderships move between live brokers."""
MOVES_MAX = 4
MOVES_APART_S = (0.1, 2.0)
MOVE_S = (0.2, 3.0)
AT_REQUEST_SHARE = 0.5
RETURNS_SHARE = 0.3
RETURN_S = (0.2, 3.0)
HELD_S = (0.05, 0.5)
LATE_S = (2.0, 8.0)
LOST_WRITE = "commit partition/*"
LOST_WRITES_MAX = 4


def draw_for_cluster(
    random: Random,
    span_s: float,
    *,
    brokers: int,
    clients: int,
    durability: str,
    own: Points = (),
) -> Plan:
    """A plan for a run whose clients act for ``span_s`` virtual seconds.

    In ``os`` mode one host only loses what it has not synced, however often: what is committed is
    on another one then. All hosts at once lose nothing there, where nothing is promised for it.
    """
    if random.random() < NO_FAULTS_SHARE:
        return ()
    drawn = _Draw(random, brokers, clients, durability, random.randint(1, brokers), own)
    kinds, weights = zip(*WEIGHTS, strict=True)
    faults: list[Fault] = []
    count, soon_share = random.randint(1, FAULTS_MAX), SOON_SHARE
    if random.random() < DENSE_SHARE:
        count, soon_share = random.randint(FAULTS_MAX, DENSE_FAULTS_MAX), DENSE_SOON_SHARE
    for kind in random.choices(kinds, weights, k=count):
        at = random.uniform(0.0, span_s)
        if faults and random.random() < soon_share:
            at = faults[-1].at + random.uniform(0.0, SOON_S)
        faults.append(drawn.fault(kind, round(at, 3)))
        if kind is Kind.COMPACTION and random.random() < MISSED_SHARE:
            faults += drawn.missed(faults[-1])
        if faults[-1].how == "overtaken" and random.random() < BUSY_SHARE:
            faults.append(drawn.busy(faults[-1]))
    if random.random() < MOVES_SHARE:
        at = random.uniform(0.0, span_s)
        faults += drawn.returns(at) if random.random() < RETURNS_SHARE else drawn.moves(at)
    return tuple(sorted(faults, key=lambda each: each.at))


@dataclass(frozen=True)
class _Draw:
    """What the faults of one plan are drawn from."""

    random: Random
    brokers: int
    clients: int
    durability: str
    victim: int
    """The only broker whose power cuts lose something, in ``os`` mode."""
    own: Points
    """Those of the workload."""

    def fault(self, kind: Kind, at: float) -> Fault:
        random = self.random
        host = random.randint(1, self.brokers)
        others = [number for number in range(1, self.brokers + 1) if number != host]
        other = random.choice(others)
        losses = LOSSES
        if self.durability == "os" and (host != self.victim or kind is Kind.SITE_POWER):
            losses = (Loss.NONE,)
        if kind in HOW:
            how = random.choice(HOW[kind])
            seconds = random.uniform(*SHORT_S)
            if kind in LASTING and random.random() < 2 * LONG_SHARE:
                seconds = random.uniform(*LONG_S)
            fault = Fault(kind=kind, at=at, seconds=round(seconds, 3), how=how)
        elif kind is Kind.SITE_POWER:
            how = random.choice(losses).name
            fault = Fault(kind=kind, at=at, seconds=round(random.uniform(*SHORT_S), 3), how=how)
        else:
            fault = draw_one(random, kind, at, self.clients, losses, self.own)
        return replace(self._at_a_point(fault), host=host, other=other if kind is Kind.LINK else 0)

    def missed(self, compaction: Fault) -> list[Fault]:
        """Let one broker miss what another one's end brings about, and the store forget it."""
        random = self.random
        one, other = random.sample(range(1, self.brokers + 1), 2)
        at, seconds = compaction.at, round(random.uniform(2.0, 6.0), 3)
        return [
            Fault(kind=Kind.NO_STORE, at=max(0.0, at - 1.0), seconds=seconds, how="one", host=one),
            Fault(kind=Kind.KILL, at=max(0.0, at - 0.9), seconds=0.3, host=other),
        ]

    def busy(self, overtaken: Fault) -> Fault:
        """Give the controller something to write while it is replaced: another broker ends."""
        others = [each for each in range(1, self.brokers + 1) if each != overtaken.host]
        at = max(0.0, overtaken.at - 0.01)
        return Fault(kind=Kind.KILL, at=at, seconds=0.3, host=self.random.choice(others))

    def moves(self, at: float) -> list[Fault]:
        """Move leaderships to and fro, while some brokers learn it late, or are cut off.

        What a deposed leader does that does not know of it, and what reaches one that leads again.
        """
        random = self.random
        faults = []
        for _ in range(random.randint(1, MOVES_MAX)):
            faults.append(self._move(at))
            at += random.uniform(*MOVES_APART_S)
        begun = faults[0].at
        numbers = range(1, self.brokers + 1)
        for host in random.sample(numbers, random.randrange(self.brokers)):
            at = round(begun + random.uniform(-SOON_S, 2 * SOON_S), 3)
            seconds = round(random.uniform(*LATE_S), 3)
            faults.append(Fault(kind=Kind.LATE_WATCH, at=max(0.0, at), seconds=seconds, host=host))
        return faults

    def returns(self, at: float) -> list[Fault]:
        """Give a leadership back when what was sent to it long before arrives.

        For longer than the sender waits: by then it has done the same elsewhere, and gone on.
        """
        random = self.random
        host, other = random.sample(range(1, self.brokers + 1), 2)
        moved_at = at + random.uniform(0.0, SOON_S)
        away_s = REQUEST_TIMEOUT_S + random.uniform(*RETURN_S)
        held_s = moved_at - at + away_s + random.uniform(*HELD_S)
        held = Fault(kind=Kind.LINK, at=round(at, 3), seconds=round(held_s, 3), how="in")
        move = Fault(kind=Kind.MOVE, at=round(moved_at, 3), seconds=round(away_s, 3), host=host)
        return [replace(held, host=host, other=other), move]

    def _move(self, at: float) -> Fault:
        random = self.random
        seconds, host = round(random.uniform(*MOVE_S), 3), random.randint(1, self.brokers)
        move = Fault(kind=Kind.MOVE, at=round(at, 3), seconds=seconds, host=host)
        if random.random() < AT_REQUEST_SHARE:
            point, most = random.choice(LATE_REQUESTS)
            return replace(move, point=point, nth=random.randint(1, most))
        return move

    def _at_a_point(self, fault: Fault) -> Fault:
        """Let a fault come where only a cluster's brokers are, or where it is drawn already."""
        random, own = self.random, self.own
        if own and fault.point in dict(own):
            return fault
        if fault.kind is Kind.LOST_ANSWER and random.random() < STRANDED_SHARE:
            writes = [LOST_WRITE, *(point for point, _ in own if point.startswith("commit "))]
            return replace(
                fault, point=random.choice(writes), nth=random.randint(1, LOST_WRITES_MAX)
            )
        if fault.kind is Kind.STRAND and random.random() < STRANDED_SHARE:
            points = STRANDED
        elif fault.kind in POINTED and random.random() < POINTED_SHARE:
            points = POINTS
        else:
            return fault
        point, most = random.choice(points)
        nth = 1 + int(most * random.random() ** 2)
        return replace(fault, point=point, nth=nth, after=random.random() < 0.5)
