"""One life of a broker: a node in a thread with a loop of its own, from its start to its kill."""

import asyncio
import math
import shutil
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakSet

from fencelog.adapters.file_disk import FileDisk, FileDiskFile
from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.adapters.system_clock import SystemClock, SystemRandom
from fencelog.broker.config import BrokerConfig
from fencelog.broker.dispatch import Dispatcher
from fencelog.client.loop_thread import LoopThread
from fencelog.coordination.group.model import Leaver
from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.records import read_key
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.node import METADATA_FILE, Node, Ports
from fencelog.testing.door import Door, Held
from fencelog.types import Instant

T = TypeVar("T")
R = TypeVar("R")

SETTLE_TIMEOUT_S = 10.0
POLL_S = 0.001
END_TIMEOUT_S = 10.0


class _Disk(FileDisk):
    """A disk that can close what a dead broker left open, as the kernel does for a dead process.

    It syncs nothing: the page cache survives a kill, and a test is not to wait for its disk.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._files: WeakSet[FileDiskFile] = WeakSet()

    async def open(self, path: str, *, create: bool = False) -> FileDiskFile:
        """Open, and remember it."""
        file = await super().open(path, create=create)
        self._files.add(file)
        return file

    def submit(self, function: Callable[[T], R], argument: T) -> "asyncio.Future[R]":
        """Run what removes a tree; syncs are done already."""
        removes = function is shutil.rmtree
        if removes:
            return super().submit(function, argument)
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        done.set_result(cast(R, None))
        return done

    async def abandon(self) -> None:
        """Close every file; nothing is written or synced for it."""
        for file in list(self._files):
            await file.close()
        self.close()


class Life:
    """A running broker. All its tasks live in its own loop, so that all of them can be ended."""

    def __init__(self, config: BrokerConfig, holds: Sequence[Held]) -> None:
        """Start it. Raises CorruptionError or StorageError for an unusable directory."""
        self._config = config
        self._holds = holds
        self._open = AsyncExitStack()
        self._door: Door | None = None
        self._thread = LoopThread("fencelog-broker", _no_farewell)
        try:
            self.run(self._start())
        except BaseException:
            self.end()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the broker's loop and wait for it."""
        return self._thread.run(work)

    def end(self) -> None:
        """End it as ``kill -9`` does: whatever it was about to write, sync or answer, it does not.

        Raises what the broker had failed with before, if it had.
        """
        try:
            self.run(self._end())
        finally:
            self._thread.close()

    async def expire_transaction(self, transactional_id: str) -> bool:
        """End an open transaction as its timeout does (E12); False where none is open."""
        broker = self._node.broker
        wall_ms = broker.clock.now_ms()

        def rule(shard: TransactionShard, _now: Instant) -> Decision[bool]:
            every = shard.expire(Instant(math.inf), wall_ms).records
            late = tuple(each for each in every if read_key(each.key) == transactional_id)
            return Decision(late, bool(late))

        return await broker.transactions.decide(transactional_id, rule)

    async def expire_members(self, group: str, member_ids: Sequence[str]) -> None:
        """Take members out of their group, as the end of a session does; the others rebalance."""
        leavers = tuple(Leaver(each) for each in member_ids)
        await self._node.broker.group_requests.leave(group, leavers)

    async def settled(self) -> None:
        """Return once every decided transaction is complete: its readers can see how it ended."""
        broker = self._node.broker
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            for runtime in (broker.transactions, broker.versioned):
                for loaded in runtime.loaded():
                    # Beyond the high watermark, too: such a decision is about to be committed.
                    log = loaded.partition.log
                    while loaded.shard.outstanding_markers(log.log_end_offset):  # noqa: ASYNC110 - tells nobody
                        await asyncio.sleep(POLL_S)

    async def _start(self) -> None:
        config = self._config
        disk = _Disk(config.data_dir)
        self._open.push_async_callback(disk.abandon)
        metadata = await SqliteMetadata.open(Path(config.data_dir) / METADATA_FILE, sync=False)
        self._open.push_async_callback(metadata.close)
        ports = Ports(disk=disk, metadata=metadata, clock=SystemClock(), random=SystemRandom())
        self._node = Node(config, ports, new_server=self._new_door)
        await self._node.start()

    def _new_door(self, config: BrokerConfig, dispatch: Dispatcher) -> Door:
        self._door = Door(config, dispatch, self._holds)
        return self._door

    async def _end(self) -> None:
        failure = None
        if self._door is not None:
            failure = self._node.failure()
            await self._door.slam()  # it awaits nothing: no task has a turn in between
        me = asyncio.current_task()
        async with asyncio.timeout(END_TIMEOUT_S):
            while left := asyncio.all_tasks() - {me}:
                for task in left:
                    task.cancel()
                await asyncio.wait(left)
        await self._open.aclose()
        if failure is not None:
            raise failure


async def _no_farewell() -> None:
    """A killed broker has none."""
