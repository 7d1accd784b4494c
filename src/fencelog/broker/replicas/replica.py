"""What a broker has done about one partition, and what is left to do."""

from dataclasses import dataclass, field
from typing import NamedTuple

from fencelog.broker.partitions.partition import Partition
from fencelog.broker.replicas.repair import Repair
from fencelog.types import LeaderEpoch, Offset, TopicPartition


class Work(NamedTuple):
    """What has to be done with a replica's files before it follows on."""

    leader_epoch: LeaderEpoch
    fork: Offset | None
    """Where to cut; None: begin anew with the leader's snapshot."""


@dataclass(slots=True)
class Replica:
    """A replica of this broker."""

    name: TopicPartition
    partition: Partition | None = None
    """None until it is open, and where it cannot be opened."""
    leader_epoch: LeaderEpoch = LeaderEpoch(-1)  # noqa: RUF009 - a number
    """The epoch whose state is in force here."""
    work: Work | None = None
    is_offline: bool = False
    """Its files have failed, or contradict the leader's."""
    is_refused: bool = False
    """It contradicts the leader's: nothing but an operator helps."""
    repair: Repair = field(default_factory=Repair)
    is_busy: bool = False
    """Whether a task opens, cuts or removes its files."""

    @property
    def has_files(self) -> bool:
        """Whether it is open, and not the seal of a segment without files."""
        return self.partition is not None and self.partition.log.has_files

    def close(self) -> None:
        """Nothing that the files report counts any more."""
        if self.partition is not None:
            self.partition.failed.clear()
        self.partition = None
