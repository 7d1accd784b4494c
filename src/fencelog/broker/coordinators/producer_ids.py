"""Producer ids: never reused, from blocks that are stored before their first use (E7)."""

import asyncio
import logging

from fencelog.broker.metadata.granted import PRODUCER_ID_KEY, producer_ids_of
from fencelog.broker.observer import Observer
from fencelog.errors import NotLeaderError, StorageError, UnknownOutcomeError
from fencelog.ports import MetadataStore
from fencelog.types import ProducerId

log = logging.getLogger(__name__)

BLOCK_SIZE = 1000


class ProducerIds:
    """Assigns producer ids. A crash skips the rest of a block, which does no harm."""

    def __init__(self, store: MetadataStore, observer: Observer | None) -> None:
        """Start without a block; the first ``take`` reserves one."""
        self._store = store
        self._observer = observer
        self._next = 0
        self._end = 0
        self._minimum = 0
        self._lock = asyncio.Lock()

    async def start_above(self, highest_seen: ProducerId) -> None:
        """Never assign an id that is known here: partitions have the state of another producer.

        Blocks are reserved for the whole cluster, so this only matters where the metadata store is
        an older copy than the data directory. Raises StorageError if it cannot be read or written,
        and assigns no such id even then.
        """
        self._minimum = highest_seen + 1
        reserved, _ = await self._reserved()
        if reserved < self._minimum:
            log.warning(
                "the metadata are an older copy: ids of new producers begin above %d, not at %d",
                highest_seen,
                reserved,
            )
            await self._reserve()

    async def take(self) -> ProducerId:
        """Return an unused id. Raises NotLeaderError while none can be reserved."""
        async with self._lock:
            if self._next == self._end:
                try:
                    await self._reserve()
                except StorageError as error:
                    raise NotLeaderError(f"cannot reserve producer ids: {error}") from error
            taken = self._next
            self._next += 1
            if self._observer is not None:
                self._observer.producer_id_assigned(ProducerId(taken))
            return ProducerId(taken)

    async def _reserved(self) -> tuple[int, int]:
        """Return the end of the last block and the version of its key, 0 for none."""
        cell = await self._store.get(PRODUCER_ID_KEY)
        if cell is None:
            return 0, 0
        try:
            return producer_ids_of(cell[0]), cell[1]
        except ValueError as error:
            raise StorageError(f"metadata key {PRODUCER_ID_KEY} cannot be read: {error}") from error

    async def _reserve(self) -> None:
        while True:
            reserved, version = await self._reserved()
            begin = max(reserved, self._minimum)
            end = begin + BLOCK_SIZE
            try:
                stored = await self._store.put(
                    PRODUCER_ID_KEY, b"%d" % end, expected_version=version
                )
            except UnknownOutcomeError:
                continue  # the block may be ours: it is skipped
            if stored is not None:
                self._next, self._end = begin, end
                return
