"""One replica of the model, what travels between replicas, and what a model may do wrong."""

from dataclasses import dataclass, field
from typing import NamedTuple

from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.log.leader_epochs import NO_EPOCH, LeaderEpochs
from fencelog.log.values import EpochStart
from fencelog.replication.follower import PartitionAnswer
from fencelog.replication.leader import LeaderProgress
from fencelog.replication.session import Position
from fencelog.types import LeaderEpoch, NodeId, Offset

NODES = (NodeId(1), NodeId(2), NodeId(3))
LAG_S = 10.0
START = Offset(0)
"""Where every log begins: nothing is deleted."""
MIN_ISR = 2


class Entry(NamedTuple):
    """One record."""

    epoch: LeaderEpoch
    value: int


class Mistakes(NamedTuple):
    """What the shell around the rules does wrong, if anything; the rules themselves are patched."""

    acknowledges_written: bool = False
    truncates_to_high_watermark: bool = False
    never_truncates: bool = False
    ignores_epochs: bool = False
    proposal_counts_at_once: bool = False
    joins_with_any_registration: bool = False


class ViolationError(Exception):
    """Something that must always be true is not."""


@dataclass
class Replica:
    """One replica, and the life of its broker."""

    node: NodeId
    entries: list[Entry] = field(default_factory=list)
    durable: int = 0
    high_watermark: int = 0
    stored_high_watermark: int = 0
    incarnation: str | None = None
    """None while it is down."""
    lost_power: bool = False
    leader: NodeId = NO_LEADER
    epoch: LeaderEpoch = NO_EPOCH
    progress: LeaderProgress | None = None
    heard: dict[NodeId, str] = field(default_factory=dict)
    """The life in which each follower has said where it is."""
    proposal: "Proposal | None" = None
    is_offline: bool = False

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else -1

    def end_of_epoch(self, epoch: int) -> EpochStart | None:
        if not 0 <= epoch <= self.epoch:
            return None
        epochs = LeaderEpochs()
        for offset, entry in enumerate(self.entries):
            if entry.epoch > epochs.latest:
                epochs.begin(entry.epoch, Offset(offset))
        return epochs.end_of(epoch, Offset(len(self.entries)))

    def truncate(self, offset: int) -> None:
        del self.entries[offset:]
        self.durable = min(self.durable, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.stored_high_watermark = min(self.stored_high_watermark, offset)


class Request(NamedTuple):
    """A replica fetch on its way."""

    sender: NodeId
    incarnation: str
    leader: NodeId
    position: Position


class Answer(NamedTuple):
    """An answer on its way: to one life of the follower, as its connection is."""

    target: NodeId
    incarnation: str
    position: Position
    answer: PartitionAnswer
    entries: tuple[Entry, ...]


@dataclass
class Proposal:
    """A write of the ISR: it compares the versions, and is stored now or later."""

    state: PartitionState
    version: int
    registrations: dict[NodeId, int]
    is_known: bool = False
    """Whether it has reached the store."""
