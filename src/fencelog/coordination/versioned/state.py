"""What is known of one app and of one producer in its transaction."""

from dataclasses import dataclass, replace
from enum import IntEnum

from fencelog.types import ProducerEpoch, ProducerId, TimestampMs, TopicPartition

NO_VERSION = -1
"""Nothing committed yet, or nothing open."""


class Phase(IntEnum):
    """Where the transaction of an app stands; the numbers are those of the log."""

    IDLE = 0
    OPEN = 1
    COMMITTING = 2
    ABORTING = 3

    @property
    def is_ending(self) -> bool:
        """Whether it is decided and markers are still to be written."""
        return self in (Phase.COMMITTING, Phase.ABORTING)


# What is not in the table cannot happen. OPEN follows itself at a renewal, an ending phase when
# some of its markers are in or another run takes the app, IDLE when nobody wrote anything.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.IDLE, Phase.OPEN}),
    Phase.OPEN: frozenset(Phase),
    Phase.COMMITTING: frozenset({Phase.COMMITTING, Phase.IDLE}),
    Phase.ABORTING: frozenset({Phase.ABORTING, Phase.IDLE}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who asks, and about which version.

    A batch write has no streaming query: its ``query_id`` is empty, and its app, a name made for
    this one write, is forgotten after a while.
    """

    app: str
    query_id: str
    run_id: str
    version: int
    takeover: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class App:
    """What the log says of one app, its runs and producers apart."""

    app: str
    query_id: str
    run_id: str
    """The driver: the newest run (rule V2)."""
    last_version: int
    fingerprint: bytes
    """Of the last version; what tells Spark's replay from another history (rule V3)."""
    incarnation: int
    """Number of the open or latest transaction; grows whenever one is opened (rule V1)."""
    phase: Phase
    version: int
    """Of the open or ending transaction."""
    timeout_ms: int
    committing: frozenset[ProducerId]
    """The producers that the decision named."""
    written: frozenset[TopicPartition]
    """Where the markers of the ending transaction are in."""
    updated_ms: TimestampMs

    @property
    def is_ephemeral(self) -> bool:
        """Whether it is a batch write, to be forgotten (rule V4)."""
        return not self.query_id

    def moved(self, phase: Phase) -> "App":
        """This app in its next phase; the table has to allow the step."""
        assert phase in TRANSITIONS[self.phase], (self.phase, phase)
        return replace(self, phase=phase)

    def closed(self) -> "App":
        """This app with no transaction."""
        return replace(
            self.moved(Phase.IDLE),
            version=NO_VERSION,
            committing=frozenset(),
            written=frozenset(),
        )


def unwritten(caller: Caller, wall_ms: TimestampMs) -> App:
    """The app of a caller that is the first to name it."""
    return App(
        app=caller.app,
        query_id=caller.query_id,
        run_id=caller.run_id,
        last_version=NO_VERSION,
        fingerprint=b"",
        incarnation=0,
        phase=Phase.IDLE,
        version=NO_VERSION,
        timeout_ms=0,
        committing=frozenset(),
        written=frozenset(),
        updated_ms=wall_ms,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """One attempt's producer: where it may write, and in which incarnation."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    app: str
    incarnation: int
    partitions: frozenset[TopicPartition]
