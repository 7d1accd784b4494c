"""Raises the log start offsets of many partitions, for retention and DeleteRecords (D4)."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode, StorageError
from fencelog.log.values import Rejected
from fencelog.storage.directory import DataDirectory
from fencelog.types import Offset

TO_HIGH_WATERMARK = -1
"""DeleteRecords offset that stands for the high watermark."""
COPIES_WAIT_S = 5.0
"""For the commit of ownership records: while too few replicas are in sync, nothing is committed."""

Work = Coroutine[None, None, dict[Partition, Exception]]


class LogStarts:
    """Raises log starts, many in one step or one in a task of its own."""

    def __init__(
        self, directory: Callable[[], DataDirectory], is_open: Callable[[Partition], bool]
    ) -> None:
        """``directory``: where they are stored. ``is_open``: a partition was not deleted."""
        self._directory, self._is_open = directory, is_open
        self._leaders: dict[Partition, Offset] = {}
        """Where the leaders' logs begin, of followers that are being brought there."""
        self._tasks: set[asyncio.Task[dict[Partition, Exception]]] = set()

    async def ended(self) -> None:
        """Wait for all that is under way: a cancelled sync counts as failed (D2)."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def delete(self, starts: Mapping[Partition, Offset]) -> dict[Partition, Exception]:
        """Raise these log starts, also if the caller is cancelled meanwhile."""
        return await asyncio.shield(self._start(self.advance(starts)))

    def follow(self, partition: Partition, offset: Offset) -> None:
        """Raise a follower's log start to its leader's, as far as it is committed here (D4)."""
        is_under_way = partition in self._leaders
        if is_under_way or self._start_of(partition, offset) > partition.log.log_start_offset:
            self._leaders[partition] = offset
            if not is_under_way:
                self._start(self._follow(partition))

    def advance(self, starts: Mapping[Partition, Offset]) -> Work:
        """Raise these log starts, see ``advance_starts``."""
        return advance_starts(self._directory(), starts, self._is_open)

    # -- inside --------------------------------------------------------------------------------

    def _start(self, work: Work) -> "asyncio.Task[dict[Partition, Exception]]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[dict[Partition, Exception]]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller gets it, unless it was cancelled

    async def _follow(self, partition: Partition) -> dict[Partition, Exception]:
        failed: dict[Partition, Exception] = {}
        try:
            # The leader's may be higher by now, and nobody says it twice.
            while self._is_open(partition) and not failed:
                start = self._start_of(partition, self._leaders[partition])
                if start <= partition.log.log_start_offset:
                    break
                failed = await self.advance({partition: start})
        finally:
            del self._leaders[partition]
        return failed

    @staticmethod
    def _start_of(partition: Partition, leaders: Offset) -> Offset:
        return min(leaders, partition.log.start_limit)


async def advance_starts(
    directory: DataDirectory,
    starts: Mapping[Partition, Offset],
    is_open: Callable[[Partition], bool],
) -> dict[Partition, Exception]:
    """Raise log starts: stored first, visible to readers after, so that they never go back.

    Each log is synced up to its new start before, or a power cut could leave its end below its
    start. Ownership records below the start are copied, and the copies synced, before. Returns the
    partitions that failed: with TimeoutError where the copies are not committed in time,
    NotLeaderError where another broker leads since. Raises StorageError if none could be stored.
    """
    failed: dict[Partition, Exception] = {}
    later = {each: start for each, start in starts.items() if start > each.log.log_start_offset}
    # A follower gets the copies from its leader.
    kept = {each: each.keep_owners(start) if each.leads else start for each, start in later.items()}
    not_committed = await _not_committed(
        {
            each: end
            for each, end in kept.items()
            if not isinstance(end, Rejected) and end > later[each]
        }
    )
    for partition, end in kept.items():
        problem = not_committed.get(partition) or await _keep(partition, later[partition], end)
        if problem is not None:
            del later[partition]
            if is_open(partition):  # else it was deleted meanwhile
                failed[partition] = problem
    ready: dict[Partition, Offset] = {}
    for partition, start in later.items():
        if partition.failure is None:
            ready[partition] = start
        elif is_open(partition):
            failed[partition] = StorageError(f"{partition.name} has failed: {partition.failure}")
    if ready:
        await directory.checkpoint({}, {each.name: start for each, start in ready.items()})
    for partition, start in ready.items():
        if is_open(partition) and (problem := await _advance(partition, start)):
            failed[partition] = problem
    return failed


def starts_of(
    targets: Mapping[Partition, Offset],
) -> tuple[dict[Partition, Offset], dict[Partition, ErrorCode]]:
    """Return the log starts that DeleteRecords asks for, and an error code for each target."""
    starts: dict[Partition, Offset] = {}
    errors = dict.fromkeys(targets, ErrorCode.NONE)
    for partition, offset in targets.items():
        limit = partition.log.start_limit
        if TO_HIGH_WATERMARK <= offset <= partition.log.high_watermark:
            starts[partition] = limit if offset == TO_HIGH_WATERMARK else min(offset, limit)
        else:
            errors[partition] = ErrorCode.OFFSET_OUT_OF_RANGE
    return starts, errors


async def _not_committed(copies: Mapping[Partition, Offset]) -> dict[Partition, Exception]:
    """Wait for the commit of copies up to these offsets, of all partitions at once.

    Returns why some are not committed. Without them the log would begin above an ownership record.
    """
    loop = asyncio.get_running_loop()
    waits = {each: loop.create_task(each.committed(end)) for each, end in copies.items()}
    if waits:
        await asyncio.wait(waits.values(), timeout=COPIES_WAIT_S)
    failed: dict[Partition, Exception] = {}
    for partition, task in waits.items():
        if not task.done():
            task.cancel()
            failed[partition] = TimeoutError(
                f"its ownership records up to offset {copies[partition]} are not committed after "
                f"{COPIES_WAIT_S:g} s: too few replicas are in sync"
            )
        elif isinstance(error := task.exception(), Exception):
            failed[partition] = error
    return failed


async def _keep(partition: Partition, start: Offset, end: Offset | Rejected) -> StorageError | None:
    """Make durable what a log keeps of its owners, and all below its new start."""
    if isinstance(end, Rejected):
        return StorageError(end.message)
    try:
        if partition.recovery_point < max(start, end):
            await partition.sync()
    except StorageError as error:
        return error
    return None


async def _advance(partition: Partition, start: Offset) -> StorageError | None:
    gone = partition.advance_start(start)
    if isinstance(gone, list) and gone:
        try:
            await partition.files.delete_segments_below(start)
        except StorageError as error:
            return error
    return None
