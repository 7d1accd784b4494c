"""The MetadataStore port over etcd 3.4 and later: a cluster's metadata.

A key's version is its mod_revision. All keys of a cluster begin with its name and a slash.
"""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Self

from fencelog.adapters.etcd import messages
from fencelog.adapters.etcd.members import Members, Tls, User
from fencelog.adapters.etcd.refusals import COMPACTED, LEASE_NOT_FOUND, RefusedError
from fencelog.adapters.etcd.watching import range_end, watch
from fencelog.errors import StorageError
from fencelog.ports import (
    COMMIT_BYTES_MAX,
    COMMIT_KEYS_MAX,
    LeaseId,
    MetadataChange,
    MetadataSnapshot,
    MetadataWrite,
)
from fencelog.settings.metadata_url import EtcdUrl

DEADLINE_S = 5.0
"""Of each operation but a watch, over all members."""
_PAGE_KEYS = 500
_TRIES = 5


class EtcdMetadata:
    """Versioned cells in etcd, under one prefix."""

    def __init__(self, members: Members, name: str) -> None:
        """Take over the members; see ``open``."""
        self._members = members
        self._root = f"{name}/"

    @classmethod
    async def open(
        cls,
        url: EtcdUrl,
        *,
        tls: Tls | None = None,
        user: User | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Self:
        """Return the store once one member has answered. Raises StorageError, if none does."""
        store = cls(Members(url.endpoints, tls, user, deadline_s), url.name)
        try:
            await store.get("")
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Return value and version of a key, or None."""
        request = messages.RangeRequest(key=self._key(key))
        answer = await self._members.ask(request, messages.RangeResponse)
        return next(((cell.value, cell.mod_revision) for cell in answer.kvs), None)

    async def list(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Return key, value and version of each key with this prefix, in key order."""
        return list((await self.snapshot(prefix)).cells)

    async def snapshot(self, prefix: str) -> MetadataSnapshot:
        """Return what ``list`` does, with the revision from which a ``watch`` goes on."""
        for _ in range(_TRIES):
            try:
                return await self._pages(prefix)
            except RefusedError as error:
                if error.reason != COMPACTED:
                    raise
        raise StorageError(f"etcd: its history was compacted during {_TRIES} reads of {prefix}")

    async def _pages(self, prefix: str) -> MetadataSnapshot:
        """Read page by page, all of them at the first one's revision."""
        start, cells, revision = self._key(prefix), list[tuple[str, bytes, int]](), 0
        end = range_end(start)
        while True:
            request = messages.RangeRequest(
                key=start, range_end=end, limit=_PAGE_KEYS, revision=revision
            )
            answer = await self._members.ask(request, messages.RangeResponse)
            revision = revision or answer.header.revision
            for cell in answer.kvs:
                key = cell.key.decode().removeprefix(self._root)
                cells.append((key, cell.value, cell.mod_revision))
            if not answer.more:
                return MetadataSnapshot(cells, revision)
            start = answer.kvs[-1].key + b"\0"

    async def put(self, key: str, value: bytes, *, expected_version: int) -> int | None:
        """Compare and set; 0 expects absence. Returns the new version, or None on a conflict."""
        answer = await self._transaction([MetadataWrite(key, value, expected_version)], {})
        return answer.header.revision if answer.succeeded else None

    async def delete(self, key: str, *, expected_version: int) -> bool:
        """Remove a key at this version; False if its version is different."""
        return await self.commit([MetadataWrite(key, None, expected_version)])

    async def commit(
        self, writes: Sequence[MetadataWrite], *, unchanged: Mapping[str, int] | None = None
    ) -> bool:
        """Apply all writes, to different keys, at once; False if a version is different.

        Raises StorageError, too, for a commit over the port's limits.
        """
        try:
            return (await self._transaction(writes, unchanged or {})).succeeded
        except RefusedError as error:
            if error.reason != LEASE_NOT_FOUND:
                raise
            return False  # a write's lease has ended

    async def _transaction(
        self, writes: Sequence[MetadataWrite], unchanged: Mapping[str, int]
    ) -> messages.TxnResponse:
        expected = {**unchanged}
        operations = []
        for write in writes:
            if write.expected_version is not None:
                expected[write.key] = write.expected_version
            operations.append(self._operation(write))
        compares = [
            messages.Compare(
                result=messages.Compare.EQUAL,
                target=messages.Compare.MOD,
                key=self._key(key),
                mod_revision=version,
            )
            for key, version in expected.items()
        ]
        request = messages.TxnRequest(compare=compares, success=operations)
        keys, size = len(writes) + len(unchanged), request.ByteSize()
        if keys > COMMIT_KEYS_MAX or size > COMMIT_BYTES_MAX:
            raise StorageError(
                f"a commit of {keys} keys and {size} bytes, the limits are "
                f"{COMMIT_KEYS_MAX} and {COMMIT_BYTES_MAX}"
            )
        return await self._members.change(request, messages.TxnResponse)

    def _operation(self, write: MetadataWrite) -> messages.RequestOp:
        key = self._key(write.key)
        if write.value is None:
            return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=key))
        put = messages.PutRequest(key=key, value=write.value, lease=write.lease or 0)
        return messages.RequestOp(request_put=put)

    def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[MetadataChange]]:
        """Yield what each commit after this revision has changed of the keys with this prefix.

        It goes on at another member where one is lost. Raises HistoryLostError, and StorageError if
        the user may not read the prefix.
        """
        return watch(self._members, self._root, self._key(prefix), revision)

    async def grant(self, ttl_s: float) -> LeaseId:
        """Begin a lease. etcd counts whole seconds, and has a least time of its own."""
        request = messages.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        # Asked for twice, the first one's lease ends by itself, with no keys.
        return (await self._members.ask(request, messages.LeaseGrantResponse)).ID

    async def renew(self, lease: LeaseId) -> bool:
        """Let the lease's time begin again; False if it has ended: its keys are gone."""
        for _ in range(_TRIES):
            request = messages.LeaseKeepAliveRequest(ID=lease)
            renewed = await self._members.ask(request, messages.LeaseKeepAliveResponse)
            if renewed.TTL <= 0:
                return False
            # A deposed leader of etcd, before 3.4.29 and 3.5.13, still renews: the new one does not
            # know of it. A read is confirmed by most members, so in one term there was one leader.
            read = messages.RangeRequest(key=self._key(""))
            seen = await self._members.ask(read, messages.RangeResponse)
            if seen.header.raft_term == renewed.header.raft_term:
                return True
        raise StorageError(f"etcd: its leader changed during {_TRIES} renewals of a lease")

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease now: its keys are removed in one commit. Nothing if it has ended."""
        try:
            request = messages.LeaseRevokeRequest(ID=lease)
            await self._members.ask(request, messages.LeaseRevokeResponse)
        except RefusedError as error:
            if error.reason != LEASE_NOT_FOUND:
                raise

    async def close(self) -> None:
        """Release the store after the operations in flight; its watches end."""
        await self._members.close()

    def _key(self, key: str) -> bytes:
        return (self._root + key).encode()
