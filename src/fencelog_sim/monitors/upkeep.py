"""Monitors of what the broker does by itself: syncs, flushes, timers and retention.

A mistake there shows to no client for a long time: a recovery point ahead of the disk until a power
cut, a lost timer or dirty mark until the next request happens to repair it, a segment that went too
early until somebody reads it. These monitors compare the broker's own notes with the disk, the
clock and the settings. They only observe.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Any

from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.partitions.log_flusher import LogFlusher
from fencelog.broker.partitions.partition import Partition
from fencelog.log.config import LogConfig
from fencelog.types import Offset
from fencelog_sim.monitors.compacted import Batch
from fencelog_sim.monitors.observed_log import LogOracle
from fencelog_sim.world.disk import SimDisk
from fencelog_sim.world.disk_image import Directory, Inode

TIMER_GRACE_S = 0.01
"""How long a shard may have a deadline and no timer: a load sets it one step later."""
LOOKS_GRACE = 3
"""How often it may be seen so: the process may have been paused before that step."""


class RecoveryPoint:
    """Compares one partition's recovery point with what its disk has on stable storage (D2)."""

    def __init__(self) -> None:
        """Nothing is known to be synced."""
        self._seen = 0

    def problem(self, disk: SimDisk, log: LogOracle, recovery_point: Offset) -> str | None:
        """What lies below the recovery point and could be lost; looks at what is new below it."""
        if recovery_point == self._seen:
            return None
        first, self._seen = self._seen, recovery_point
        newest_first = takewhile(
            lambda each: each.header.base_offset >= first, reversed(log.batches)
        )
        new = [each for each in newest_first if each.header.base_offset < recovery_point]
        for segment, batches in groupby(reversed(new), key=lambda each: each.segment):
            begin, end = _span(list(batches))
            problem = _unsynced(disk.image.root, log.path_of(segment), begin, end)
            if problem is not None:
                return f"the recovery point is {recovery_point}, but {problem} (D2)"
        return None


def _span(batches: Sequence[Batch]) -> tuple[int, int]:
    last = batches[-1]
    return batches[0].position, last.position + last.header.size


def _unsynced(root: Directory, path: str, begin: int, end: int) -> str | None:
    """Why the bytes of a file could be lost with the power, if they could."""
    directory_name, _, name = path.partition("/")
    directory = root.names.get(directory_name)
    file = directory.names.get(name) if isinstance(directory, Directory) else None
    if not isinstance(directory, Directory) or not isinstance(file, Inode):
        return None  # deleted meanwhile
    end = min(end, len(file.data))  # compaction: the new file is smaller, and synced as a whole
    if file.synced < end:
        return f"only {file.synced} of {end} bytes of {path} are synced"
    if any(start < end and begin < stop for start, stop in file.doubtful):
        return f"a sync of {path} has failed"
    if name not in directory.stable or directory_name not in root.stable:
        return f"the name of {path} is not synced"
    return None


def forgotten(flusher: LogFlusher, partition: Partition) -> str | None:
    """Why what was appended would never be flushed, if so; call it between two steps."""
    log = partition.log
    if partition.failure is not None or log._unflushed.durable.end_offset >= log.log_end_offset:
        return None
    if partition._stalled_by is not None:
        return None  # no room: it enqueues itself again after a time
    is_known = partition in flusher._dirty or partition in flusher._busy
    if is_known or flusher._writing or flusher._ended:
        return None
    return f"offsets up to {log.log_end_offset} are neither flushed nor queued for the flusher"


class Timers:
    """Looks whether each shard that waits for a deadline has a timer for it (E12)."""

    def __init__(self) -> None:
        """No shard is without its timer."""
        self._since: dict[int, tuple[float, int]] = {}
        """Since when a shard is without its timer, and how often that was seen."""

    def problem(
        self, runtime: CoordinatorRuntime[Any], loaded: Loaded[Any], now: float
    ) -> str | None:
        """What is wrong with a shard's timer."""
        deadline = loaded.shard.next_deadline()
        due = loaded.timer.due
        if deadline is None or runtime._stopped or loaded.dropped:
            self._since.pop(id(loaded), None)
            return None
        if due is not None and due <= deadline:
            self._since.pop(id(loaded), None)
            return None
        since, looks = self._since.get(id(loaded), (now, 0))
        self._since[id(loaded)] = since, looks + 1
        if now - since < TIMER_GRACE_S or looks < LOOKS_GRACE:
            return None
        self._since[id(loaded)] = float("inf"), 0  # reported once
        what = "is not set" if due is None else f"is set to {due:.3f} s"
        return f"the shard has a deadline at {deadline:.3f} s, and its timer {what} (E12)"


class Retention:
    """What one partition's log start may pass without a client's request (D4)."""

    def __init__(self) -> None:
        """No settings and no requests so far."""
        self._configs: list[LogConfig] = []
        self.asked = 0
        """The highest offset below which a client has asked to delete records."""

    def seen(self, config: LogConfig) -> None:
        """These settings are in force; a round that began under earlier ones may still end."""
        if not self._configs or self._configs[-1] is not config:
            self._configs = [*self._configs[-1:], config]

    def problems(self, log: LogOracle, start: int, now_ms: int, left_bytes: int) -> Iterator[str]:
        """Yield what retention has removed too early.

        ``start`` is the new log start, ``left_bytes`` the size of the log from there on,
        ``now_ms`` the highest time that the broker's clock has shown.
        """
        if start <= self.asked:
            return
        gone = [each for each in log.batches if log.log_start <= each.header.base_offset < start]
        files = [(base, list(them)) for base, them in groupby(gone, key=lambda each: each.segment)]
        for base, batches in reversed(files):
            allowing = (_may_go(each, batches, now_ms, left_bytes) for each in self._configs)
            if not any(allowing):
                yield (
                    f"retention took the segment at {base} (log start {start}), with "
                    f"{left_bytes} bytes left, its newest record {_age_ms(batches, now_ms)} ms old "
                    "(D4)"
                )
            left_bytes += sum(each.header.size for each in batches)


def _may_go(config: LogConfig, batches: Sequence[Batch], now_ms: int, left_bytes: int) -> bool:
    if "delete" not in config.cleanup_policy:
        return False
    # Compaction may have made the rest smaller since retention has measured it.
    is_shrinking = "compact" in config.cleanup_policy
    is_surplus = config.retention_bytes >= 0 and (
        is_shrinking or config.retention_bytes <= left_bytes
    )
    return is_surplus or 0 <= config.retention_ms < _age_ms(batches, now_ms)


def _age_ms(batches: Sequence[Batch], now_ms: int) -> int:
    """How old the newest record is; a batch without records tells nothing of age."""
    with_records = [each.header for each in batches if each.header.record_count > 0]
    if not with_records:
        return now_ms
    return now_ms - max(header.max_timestamp for header in with_records)
