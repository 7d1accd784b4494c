"""A metadata store for the brokers of one process, each in a loop of its own.

The store runs in one loop; ``SharedMetadata`` is its port in another one. A broker that is killed
takes its own port with it and leaves the store to the others.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from fencelog.ports import (
    LeaseId,
    MetadataChange,
    MetadataSnapshot,
    MetadataStore,
    MetadataWrite,
)

R = TypeVar("R")


class SharedMetadata:
    """The port of a store that runs in another thread's loop."""

    def __init__(self, store: MetadataStore, loop: asyncio.AbstractEventLoop) -> None:
        """``loop``: the one that the store runs in."""
        self._store = store
        self._loop = loop

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """See ``MetadataStore``."""
        return await self._run(self._store.get(key))

    async def list(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """See ``MetadataStore``."""
        return await self._run(self._store.list(prefix))

    async def snapshot(self, prefix: str) -> MetadataSnapshot:
        """See ``MetadataStore``."""
        return await self._run(self._store.snapshot(prefix))

    async def put(self, key: str, value: bytes, *, expected_version: int) -> int | None:
        """See ``MetadataStore``."""
        return await self._run(self._store.put(key, value, expected_version=expected_version))

    async def delete(self, key: str, *, expected_version: int) -> bool:
        """See ``MetadataStore``."""
        return await self._run(self._store.delete(key, expected_version=expected_version))

    async def commit(
        self, writes: Sequence[MetadataWrite], *, unchanged: Mapping[str, int] | None = None
    ) -> bool:
        """See ``MetadataStore``."""
        return await self._run(self._store.commit(writes, unchanged=unchanged))

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[MetadataChange]]:
        """See ``MetadataStore``."""
        changes = self._store.watch(prefix, revision)
        while (each := await self._run(_next(changes))) is not None:
            yield each

    async def grant(self, ttl_s: float) -> LeaseId:
        """See ``MetadataStore``."""
        return await self._run(self._store.grant(ttl_s))

    async def renew(self, lease: LeaseId) -> bool:
        """See ``MetadataStore``."""
        return await self._run(self._store.renew(lease))

    async def revoke(self, lease: LeaseId) -> None:
        """See ``MetadataStore``."""
        await self._run(self._store.revoke(lease))

    async def close(self) -> None:
        """Do nothing: the store is others', too."""

    async def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _next(
    changes: AsyncIterator[Sequence[MetadataChange]],
) -> Sequence[MetadataChange] | None:
    return await anext(changes, None)
