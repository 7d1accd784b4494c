"""A coordinator shard in service (E16)."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from fencelog.broker.partitions.partition import Partition
from fencelog.broker.timer import Timer
from fencelog.coordination.shard import Shard
from fencelog.errors import NotCoordinatorError, NotLeaderError

S = TypeVar("S", bound=Shard)


@dataclass(slots=True, eq=False)
class Loaded(Generic[S]):
    """A shard in service and the partition that holds its records."""

    index: int
    shard: S
    partition: Partition
    timer: Timer
    """Set for the shard's next deadline: without it a dead producer's transaction stays open."""
    dropped: bool = False
    """Whether its log may have records that it does not know: nothing is decided by it any more."""
    moved: bool = False
    """Whether it was dropped because another broker leads the partition."""

    def gone(self) -> NotLeaderError:
        """Return the error of a request that the shard does not answer any more."""
        kind = NotCoordinatorError if self.moved else NotLeaderError
        return kind(f"{self.partition.name} was unloaded")

    def in_service(self) -> S:
        """Return the shard. Raises NotLeaderError if it was unloaded, perhaps during an await.

        Its log may have accepted records again since, and another shard been loaded from it.
        """
        if self.dropped:
            raise self.gone()
        return self.shard
