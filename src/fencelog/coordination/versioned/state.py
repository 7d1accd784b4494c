"""One app and its transaction, and one producer in it: states, transitions, what is stored."""

from dataclasses import dataclass, replace
from enum import IntEnum

from fencelog.types import ProducerEpoch, ProducerId, TimestampMs, TopicPartition

NO_VERSION = -1
"""No version is committed yet, or none is open."""

NO_RUN = ""
"""No run drives the app: the last one has ended with an abort (rule V2)."""

NO_TIME = TimestampMs(-1)


class Phase(IntEnum):
    """The phase of an app's transaction; the numbers are those of the log."""

    IDLE = 0
    OPEN = 1
    COMMITTING = 2
    ABORTING = 3

    @property
    def is_ending(self) -> bool:
        """Whether it is decided and markers are outstanding."""
        return self in (Phase.COMMITTING, Phase.ABORTING)


# Transitions that are not in the table are bugs. OPEN follows itself at a renewal, an ending phase
# when some of its markers are written or another run takes over, IDLE when nobody wrote anything.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.IDLE, Phase.OPEN}),
    Phase.OPEN: frozenset(Phase),
    Phase.COMMITTING: frozenset({Phase.COMMITTING, Phase.IDLE}),
    Phase.ABORTING: frozenset({Phase.ABORTING, Phase.IDLE}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """App, run and version that a request is about.

    A batch write has no streaming query: its ``query_id`` is empty, and its app, which is named for
    this one write, is forgotten after ``EPHEMERAL_KEPT_S``.
    """

    app: str
    query_id: str
    run_id: str
    version: int
    takeover: bool = False
    allow_gaps: bool = False
    """Whether versions may be left out: a batch job writes only when there is something."""
    host: str = ""
    """Where the run's driver is; empty if it did not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One start of the query: its place among the app's runs, and what others are told of it."""

    ordinal: int
    since_ms: TimestampMs
    """When it came first; -1 if a release stored it that did not store the time."""
    host: str


@dataclass(frozen=True, kw_only=True, slots=True)
class App:
    """The stored state of one app; its runs and producers have records of their own."""

    app: str
    query_id: str
    run_id: str
    """The newest run, which drives the app (rule V2); or NO_RUN."""
    last_version: int
    fingerprint: bytes
    """Of the last version: it tells a replay by Spark from other content (rule V3)."""
    incarnation: int
    """Number of the open or latest transaction; each that is opened has the next (rule V1)."""
    phase: Phase
    version: int
    """Of the open or ending transaction."""
    timeout_ms: int
    committing: frozenset[ProducerId]
    """The producers that the commit named."""
    written: frozenset[TopicPartition]
    """The partitions where the markers of the ending transaction are written."""
    updated_ms: TimestampMs
    opened_ms: TimestampMs
    """When the open or ending transaction was opened; -1 if a release stored it that did not."""

    @property
    def is_ephemeral(self) -> bool:
        """Whether it belongs to a batch write, and is forgotten later (rule V4)."""
        return not self.query_id

    def moved(self, phase: Phase) -> "App":
        """This app in its next phase; the table has to allow the transition."""
        assert phase in TRANSITIONS[self.phase], (self.phase, phase)
        return replace(self, phase=phase)

    def closed(self) -> "App":
        """This app with no transaction."""
        return replace(
            self.moved(Phase.IDLE),
            version=NO_VERSION,
            committing=frozenset(),
            written=frozenset(),
            opened_ms=NO_TIME,
        )


def unwritten(caller: Caller, wall_ms: TimestampMs) -> App:
    """A new app, as its first caller names it; not stored yet."""
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
        opened_ms=NO_TIME,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The producer of one task attempt: its incarnation, and the partitions that it writes to."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    app: str
    incarnation: int
    partitions: frozenset[TopicPartition]
