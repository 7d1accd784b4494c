"""Coordinator epochs: a number that grows with every load of a shard (E17)."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from fencelog.broker.metadata.granted import COORDINATOR_EPOCH_PREFIX
from fencelog.errors import UnknownOutcomeError
from fencelog.ports import MetadataStore, MetadataWrite
from fencelog.types import CoordinatorEpoch, TopicPartition

Led = Callable[[TopicPartition], Awaitable[Mapping[str, int]]]
"""Returns metadata keys with the versions at which they say that this broker leads a partition."""


async def _always(name: TopicPartition) -> Mapping[str, int]:
    del name
    return {}


class CoordinatorEpochs:
    """Takes coordinator epochs from the metadata store.

    An epoch is stored together with the comparison that the broker still leads the partition: else
    one whose leadership ends meanwhile would take a higher epoch than its successor.
    """

    def __init__(self, store: MetadataStore, led: Led = _always) -> None:
        """``led`` raises NotCoordinatorError where another broker leads."""
        self._store = store
        self._led = led
        self.seen = CoordinatorEpoch(-1)
        """The highest that is known here at the start: the metadata may be an older copy."""

    async def next(self, partition: TopicPartition) -> CoordinatorEpoch:
        """Return the next epoch of a shard, stored. Raises NotCoordinatorError and StorageError."""
        key = f"{COORDINATOR_EPOCH_PREFIX}{partition}"
        while True:
            led = await self._led(partition)
            cell = await self._store.get(key)
            stored, version = (int(cell[0]), cell[1]) if cell else (-1, 0)
            value = max(stored, self.seen) + 1
            write = MetadataWrite(key, b"%d" % value, version)
            # One whose outcome is unknown is skipped.
            with suppress(UnknownOutcomeError):
                if await self._store.commit([write], unchanged=led):
                    return CoordinatorEpoch(value)
