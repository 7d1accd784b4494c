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
        logs, oracle, removed = self._logs(), self._oracle(name), segment.removed
        partition = None if logs is None else logs.get(*name)
        if partition is None or oracle is None or removed is None:
            return "nobody leads it"
        log = partition.log
        oracle.removed = removed
        live = [each.owner.holder for each in log._state.owners if each.owner.is_live]
        for what, is_so in (
            (f"its log begins at {log.log_start_offset}", log.log_start_offset != segment.end),
            (f"its log ends at {log.log_end_offset}", log.log_end_offset != removed.offset),
            (f"it is committed up to {log.high_watermark}", log.high_watermark != removed.offset),
            (f"the epoch of its last batch is {log.last_epoch}", log.last_epoch != removed[1]),
            (f"{oracle.end} is on disk", oracle.end != removed.offset),
            (f"transactions {list(oracle.ledger.open)} are open", bool(oracle.ledger.open)),
            (f"producers {list(log._state.producers)} are known", bool(log._state.producers)),
            (f"{live} own it", bool(live)),
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
