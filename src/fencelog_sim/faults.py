"""The plan of faults of a run: drawn from the seed, written as JSON, injected in order.

A fault comes at a time, or at a point: the n-th disk or metadata operation, request or answer of
the broker that matches a pattern, counted from the fault's time on. The points are named after what
the broker does there (``sync t-0/*.log``, ``append __transaction_state-*``, ``put *``,
``request EndTxn``, ``answer Produce``), so a fault comes between two steps of the broker's
code without a line about faults in that code.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from random import Random
from typing import Self, TypeAlias

from fencelog_sim.world.disk import Loss


class Kind(StrEnum):
    """The kinds of faults, each with what its ``how`` and ``seconds`` mean."""

    KILL = "kill"
    """``kill -9`` of the broker; it is started again after ``seconds``."""
    POWER = "power"
    """Power cut; ``how`` is the name of a Loss; power is back after ``seconds``."""
    RESTART = "restart"
    """Clean stop of the broker, then a start."""
    PAUSE = "pause"
    """SIGSTOP of the broker for ``seconds``."""
    CLIENT_KILL = "client-kill"
    """``kill -9`` of client number ``how``."""
    CLIENT_PAUSE = "client-pause"
    """SIGSTOP of client number ``how`` for ``seconds``."""
    CUT = "cut"
    """``how`` is in, out or both: what goes to, or comes from, the broker is held back."""
    DELAY = "delay"
    """Everything from and to the broker takes up to a second longer for ``seconds``."""
    RESET = "reset"
    """All connections, or one of them (``how``: all, one), are reset."""
    SWALLOW = "swallow"
    """One connection loses all it sends from now on, without an error on either side."""
    STRAND = "strand"
    """What a client has under way on one connection arrives ``seconds`` later, though the client
    sees at once that the connection is lost."""
    SYNC_FAILS = "sync-fails"
    """The next sync of a log fails (EIO); ``seconds`` later the broker is killed, or its host
    loses power where ``how`` names a Loss, and started anew. One of several brokers is not killed:
    it goes on, and replaces what has failed."""
    WRITE_FAILS = "write-fails"
    """The next append to a log fails half-way (EIO); what follows is as for SYNC_FAILS."""
    FULL = "full"
    """The disk is full for ``seconds``; what follows is as for SYNC_FAILS."""
    SKEW = "skew"
    """The broker's wall clock jumps by ``how`` milliseconds."""
    SLOW_DISK = "slow-disk"
    """Syncs take fifty times as long for ``seconds``."""
    ROT = "rot"
    """The broker stops cleanly, a bit of a stored batch flips, and ``seconds`` later it is back."""
    SIDE_ROT = "side-rot"
    """As rot, but in an index, a snapshot, a leader epoch or a recovery checkpoint, which can be
    rebuilt: it shows nowhere. ``how``: whether the broker is stopped or killed before."""
    LATE_MARKER = "late-marker"
    """A marker of an earlier coordinator epoch arrives in an open transaction."""
    LINK = "link"
    """What goes to (``how``: in) or from (out) broker ``host``, or both, to or from broker
    ``other`` is held back."""
    ISOLATE = "isolate"
    """The same with all other brokers and all clients; the metadata store is in reach."""
    NO_STORE = "no-store"
    """The metadata store is out of reach for the broker, or for all (``how``: one, all)."""
    LEASE_LOST = "lease-lost"
    """The store ends the broker's lease, though it was renewed."""
    LATE_WATCH = "late-watch"
    """What others change is told to the broker up to ``seconds`` late, for ``seconds``."""
    LOST_ANSWER = "lost-answer"
    """The answer to the broker's next write to the store is lost; the write is done (``how``:
    stored), never done (not-stored), done ``seconds`` later (late), or so late that the broker has
    lost its lease before (overtaken)."""
    GARBLE = "garble"
    """A bit flips in the next records that the broker sends to a follower."""
    COMPACTION = "compaction"
    """The store forgets all changes up to now: watches that are behind begin anew."""
    MOVE = "move"
    """What the broker leads moves to others that are in sync, and back after ``seconds``. At a
    request, what is under way to it on that connection arrives after that, as with STRAND."""
    SITE_POWER = "site-power"
    """All brokers' hosts lose power; ``how`` is the name of a Loss."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One entry of a plan."""

    kind: Kind
    at: float
    """Virtual seconds after the clients have started."""
    point: str = ""
    """Where it is injected, ``verb name``, each with ``*`` for anything; empty: at its time."""
    nth: int = 1
    """Which match of the point, from 1."""
    after: bool = False
    """Inject it right after what the point names, not before it."""
    seconds: float = 1.0
    how: str = ""
    host: int = 1
    """The number of the broker that it hits."""
    other: int = 0
    """The number of another broker."""

    def to_json(self) -> dict[str, object]:
        """A JSON object with what differs from the defaults."""
        plain = Fault(kind=self.kind, at=self.at)
        return {
            key: value
            for key, value in asdict(self).items()
            if key in {"kind", "at"} or value != getattr(plain, key)
        }

    @classmethod
    def from_json(cls, entry: dict[str, object]) -> Self:
        """Read ``to_json``. Raises ValueError or TypeError for anything else."""
        fields = {**entry, "kind": Kind(str(entry.get("kind")))}
        return cls(**fields)  # type: ignore[arg-type]  # unknown names raise TypeError

    def __str__(self) -> str:
        """One line for the report."""
        where = f" {'after' if self.after else 'before'} {self.point} #{self.nth}" * bool(
            self.point
        )
        return f"{self.at:6.2f} s {self.kind}{where} {self.how} ({self.seconds:.2f} s)"


Plan = tuple[Fault, ...]
Points: TypeAlias = Sequence[tuple[str, int]]
"""Patterns, and up to which match a fault may wait for."""

DATA = "*.log"
TRANSACTIONS = "__transaction_state-*"
VERSIONED = "__fencelog_*"
GROUPS = "__consumer_offsets-*"
POINTS: Points = (
    ("append *.log", 40),
    ("sync *.log", 40),
    (f"append {TRANSACTIONS}", 12),
    (f"sync {TRANSACTIONS}", 12),
    (f"append {VERSIONED}", 12),
    (f"sync {VERSIONED}", 12),
    (f"append {GROUPS}", 12),
    (f"sync {GROUPS}", 12),
    ("create *", 3),
    ("mkdir *", 3),
    ("rename *", 2),
    ("rename *.swap", 3),
    ("remove *", 2),
    ("remove *.log", 3),
    ("sync_directory *", 6),
    ("sync_directory ", 3),
    ("append *checkpoint*", 2),
    ("put *", 4),
    ("request InitProducerId", 2),
    ("request AddPartitionsToTxn", 6),
    ("request EndTxn", 6),
    ("request Produce", 20),
    ("answer InitProducerId", 2),
    ("answer AddPartitionsToTxn", 6),
    ("answer EndTxn", 6),
    ("answer Produce", 20),
    ("request JoinTransaction", 4),
    ("answer JoinTransaction", 4),
    ("request CommitTransaction", 3),
    ("answer CommitTransaction", 3),
    ("request JoinGroup", 3),
    ("answer JoinGroup", 3),
    ("request SyncGroup", 3),
    ("answer SyncGroup", 3),
    ("request TxnOffsetCommit", 6),
    ("answer TxnOffsetCommit", 6),
    ("answer OffsetFetch", 3),
)
NAMES: Points = (
    ("mkdir *", 3),
    ("sync_directory ", 2),
    ("create *", 4),
    ("rename *", 4),
    ("sync_directory *", 8),
)
"""Points at which a file name exists and is not synced yet."""
NAME_POINTS = frozenset(point for point, _ in NAMES)
NAMES_SHARE = 0.25
OWN_SHARE = 0.5
"""Of faults at a point, those at one of the workload's own, where it has any."""
STARTING: Points = (
    ("sync_directory ", 1),
    ("sync_directory *", 6),
    ("create *", 6),
    ("rename *", 6),
    ("remove *", 6),
    ("append *", 12),
    ("sync *", 12),
    ("put *", 3),
)
"""The points of a start, counted from its beginning."""
POINTED = (Kind.KILL, Kind.POWER, Kind.PAUSE, Kind.RESET, Kind.CUT)
"""Kinds that may be injected at a point."""
STRANDED: Points = (
    ("request EndTxn", 12),
    ("request TxnOffsetCommit", 8),
    ("request AddPartitionsToTxn", 12),
    ("request Produce", 20),
    ("request CommitTransaction", 4),
    ("request AbortTransaction", 4),
)
"""Requests whose late arrival is dangerous."""
WEIGHTS: Sequence[tuple[Kind, float]] = (
    (Kind.KILL, 5),
    (Kind.POWER, 5),
    (Kind.RESTART, 1),
    (Kind.PAUSE, 1.5),
    (Kind.CLIENT_KILL, 3),
    (Kind.CLIENT_PAUSE, 1.5),
    (Kind.CUT, 1.5),
    (Kind.DELAY, 0.7),
    (Kind.RESET, 2),
    (Kind.SWALLOW, 0.7),
    (Kind.STRAND, 1.5),
    (Kind.SYNC_FAILS, 0.7),
    (Kind.WRITE_FAILS, 0.5),
    (Kind.FULL, 0.5),
    (Kind.SKEW, 0.5),
    (Kind.SLOW_DISK, 1),
    (Kind.ROT, 0.7),
    (Kind.SIDE_ROT, 1),
    (Kind.LATE_MARKER, 0.7),
)
LONG_SHARE = 0.15
"""Of pauses and cuts, those that outlast the timeouts of transactions."""


def draw(
    random: Random, span_s: float, *, clients: int, losses: Sequence[Loss], own: Points = ()
) -> Plan:
    """A plan for a run whose clients act for ``span_s`` virtual seconds.

    ``losses``: what a power cut may do to what is not synced. ``own``: points of the workload.
    """
    style = random.random()
    if style < 0.04:
        return ()
    count = random.randint(1, 5)
    if style > 0.88:
        count = random.randint(6, 12)
    kinds = [kind for kind, _ in WEIGHTS]
    weights = [weight for _, weight in WEIGHTS]
    if style < 0.35:
        kinds = random.choices(kinds, weights)
        weights = [1.0]
    chosen = random.choices(kinds, weights, k=count)
    times = sorted(random.uniform(0.0, span_s) for _ in chosen)
    faults = []
    for kind, at in zip(chosen, times, strict=True):
        fault = draw_one(random, kind, round(at, 3), clients, losses, own)
        faults.append(fault)
        if kind in {Kind.KILL, Kind.POWER, Kind.RESTART} and random.random() < 0.4:
            faults += _into_the_start(random, fault, losses)
        elif kind is Kind.KILL and fault.point in NAME_POINTS and random.random() < 0.7:
            # The next start uses names that the killed one created; the power cut loses them.
            later = round(at + fault.seconds + random.uniform(0.1, 1.5), 3)
            how = _how(random, Kind.POWER, clients, losses)
            faults.append(Fault(kind=Kind.POWER, at=later, how=how))
        if kind is Kind.SLOW_DISK and random.random() < 0.5:
            # What waits for a sync is sent again, then comes the power cut.
            resent = round(at + random.uniform(0.0, 0.5), 3)
            faults.append(Fault(kind=Kind.RESET, at=resent, how="all"))
            later = round(resent + random.uniform(0.05, max(fault.seconds, 0.05)), 3)
            how = _how(random, Kind.POWER, clients, losses)
            faults.append(Fault(kind=Kind.POWER, at=later, how=how))
    return tuple(sorted(faults, key=lambda each: each.at))


def losses_in(durability: str, *, may_lose: bool) -> Sequence[Loss]:
    """What a power cut may do in a durability mode.

    ``os`` mode promises nothing there of what is not synced: only a workload that ``may_lose`` it
    tries that.
    """
    if durability == "fsync":
        return (Loss.ALL, Loss.NONE, Loss.TORN, Loss.HOLES)
    return tuple(Loss) if may_lose else (Loss.NONE,)


def draw_one(
    random: Random,
    kind: Kind,
    at: float,
    clients: int,
    losses: Sequence[Loss],
    own: Points = (),
) -> Fault:
    """A fault of this kind, at a time or at a point."""
    seconds = round(random.uniform(0.05, 1.5), 3)
    if kind in {Kind.PAUSE, Kind.CLIENT_PAUSE, Kind.CUT} and random.random() < LONG_SHARE:
        seconds = round(random.uniform(3.0, 12.0), 3)
    point, nth, after = "", 1, False
    if kind in POINTED and random.random() < 0.6:
        points = NAMES if random.random() < NAMES_SHARE else POINTS
        if own and random.random() < OWN_SHARE:
            points = own
        point, most = random.choice(points)
        nth = 1 + int(most * random.random() ** 2)
        after = random.random() < 0.5
    if kind is Kind.STRAND:
        point, most = random.choice(STRANDED)
        nth = random.randint(1, most)
    return Fault(
        kind=kind,
        at=at,
        point=point,
        nth=nth,
        after=after,
        seconds=seconds,
        how=_how(random, kind, clients, losses),
    )


def _how(random: Random, kind: Kind, clients: int, losses: Sequence[Loss]) -> str:
    match kind:
        case Kind.POWER:
            choices = [each.name for each in losses]
        case Kind.SYNC_FAILS | Kind.WRITE_FAILS | Kind.FULL:
            choices = ["", *(each.name for each in losses)]
        case Kind.CLIENT_KILL | Kind.CLIENT_PAUSE:
            choices = [str(number) for number in range(clients)]
        case Kind.CUT:
            choices = ["in", "out", "both"]
        case Kind.RESET:
            choices = ["all", "one"]
        case Kind.SIDE_ROT:
            choices = ["stopped", "stopped", "killed"]
        case Kind.SKEW:
            choices = ["-3600000", "-5000", "5000", "3600000"]
        case _:
            return ""
    return random.choice(choices)


def _into_the_start(random: Random, stroke: Fault, losses: Sequence[Loss]) -> list[Fault]:
    """A fault during the recovery from an earlier fault, and the one after it."""
    style = random.random()
    if style < 0.3:
        at = round(stroke.at + stroke.seconds + random.uniform(0.0, 0.1), 3)
        kind = Kind.POWER if random.random() < 0.6 else Kind.KILL
        return [Fault(kind=kind, at=at, how=_how(random, kind, 1, losses), seconds=0.1)]
    # Armed while the broker is down, so that it comes in the start.
    at = round(stroke.at + random.uniform(0.0, stroke.seconds), 3)
    if style < 0.6:
        kind = random.choice((Kind.SYNC_FAILS, Kind.WRITE_FAILS, Kind.FULL))
        how = _how(random, kind, 1, losses)
        return [Fault(kind=kind, at=at, how=how, seconds=round(random.uniform(0.5, 2.0), 3))]
    point, most = random.choice(STARTING)
    first = Fault(
        kind=Kind.KILL,
        at=at,
        point=point,
        nth=random.randint(1, most),
        after=random.random() < 0.5,
        seconds=round(random.uniform(0.05, 0.5), 3),
    )
    later = round(at + stroke.seconds + random.uniform(0.5, 2.0), 3)
    how = _how(random, Kind.POWER, 1, losses)
    return [first, Fault(kind=Kind.POWER, at=later, how=how)]
