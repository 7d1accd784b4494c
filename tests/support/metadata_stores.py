"""Metadata stores for the contract that all of them keep."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from fencelog.adapters.etcd_metadata import EtcdMetadata
from fencelog.adapters.shared_metadata import SharedMetadata
from fencelog.adapters.sqlite_metadata import SqliteMetadata
from fencelog.client.loop_thread import LoopThread
from fencelog.ports import MetadataStore
from fencelog_sim.world.gate import NO_SPACE, Fault
from fencelog_sim.world.metadata import SimMetadata, SimStore
from tests.support.etcd import compact

Open = Callable[[], Awaitable[MetadataStore]]
"""Opens the store; a call after a close opens the same one again."""

ONE_PROCESS = ("sqlite", "unsynced sqlite", "sim", "slow sim")
"""Stores of a single process: what is asked for takes effect in the order of the calls."""
ALL = (*ONE_PROCESS, "shared sim", "sqlite of another thread")
"""Those that start no process."""


def opener(name: str, directory: Path) -> Open:
    """Return what opens the store of this name."""
    if name == "sqlite of another thread":
        return lambda: InAnotherThread.open(directory / "metadata.db")
    if name.endswith("sqlite"):
        return lambda: SqliteMetadata.open(directory / "metadata.db", sync=name == "sqlite")
    store = SimStore()
    simulated = SimMetadata()

    async def open_shared() -> SimMetadata:
        return store.session()

    async def open_simulated() -> SimMetadata:
        nonlocal simulated
        simulated = simulated.restarted()
        if name == "slow sim":
            simulated.delay = a_while
        return simulated

    return open_shared if name == "shared sim" else open_simulated


class InAnotherThread(SharedMetadata):
    """The port of a store that this test owns; its thread ends with it."""

    def __init__(self, store: SqliteMetadata, thread: LoopThread) -> None:
        super().__init__(store, thread.loop)
        self._thread = thread

    @classmethod
    async def open(cls, path: Path) -> "InAnotherThread":
        thread = LoopThread("metadata", _nothing)
        opening = thread.submit(SqliteMetadata.open(path, sync=False))
        return cls(await asyncio.wrap_future(opening), thread)

    async def close(self) -> None:
        if self._thread.loop.is_running():
            await asyncio.wrap_future(self._thread.submit(self._store.close()))
            await asyncio.to_thread(self._thread.close)


async def _nothing() -> None:
    """Close nothing: that is done already."""


async def a_while(verb: str, key: str, size: int) -> None:
    """Let others run, as during a real write."""
    for _ in range(3):
        await asyncio.sleep(0)


async def fill(store: MetadataStore) -> None:
    """Leave no space for a large value; the etcd of the contract never has."""
    if isinstance(store, SimMetadata):
        store.gate = lambda _verb, _key, size: Fault(NO_SPACE) if size > 10_000 else None
    elif isinstance(store, InAnotherThread):
        await store._run(fill(store._store))
    elif isinstance(store, SqliteMetadata):
        await store._run(lambda connection: connection.execute("PRAGMA max_page_count = 8"))


async def forget_history(store: MetadataStore) -> None:
    """Let the store forget all changes up to now, as etcd does when it is compacted."""
    if isinstance(store, SimMetadata):
        store.store.compact()
    elif isinstance(store, EtcdMetadata):
        await asyncio.to_thread(compact, f"http://{store._members._members[0].address}")
    elif isinstance(store, InAnotherThread):
        await store._run(forget_history(store._store))
    else:
        assert isinstance(store, SqliteMetadata)
        assert store._history is not None
        store._history.forget((await store.snapshot("")).revision)


def run(open_store: Open, scenario: Callable[[MetadataStore], Awaitable[None]]) -> None:
    """Run a scenario on a store that is opened for it."""

    async def main() -> None:
        store = await open_store()
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())
