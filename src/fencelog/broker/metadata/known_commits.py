"""Commits to the metadata store whose outcome is known, also where an answer is lost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from fencelog.errors import StorageError, UnknownOutcomeError
from fencelog.ports import MetadataStore, MetadataWrite

T = TypeVar("T")
WRITES_MAX = 64
"""As many keys are written at once: etcd compares and writes 128 in a transaction by default."""


def batched(items: Iterable[T]) -> Iterator[list[T]]:
    """Split what is to be written into as many as one commit takes."""
    rest = iter(items)
    while batch := list(islice(rest, WRITES_MAX)):
        yield batch


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


async def commit_in_parts(store: MetadataStore, writes: Sequence[MetadataWrite]) -> bool:
    """Commit; of too many writes the first one comes last, and decides.

    The last commit writes the second write's key once more, at the version that the first commit
    gave it. So who removes what an unfinished attempt has left (that key first) cannot do so at
    the same time as the attempt goes on. False and the errors are those of ``commit_known``.
    """
    if len(writes) <= WRITES_MAX:
        return await commit_known(store, writes)
    first, *rest = writes
    guard = rest[0]
    while len(rest) > WRITES_MAX - 2:
        if not await commit_known(store, rest[:WRITES_MAX]):
            return False
        rest = rest[WRITES_MAX:]
    cell = await store.get(guard.key)
    if cell is None or cell[0] != guard.value:
        return False
    return await commit_known(store, [first, *rest, guard._replace(expected_version=cell[1])])


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
