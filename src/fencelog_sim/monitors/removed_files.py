"""Segments whose files are removed: nobody may need them, and their offsets stay (R1, F8)."""

from collections.abc import Callable

from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.streams.model import StreamSegment
from fencelog.types import TopicPartition
from fencelog_sim.monitors.observed_log import LogOracle


class RemovedFiles:
    """Compares what the metadata give up with what a broker's log has, and what it has later."""

    def __init__(
        self,
        logs: Callable[[], LogManager | None],
        oracle: Callable[[TopicPartition], LogOracle | None],
    ) -> None:
        """``logs``: of the broker that runs; ``oracle``: what was seen of a partition's files."""
        self._logs = logs
        self._oracle = oracle

    def problem(self, name: TopicPartition, segment: StreamSegment) -> str | None:
        """Return why the files of a segment may not go, as the metadata say from now on."""
        oracle, removed = self._oracle(name), segment.removed
        if oracle is None or removed is None:
            return "it has no log"
        oracle.removed = removed
        logs = self._logs()
        if logs is None:  # the broker was killed while this was on its way
            high_watermark, producers, owners = oracle.promised, [], []
        else:
            log = logs.find(name).log
            high_watermark, producers = log.high_watermark, [*map(int, log._state.producers)]
            owners = [each.owner.holder for each in log._state.owners if each.owner.is_live]
        epoch = oracle.leader_epoch
        for what, is_so in (
            (f"its log begins at {oracle.log_start}", oracle.log_start != segment.end),
            (f"its log ends at {oracle.end}", oracle.end != removed.offset),
            (f"it is committed up to {high_watermark}", high_watermark != removed.offset),
            (f"the epoch of its last batch is {epoch}", epoch != removed.leader_epoch),
            (f"transactions {list(oracle.ledger.open)} are open", bool(oracle.ledger.open)),
            (f"producers {producers} are known", bool(producers)),
            (f"{owners} own it", bool(owners)),
        ):
            if is_so:
                return what
        return None

    def opened(self, partition: Partition) -> str | None:
        """Return what is wrong with a partition that a broker has just opened."""
        oracle, log = self._oracle(partition.name), partition.log
        removed = None if oracle is None else oracle.removed
        if removed is None:
            return None if log.has_files else "it has no files, and the metadata do not say so (R1)"
        if log.has_files:
            return "it has files, and the metadata say that it has none (R1)"
        end = (log.log_end_offset, log.high_watermark)
        if end != (removed.offset, removed.offset):
            return f"the log end and HW are {end} without files, and were {removed.offset} (F8)"
        return None
