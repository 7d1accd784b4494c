"""Producer ids: never reused, from blocks that are stored before their first use (E7)."""

import asyncio

from fencelog.broker.observer import Observer
from fencelog.errors import NotLeaderError, StorageError, UnknownOutcomeError
from fencelog.ports import MetadataStore
from fencelog.types import ProducerId

BLOCK_SIZE = 1000
KEY = "producer-ids"


class ProducerIds:
    """Assigns producer ids. A crash skips the rest of a block, which does no harm."""

    def __init__(self, store: MetadataStore, observer: Observer | None) -> None:
        """Start without a block; the first ``take`` reserves one."""
        self._store = store
        self._observer = observer
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def start_above(self, highest_seen: ProducerId) -> None:
        """Never assign an id that a log or snapshot here has: it has the state of another producer.

        Blocks are reserved for the whole cluster, so this only matters where the metadata store is
        an older copy than the logs.
        """
        cell = await self._store.get(KEY)
        reserved = int(cell[0]) if cell else 0
        if reserved <= highest_seen:
            await self._reserve(minimum=highest_seen + 1)

    async def take(self) -> ProducerId:
        """Return an unused id. Raises NotLeaderError while none can be reserved."""
        async with self._lock:
            if self._next == self._end:
                try:
                    await self._reserve(minimum=0)
                except StorageError as error:
                    raise NotLeaderError(f"cannot reserve producer ids: {error}") from error
            taken = self._next
            self._next += 1
            if self._observer is not None:
                self._observer.producer_id_assigned(ProducerId(taken))
            return ProducerId(taken)

    async def _reserve(self, minimum: int) -> None:
        while True:
            cell = await self._store.get(KEY)
            value, version = (int(cell[0]), cell[1]) if cell else (0, 0)
            begin = max(value, minimum)
            end = begin + BLOCK_SIZE
            try:
                stored = await self._store.put(KEY, b"%d" % end, expected_version=version)
            except UnknownOutcomeError:
                continue  # the block may be ours: it is skipped
            if stored is not None:
                self._next, self._end = begin, end
                return
