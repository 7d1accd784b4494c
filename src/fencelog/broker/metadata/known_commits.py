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

    Where the answer is lost, the keys are read: True if all of them have the new values, whoever
    wrote those. The first write names the version that it expects. While the key has that version,
    the same is sent once more; when it has another one, what was sent cannot be stored any more.
    Raises StorageError if nothing is stored, UnknownOutcomeError if that cannot be read.
    """
    first = writes[0]
    assert first.expected_version is not None, first.key
    is_doubtful = False
    while True:
        try:
            if await store.commit(writes, unchanged=unchanged):
                return True
        except UnknownOutcomeError:
            if await _version(store, first.key) != first.expected_version:
                return await _all_are_there(store, writes)
            is_doubtful = True  # it may still come: the same once more settles it
        except StorageError as error:
            if is_doubtful:
                raise UnknownOutcomeError(str(error)) from error
            raise
        else:
            return is_doubtful and await _all_are_there(store, writes)


async def _version(store: MetadataStore, key: str) -> int:
    cell = await _read(store, key)
    return 0 if cell is None else cell[1]


async def _all_are_there(store: MetadataStore, writes: Sequence[MetadataWrite]) -> bool:
    """Whether every key has the value of its write. One alone may be another broker's same idea."""
    for each in writes:
        cell = await _read(store, each.key)
        if each.value != (None if cell is None else cell[0]):
            return False
    return True


async def _read(store: MetadataStore, key: str) -> tuple[bytes, int] | None:
    try:
        return await store.get(key)
    except StorageError as error:
        raise UnknownOutcomeError(f"{key} was perhaps stored: {error}") from error
