"""Compacts logs with ``cleanup.policy=compact``: one at a time, the dirtiest one first.

It runs in the background, a few milliseconds at a time. A damaged log is not compacted again before
it is opened anew; on a full disk no log is compacted until there is space.
"""

import asyncio
import logging
from contextlib import suppress

from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import CorruptionError, StorageError, WireError
from fencelog.log.compaction_round import CompactionNeed
from fencelog.ports import WallClock
from fencelog.storage.compaction import CompactionStoppedError

log = logging.getLogger(__name__)


class LogCleaner:
    """The only caller of compaction."""

    def __init__(self, logs: LogManager, clock: WallClock, interval_s: float) -> None:
        """``interval_s``: time between two checks for logs that are due."""
        self._logs = logs
        self._clock = clock
        self._interval_s = interval_s
        self._stopping = asyncio.Event()
        self._lock = asyncio.Lock()
        self._uncleanable: set[Partition] = set()

    async def run(self) -> None:
        """Compact until ``stop``."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._stopping.wait()
            await self.clean_all()

    def stop(self) -> None:
        """Let ``run`` end, at once or after the file swap in progress."""
        self._stopping.set()

    async def clean_all(self) -> None:
        """Run each compaction round that is due now, once."""
        async with self._lock:
            await self._clean_all()

    async def _clean_all(self) -> None:
        partitions = self._logs.partitions()
        self._uncleanable.intersection_update(partitions)
        needs = [(self._need_of(partition), partition) for partition in partitions]
        due = [(need.dirty_ratio, partition) for need, partition in needs if need is not None]
        for _, partition in sorted(due, key=lambda each: (-each[0], each[1].name)):
            if self._stopping.is_set():
                return
            need = self._need_of(partition)
            if need is not None:
                await self._clean(partition, need)

    def _need_of(self, partition: Partition) -> CompactionNeed | None:
        """Return what there is to compact of a partition; None if nothing is due."""
        policy = partition.log.config.cleanup_policy
        if (
            "compact" not in policy
            or partition.failure is not None
            or partition in self._uncleanable
        ):
            return None
        first_dirty = self._logs.first_dirty(partition)
        need = partition.compaction_need(first_dirty, self._clock.now_ms())
        return need if need.is_due else None

    async def _clean(self, partition: Partition, need: CompactionNeed) -> None:
        try:
            saved = await self._round(partition, need)
        except CompactionStoppedError as reason:
            log.info("%s: compaction stopped, to be retried: %s", partition.name, reason)
        except (CorruptionError, WireError) as error:
            self._uncleanable.add(partition)
            log.error("%s: no compaction until it is opened anew: %s", partition.name, error)  # noqa: TRY400
            if isinstance(error, CorruptionError):  # malformed records are the same in each replica
                partition.tell(error)
        except StorageError as error:
            if not partition.fail_with_store(error) and partition.failure is None:
                log.error("%s: compaction failed, to be retried: %s", partition.name, error)  # noqa: TRY400
        else:
            log.info("%s: compaction saved %d bytes", partition.name, saved)

    async def _round(self, partition: Partition, need: CompactionNeed) -> int:
        first_dirty = self._logs.first_dirty(partition)
        due = partition.log.compaction(first_dirty, need.end, self._clock.now_ms())
        due.keeps_deletions = not self._logs.is_everywhere(partition.name)
        compaction = partition.compaction(
            due, lambda: not self._stopping.is_set() and partition.failure is None
        )
        end = await compaction.map()
        await self._logs.checkpoint_cleaner(partition, first_dirty)
        try:
            saved = await compaction.clean()
        finally:
            partition.compacted()
        await self._logs.checkpoint_cleaner(partition, end)
        return saved
