"""Commits to the metadata store whose outcome is known, also where an answer is lost."""

from collections.abc import Mapping, Sequence

from fencelog.errors import StorageError, UnknownOutcomeError
from fencelog.ports import MetadataStore, MetadataWrite

WRITES_MAX = 64
"""As many keys are written at once: etcd compares and writes 128 in a transaction by default."""


async def commit_known(
    store: MetadataStore,
    writes: Sequence[MetadataWrite],
    *,
    unchanged: Mapping[str, int] | None = None,
) -> bool:
    """Commit; False if a version is different, or the lease has ended.

    Where the answer is lost, the first write's key is read: whether it has the new value. That
    write names the version it expects, so that it is stored once at most, however late. Raises
    StorageError if nothing is stored, UnknownOutcomeError if that cannot be read.
    """
    first = writes[0]
    assert first.expected_version is not None, first.key
    is_doubtful = False
    while True:
        try:
            if await store.commit(writes, unchanged=unchanged):
                return True
        except UnknownOutcomeError:
            value, version = await _read(store, first.key)
            if version != first.expected_version:
                return value == first.value
            is_doubtful = True  # it may still come: the same once more settles it
        except StorageError as error:
            if is_doubtful:
                raise UnknownOutcomeError(str(error)) from error
            raise
        else:
            if not is_doubtful:
                return False
            value, version = await _read(store, first.key)
            return version != first.expected_version and value == first.value


async def _read(store: MetadataStore, key: str) -> tuple[bytes | None, int]:
    try:
        return await store.get(key) or (None, 0)
    except StorageError as error:
        raise UnknownOutcomeError(f"{key} was perhaps stored: {error}") from error
