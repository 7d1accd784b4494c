"""What the log oracle knows of one log."""

from collections.abc import Sequence

from fencelog.broker.metadata.catalog import INTERNAL_TOPICS
from fencelog.coordination.streams.model import LogEnd
from fencelog.log import layout
from fencelog.types import TopicId, TopicPartition
from fencelog_sim.monitors.compacted import Batch, Swap
from fencelog_sim.monitors.ledger import Ledger


class LogOracle:
    """All that was appended to one partition and is still there."""

    def __init__(self, name: TopicPartition, topic_id: TopicId | None) -> None:
        """An empty log."""
        self.name = name
        self.topic_id = topic_id
        self.batches: list[Batch] = []
        self.ledger = Ledger()
        self.end = 0
        self.leader_epoch = -1
        self.segment = 0
        """Base offset of the file that grows."""
        self.size = 0
        """Its bytes, of whole batches."""
        self.promised = 0
        """Where the high watermark was at the last crash: what must be found again (D1)."""
        self.synced = 0
        """Below this even the loss of a host's power takes nothing, in every mode."""
        self.log_start = 0
        self.stale = False
        """A crash came after all this was seen; what survived was not looked at yet."""
        self.apart: tuple[int, str] | None = None
        """A marker that came without those that belong to it, unless its append failed (V6)."""
        self.rebuilt = 0
        """How often batches were taken back: what was derived from them has to be made anew."""
        self.removed: LogEnd | None = None
        """Where it ended when the metadata gave its files up."""
        self.swaps: list[Swap] = []
        """What compaction has done since the last crash, which may take it back."""
        self.compacted = False
        """Whether it ever did anything here."""
        self.knows_less = False
        """The broker continued from a checkpoint and lost what followed it: of batches that
        compaction removed it knows more than what is left of the log says."""
        self.memory = 0
        """Base offset of the first file that the broker's state tells of, deleted or not."""
        self.memories = {0}
        """Each that a start had: what it stored may be what a later start loads."""
        self.forgotten: list[Batch] = []
        """Those of deleted files below ``memory``."""

    @property
    def is_internal(self) -> bool:
        """Whether a coordinator's records are in it."""
        return self.name.topic in INTERNAL_TOPICS

    def path_of(self, segment: int) -> str:
        """The file of a segment."""
        return f"{layout.directory_name(self.name)}/{layout.file_name(segment, layout.LOG)}"

    def put(self, batches: Sequence[Batch], base: int, end: int) -> None:
        """Let these be the batches of the files from ``base`` to ``end``."""
        before = [each for each in self.batches if each.segment < base]
        after = [each for each in self.batches if each.segment >= end]
        self.batches = [*before, *batches, *after]
        self.rebuilt += 1
