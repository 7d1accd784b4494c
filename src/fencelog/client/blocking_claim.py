"""A claim of ownership for blocking callers: kept in the client's loop, used in any thread."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from fencelog.client.admin import Admin
from fencelog.client.blocking_writers import Producer
from fencelog.client.claim import Claim as ClaimCore
from fencelog.client.grants import Grant, GrantFacts
from fencelog.client.loop_thread import LoopThread
from fencelog.client.model import Compression, Isolation, Record
from fencelog.client.reader import FETCH_BYTES_MAX, FetchOptions, PartitionReader, records_of
from fencelog.client.records_buffer import BATCH_BYTES
from fencelog.client.sender import open_sender, owner_options
from fencelog.errors import FencelogError, OwnershipLostError
from fencelog.types import TopicPartition


class Claim(GrantFacts):
    """Ownership of resources until it is released or lost. A context manager, made by ``own``.

    Its producers, reads and commits are the owner's. Once the claim is lost they raise
    OwnershipLostError, and it stays lost: a new claim is needed.

    Attributes:
        lost: set when the claim is lost.
    """

    def __init__(self, loop: LoopThread, core: ClaimCore) -> None:
        """Made by ``Client.own``."""
        self._loop, self._core = loop, core
        self._pid = os.getpid()
        self.lost = threading.Event()
        self.on_lost(lambda _: self.lost.set())

    def __repr__(self) -> str:
        """Resources and group, the epoch, and whether it is live, lost or released."""
        return repr(self._core)

    @property
    def grant(self) -> Grant:
        """The newest grant; another one, with higher epochs, after a lost connection."""
        return self._core.grant

    def on_lost(self, callback: Callable[[OwnershipLostError], None]) -> None:
        """Call this when the claim is lost, in the client's thread; at once where it is lost.

        It must not block, and call no method of the client.
        """

        async def add() -> None:
            self._core.on_lost(callback)

        self._loop.run(add())

    def check(self) -> None:
        """Return if this claim owns its resources now; raise OwnershipLostError if not.

        After a lost connection it waits until that is known, at most to the end of the lease.
        """
        self._owning().run(self._core.check())

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Run a block as the owner. Raises OwnershipLostError where the claim is lost.

        It is checked at the beginning and at the end: a thread cannot be interrupted, so a long
        block calls ``check`` now and then, or looks at ``lost``. Effects outside the log need a
        ``token``: a claim that preempts does not wait for the end of the lease (O10).
        """
        self.check()
        yield
        self.check()

    def release(self) -> None:
        """End the claim, so that its resources are free at once. Harmless twice, and once lost.

        Records that producers of the claim have not flushed are dropped.
        """
        if self._pid == os.getpid():
            self._loop.run(self._core.release())

    def __enter__(self) -> Self:
        """Return the claim."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the claim."""
        self.release()

    def producer(
        self,
        *,
        transactional: bool = False,
        compression: Compression | None = None,
        transaction_timeout_ms: int = 60_000,
        batch_bytes: int = BATCH_BYTES,
    ) -> Producer:
        """An idempotent producer (acks=all) that writes as the owner.

        ``transactional``: with the claim's transactional id; raises FencelogError if none was asked
        for. A lost connection aborts its open transaction and fences it: open another one then.
        """
        options = owner_options(
            self.transactional_id, compression, transaction_timeout_ms, transactional=transactional
        )
        loop = self._owning()
        sender = loop.run(open_sender(self._core.connections, options))
        return Producer(loop, self._core.connections, sender, batch_bytes=batch_bytes)

    def fetch(
        self,
        partition: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        isolation: Isolation = "transactional",
        max_bytes: int = FETCH_BYTES_MAX,
    ) -> Iterator[Record]:
        """Records from ``start``, read as the owner; without ``end`` it waits for more."""
        loop = self._owning()
        options = FetchOptions(isolation=isolation, max_bytes=max_bytes)
        reader = PartitionReader(self._core.connections, partition, start, end, options)
        for chunk in loop.one_ahead(reader.next_chunk):
            yield from records_of(chunk, partition, start, end)

    def commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of the claim's group as the owner. Raises FencelogError without a group.

        Returns once they are durable.
        """
        admin = Admin(self._core.connections)
        self._owning().run(admin.commit_offsets(self._core.group, offsets))

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """All committed offsets of the claim's group. Raises FencelogError without a group."""
        admin = Admin(self._core.connections)
        return self._owning().run(admin.committed_offsets(self._core.group))

    def _owning(self) -> LoopThread:
        if self._pid != os.getpid():
            raise FencelogError(
                "this claim was made in the parent process; make one in this process"
            )
        return self._loop
