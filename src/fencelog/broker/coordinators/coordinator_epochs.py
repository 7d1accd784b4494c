"""Coordinator epochs: one for each load of a shard, never repeated (E17)."""

from fencelog.errors import UnknownOutcomeError
from fencelog.ports import MetadataStore
from fencelog.types import CoordinatorEpoch


async def next_coordinator_epoch(
    store: MetadataStore, shard: str, seen: CoordinatorEpoch
) -> CoordinatorEpoch:
    """Return a number that grows with every load of a shard, stored before it is used.

    It is above ``seen``, the highest epoch that a log has: the store may be an older copy. Raises
    StorageError.
    """
    key = f"coordinator-epoch/{shard}"
    while True:
        cell = await store.get(key)
        stored, version = (int(cell[0]), cell[1]) if cell else (-1, 0)
        epoch = max(stored, seen) + 1
        try:
            if await store.put(key, b"%d" % epoch, expected_version=version):
                return CoordinatorEpoch(epoch)
        except UnknownOutcomeError:
            continue  # what is read next is not used: another broker's looks the same
