"""Offsets of deleted topics, in a cluster: each broker deletes those of the groups that it has.

A deletion is told by the watch of the metadata store. What was deleted while a shard was on no
broker is found when it is loaded.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine

from fencelog.broker.coordinators.group_requests import GroupRequests
from fencelog.broker.coordinators.runtime import CoordinatorRuntime, Loaded
from fencelog.broker.metadata.catalog import TOPIC_PREFIX, Catalog
from fencelog.coordination.group.shard import GroupShard
from fencelog.errors import NotLeaderError, StorageError
from fencelog.ports import MetadataStore

log = logging.getLogger(__name__)


class ForgottenTopics:
    """Deletes the offsets of topics that are deleted."""

    def __init__(
        self,
        groups: CoordinatorRuntime[GroupShard],
        requests: GroupRequests,
        catalog: Catalog,
        store: MetadataStore,
    ) -> None:
        """Look at each shard that is loaded from now on."""
        self._groups = groups
        self._requests = requests
        self._catalog = catalog
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        groups.on_loaded = self.loaded

    def deleted(self, topics: Collection[str]) -> None:
        """These topics are deleted."""
        if topics:
            self._begin(self._requests.forget_topics(topics))

    def loaded(self, loaded: Loaded[GroupShard]) -> None:
        """A shard may have offsets of topics that were deleted when nobody had it."""
        self._begin(self._look(loaded))

    async def stop(self) -> None:
        """Cancel what is under way; the next load does the rest."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look(self, loaded: Loaded[GroupShard]) -> None:
        unknown = [each for each in sorted(loaded.shard.topics()) if not self._catalog.get(each)]
        try:
            # The catalog may not have heard of a topic yet: only the store knows.
            gone = [each for each in unknown if not await self._store.get(TOPIC_PREFIX + each)]
            if gone:
                await self._groups.decide_on(loaded, lambda shard, now: shard.topics_deleted(gone))
        except (NotLeaderError, StorageError) as error:
            log.warning("offsets of deleted topics stay until the next load: %s", error)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
