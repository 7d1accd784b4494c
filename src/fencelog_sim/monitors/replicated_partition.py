"""What the monitor of replication knows of one partition."""

from dataclasses import dataclass, field

from fencelog.coordination.controller.model import PartitionState
from fencelog.types import TopicPartition
from fencelog_sim.monitors.replica_logs import StoredBatch


@dataclass(eq=False)
class ReplicatedPartition:
    """One partition of one topic id."""

    name: TopicPartition
    is_compacted: bool
    """Batches may be missing or others: they are not compared."""
    is_unnamed: bool
    """A deleted topic had its name, and files are named after topics: its own are not known."""
    min_isr: int
    state: PartitionState | None = None
    committed: list[StoredBatch] = field(default_factory=list)
    leaders: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Node and life of each leader epoch."""
    seen: dict[tuple[int, int], int] = field(default_factory=dict)
    """CRC of each batch that was ever written, by base offset and leader epoch."""
    begun_at: int = 0
    """The end of what was committed when the leader epoch began."""
    compared: dict[int, int] = field(default_factory=dict)
    """Up to which offset each replica was found to have what is committed."""
    is_removed: bool = False
    """The metadata say that its replicas have no files, or will have none."""
    forgetful: set[int] = field(default_factory=set)
    """Replicas that lost power in ``os`` mode; they leave both sets before they take part again."""

    @property
    def end(self) -> int:
        """The end of what is committed."""
        return self.committed[-1].next_offset if self.committed else 0
