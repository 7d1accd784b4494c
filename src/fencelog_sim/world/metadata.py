"""The simulated metadata store: versioned cells in memory, with writes in flight.

``SimStore`` is the store, which is linearizable and outlives every process; ``SimMetadata`` is one
process's access to it. A write that returned is stable, as each is synced. Those in flight when the
process ends may or may not be there afterwards.

A store of one process's own behaves as SQLite does: what is asked for takes effect in the order of
the calls. One that several hosts share behaves as etcd does: it can be out of reach for one of
them, answers are lost, watches are late.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import Context
from dataclasses import dataclass
from random import Random

from fencelog.adapters.change_history import ChangeHistory
from fencelog.errors import StorageError, UnknownOutcomeError
from fencelog.ports import LeaseId, MetadataChange, MetadataSnapshot, MetadataWrite
from fencelog_sim.world.gate import Device, Fault, Halt, Lost

REQUEST_TIMEOUT_S = 2.0
"""How long a request waits for a store that is out of reach."""


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends_at: float


class SimStore:
    """What is stored. One counter gives all versions, so that no cell ever has an old one again."""

    def __init__(self) -> None:
        """No cells."""
        self.values: dict[str, tuple[bytes, int]] = {}
        self.revision = 0
        self.history = ChangeHistory(begins_after=0)
        self.committed: Callable[[Sequence[MetadataChange]], None] | None = None
        """Shown the changes of each commit, in the step in which it takes effect."""
        self.writer = 0
        """The host that writes; 0: the store itself, or an operator."""
        self.compared: Collection[str] = ()
        """The keys whose versions the last commit has compared."""
        self.run_out: set[str] = set()
        """Keys that are gone because their leases were not renewed in time."""
        self._leases: dict[LeaseId, _Lease] = {}
        self._last_lease = 0
        self._leased: dict[str, LeaseId] = {}

    def session(self, host: int = 0) -> "SimMetadata":
        """Access for one host's process; several may have it at once. 0: none of the hosts."""
        return SimMetadata(self, host)

    def cells(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Key, value and version of each key with this prefix, in key order."""
        found = sorted(self.values.items())
        return [(key, *cell) for key, cell in found if key.startswith(prefix)]

    def version(self, key: str) -> int:
        """The version of a key, 0 without it."""
        return self.values.get(key, (b"", 0))[1]

    def commit(
        self, writes: Sequence[MetadataWrite], unchanged: Mapping[str, int] | None = None
    ) -> int | None:
        """Apply all writes at once; return their version, or None when one is another one."""
        expected = dict(unchanged or {})
        expected |= {key: version for key, _, version, _ in writes if version is not None}
        if any(self.version(key) != version for key, version in expected.items()):
            return None
        if any(each.lease is not None and each.lease not in self._leases for each in writes):
            return None
        self.compared = expected.keys()
        self.revision += 1
        changes = [
            MetadataChange(each.key, each.value, self.revision)
            for each in writes
            if each.value is not None or each.key in self.values
        ]
        for key, value, _, lease in writes:
            self._leased.pop(key, None)
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = (value, self.revision)
                self.run_out.discard(key)
                if lease is not None:
                    self._leased[key] = lease
        if changes:
            self.history.add(self.revision, changes)
            if self.committed is not None:
                self.committed(changes)
        return self.revision

    def compact(self) -> None:
        """Forget all changes up to now; a watch that has not had them is over."""
        self.history.forget(self.revision)

    # -- leases --------------------------------------------------------------------------------

    def grant(self, ttl_s: float) -> LeaseId:
        """Begin a lease."""
        self._last_lease += 1
        now = asyncio.get_running_loop().time()
        self._leases[self._last_lease] = _Lease(ttl_s, now + ttl_s)
        self._look_again(self._last_lease)
        return self._last_lease

    def renew(self, lease: LeaseId) -> bool:
        """Let its time begin again; False if it has ended."""
        found = self._leases.get(lease)
        if found is None:
            return False
        found.ends_at = asyncio.get_running_loop().time() + found.ttl_s
        return True

    def end(self, lease: LeaseId) -> Sequence[str]:
        """End a lease, whether its holder lives or not: its keys go in one commit."""
        keys = sorted(key for key, holder in self._leased.items() if holder == lease)
        if self._leases.pop(lease, None) is not None and keys:
            self.commit([MetadataWrite(key, None) for key in keys])
        return keys

    def lease_of(self, key: str) -> LeaseId | None:
        """The lease with whose end the key goes; None without one."""
        return self._leased.get(key)

    def leases(self) -> list[LeaseId]:
        """Those that have not ended."""
        return list(self._leases)

    def _look_again(self, lease: LeaseId) -> None:
        found, loop = self._leases.get(lease), asyncio.get_running_loop()
        if found is None:
            return
        if loop.time() < found.ends_at:
            # No process's own: its holder's end does not stop the store's clock.
            loop.call_at(found.ends_at, self._look_again, lease, context=Context())
        else:
            self.run_out.update(self.end(lease))


_Write = Callable[[SimStore], int | None]
"""A write that does not know yet when it takes effect; what it returns is true if it did."""


class SimMetadata(Device):
    """MetadataStore in memory; one process's view of it.

    Verbs of the hooks: ``get``, ``list``, ``snapshot``, ``put``, ``delete``, ``commit``, ``grant``,
    ``renew`` and ``revoke``, all of which may be delayed.
    """

    def __init__(self, store: SimStore | None = None, host: int = 0) -> None:
        """Access of a host to a shared store, or an empty one of its own."""
        super().__init__()
        self._host = host
        self._store = store or SimStore()
        self._is_shared = store is not None
        self._order = asyncio.Lock()
        self._closed = False
        self._in_flight: list[_Write] = []
        self._doubtful: _Write | None = None
        """A write that failed and may be in the file all the same, until another one succeeds."""
        self.lose: Callable[[str, str], Lost | None] | None = None
        """Takes verb and key of a write; whether its answer is lost."""
        self.lateness: Callable[[], float] | None = None
        """By how many seconds the next change is told late to a watch."""
        self._healed: asyncio.Future[None] | None = None
        """While the store is out of reach: done when it is not any more."""

    @property
    def store(self) -> SimStore:
        """What is stored, for the world's own use."""
        return self._store

    # -- the port ------------------------------------------------------------------------------

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and version of a key, or None."""
        async with self._turn():
            await self._reach("get", key)
            return self._store.values.get(key)

    async def list(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Key, value and version of each key with this prefix, in key order."""
        async with self._turn():
            await self._reach("list", prefix)
            return self._store.cells(prefix)

    async def snapshot(self, prefix: str) -> MetadataSnapshot:
        """What ``list`` returns, with the revision from which a ``watch`` goes on."""
        async with self._turn():
            await self._reach("snapshot", prefix)
            return MetadataSnapshot(self._store.cells(prefix), self._store.revision)

    async def put(self, key: str, value: bytes, *, expected_version: int) -> int | None:
        """Compare and set; 0 expects absence. Returns the new version, or None when it lost."""
        write = MetadataWrite(key, bytes(value), expected_version)
        return await self._write("put", key, len(value), lambda store: store.commit([write]))

    async def delete(self, key: str, *, expected_version: int) -> bool:
        """Remove a key at this version; False when the version is another one."""
        write = MetadataWrite(key, None, expected_version)
        return bool(await self._write("delete", key, 0, lambda store: store.commit([write])))

    async def commit(
        self, writes: Sequence[MetadataWrite], *, unchanged: Mapping[str, int] | None = None
    ) -> bool:
        """Apply all writes at once; False when a version is another one."""
        stored, compared = list(writes), dict(unchanged or {})
        size = sum(len(each.value or b"") for each in stored)
        done = await self._write(
            "commit", stored[0].key, size, lambda store: store.commit(stored, compared)
        )
        return bool(done)

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[MetadataChange]]:
        """Yield what each commit after this revision has changed of the keys with this prefix."""
        watching = self._store.history.watch(prefix, revision, lambda: not self._closed)
        async for changes in watching:
            if self.lateness is not None:
                await asyncio.sleep(self.lateness())
            while self._healed is not None:
                await asyncio.shield(self._healed)
            if self._closed:
                return
            yield changes

    async def grant(self, ttl_s: float) -> LeaseId:
        """Begin a lease."""
        async with self._turn():
            await self._reach("grant", "")
            return self._store.grant(ttl_s)

    async def renew(self, lease: LeaseId) -> bool:
        """Let the lease's time begin again; False if it has ended."""
        async with self._turn():
            await self._reach("renew", str(lease))
            return self._store.renew(lease)

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease now."""
        async with self._turn():
            await self._reach("revoke", str(lease))
            self._store.end(lease)

    async def close(self) -> None:
        """Release the store, after the operations asked for; a second close does nothing."""
        async with self._turn():
            self._closed = True
            self._store.history.wake()

    # -- the world's own -----------------------------------------------------------------------

    def cut(self) -> None:
        """Let the store be out of reach for this process."""
        if self._healed is None:
            self._healed = asyncio.get_running_loop().create_future()

    def heal(self) -> None:
        """Let it be in reach again; watches go on where they were."""
        healed, self._healed = self._healed, None
        if healed is not None:
            healed.set_result(None)

    def restarted(self, random: Random | None = None) -> "SimMetadata":
        """The store as the next process finds it after a kill; this view has ended.

        ``random`` decides how many of the writes in flight took effect, the first ones first;
        without it none did.
        """
        self._ended = True
        after = SimMetadata(self._store, self._host)
        after._is_shared = self._is_shared
        if random is not None:
            # What failed is older than what is in flight: each success overwrites it.
            if self._doubtful is not None and random.random() < 0.5:
                self._doubtful(self._store)
            for write in self._in_flight[: random.randint(0, len(self._in_flight))]:
                write(self._store)
        return after

    def power_loss(self, random: Random) -> "SimMetadata":
        """The store as the next boot finds it: as after a kill, since every write is synced."""
        return self.restarted(random)

    # -- inside --------------------------------------------------------------------------------

    def _turn(self) -> AsyncExitStack | asyncio.Lock:
        return AsyncExitStack() if self._is_shared else self._order

    async def _write(self, verb: str, key: str, size: int, change: _Write) -> int | None:
        def write(store: SimStore) -> int | None:
            store.writer = self._host
            try:
                return change(store)
            finally:
                store.writer = 0

        self._in_flight.append(write)
        try:
            async with self._turn():
                return await self._take_effect(verb, key, size, write)
        finally:
            if write in self._in_flight:
                self._in_flight.remove(write)

    async def _take_effect(self, verb: str, key: str, size: int, write: _Write) -> int | None:
        await self._in_reach(verb, key, is_write=True)
        try:
            verdict = await self._pass(verb, key, size, write)
        except asyncio.CancelledError:
            # The real store has begun the write, and ends it without the caller.
            if not self._ended:
                write(self._store)
            raise
        lost = None if self.lose is None else self.lose(verb, key)
        if lost is not None:
            self._lose(lost, write)
            raise UnknownOutcomeError(f"metadata: {verb} {key}: no answer")
        answer = write(self._store)
        if answer:
            self._doubtful = None
        if verdict is not None:
            self._in_flight.remove(write)
            await self.halt(verdict)
        return answer

    def _lose(self, lost: Lost, write: _Write) -> None:
        if not lost.is_stored:
            return
        if lost.after_s:
            loop = asyncio.get_running_loop()
            loop.call_later(lost.after_s, write, self._store, context=Context())
        else:
            write(self._store)

    async def _reach(self, verb: str, key: str) -> None:
        """Return when an operation other than a write may take effect."""
        await self._in_reach(verb, key, is_write=False)
        await self._pass(verb, key)

    async def _in_reach(self, verb: str, key: str, *, is_write: bool) -> None:
        """Wait for a store that is out of reach, for as long as a request does."""
        assert not self._closed, "the store is closed"
        if self._healed is None:
            return
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                while self._healed is not None:
                    await asyncio.shield(self._healed)
        except TimeoutError:
            error = UnknownOutcomeError if is_write else StorageError
            raise error(f"metadata: {verb} {key}: the store is out of reach") from None

    async def _pass(
        self, verb: str, key: str, size: int = 0, write: _Write | None = None
    ) -> Halt | None:
        """Return when the operation may take effect, with the halt that follows it, if any."""
        await self.wait(verb, key, size)
        verdict = self.verdict(verb, key, size)
        if isinstance(verdict, Fault):
            if verdict.done:
                self._doubtful = write
            raise StorageError(f"metadata: {verb} {key}: {verdict.reason}")
        if verdict is not None and not (verdict.done and write):
            await self.halt(verdict)
        return verdict
