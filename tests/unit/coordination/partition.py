"""A data partition as the laws of coordinators need it: open data, markers, guards."""

from dataclasses import dataclass, field


@dataclass
class Write:
    """One batch of a transaction, and how it ended: None while it is open."""

    producer_id: int
    epoch: int
    instance: object
    outcome: bool | None = None


@dataclass
class Partition:
    """What its leader knows. Guards live in memory, so a crash makes every old one invalid."""

    writes: list[Write] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    boots: int = 0

    def guard(self, producer_id: int) -> tuple[int, int]:
        """Taken before a verification; any marker of that producer, or a crash, invalidates it."""
        return self.boots, self.marks.get(producer_id, 0)

    def open_instance(self, producer_id: int, epoch: int) -> object | None:
        """The transaction that this producer has open here."""
        for write in self.writes:
            if (write.producer_id, write.epoch, write.outcome) == (producer_id, epoch, None):
                return write.instance
        return None

    def append(self, producer_id: int, epoch: int, instance: object) -> bool:
        """Append a batch; a lower epoch than the newest one is fenced (E2)."""
        if epoch < self.epochs.get(producer_id, -1):
            return False
        self.epochs[producer_id] = epoch
        self.writes.append(Write(producer_id, epoch, instance))
        return True

    def mark(self, producer_id: int, epoch: int, commit: bool) -> None:
        """A marker: what is open of this producer is decided. Repeated it does no harm."""
        assert epoch >= self.epochs.get(producer_id, -1), "a marker is never older than the data"
        self.epochs[producer_id] = epoch
        self.marks[producer_id] = self.marks.get(producer_id, 0) + 1
        for write in self.writes:
            if write.producer_id == producer_id and write.outcome is None:
                write.outcome = commit
