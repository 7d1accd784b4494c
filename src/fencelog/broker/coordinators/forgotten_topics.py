"""Offsets of deleted topics, in a cluster: each broker deletes those of the groups that it has.

A deletion is told by the watch of the metadata store, and its offsets are deleted in that step: the
next topic of the name may have some in the next one. What was deleted while a shard was on no
broker is found when it is loaded.

A commit that comes before this broker has heard of the deletion goes with it: most come from
readers of the deleted topic, and their position would skip records of the next one.
"""

import logging
from collections.abc import Collection, Mapping

from fencelog.broker.background import Background
from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.metadata.catalog import TOPIC_PREFIX, Catalog
from fencelog.broker.metadata.cluster_state import DeletedTopic
from fencelog.coordination.group.shard import GroupShard
from fencelog.errors import NotLeaderError, StorageError
from fencelog.ports import MetadataStore
from fencelog.types import TopicId

log = logging.getLogger(__name__)


class ForgottenTopics:
    """Deletes the offsets of topics that are deleted."""

    def __init__(
        self,
        groups: CoordinatorRuntime[GroupShard],
        catalog: Catalog,
        store: MetadataStore,
        deleted: Mapping[TopicId, DeletedTopic],
    ) -> None:
        """Look at each shard that is loaded from now on; ``deleted``: as the cluster has them."""
        self._groups = groups
        self._catalog = catalog
        self._store = store
        self._deleted = deleted
        self._heard = set(deleted)
        self._background = Background()
        groups.on_loaded = self.loaded

    def changed(self, topic_ids: Collection[TopicId]) -> None:
        """These are deleted, or nothing of them is left, or less.

        A broker without files of a topic writes that long after the deletion, when the next topic
        of the name may have offsets.
        """
        news = {each for each in topic_ids if each in self._deleted} - self._heard
        self._heard.difference_update(each for each in topic_ids if each not in self._deleted)
        self._heard |= news
        names = {self._deleted[each].name for each in news}
        if names:
            self._groups.decide_everywhere(lambda shard, now: shard.topics_deleted(names), _failed)

    def loaded(self, loaded: Loaded[GroupShard]) -> None:
        """A shard may have offsets of topics that were deleted when nobody had it."""
        self._background.begin(self._look(loaded))

    async def stop(self) -> None:
        """Cancel what is under way; the next load does the rest."""
        await self._background.stop()

    async def _look(self, loaded: Loaded[GroupShard]) -> None:
        unknown = [each for each in sorted(loaded.shard.topics()) if not self._catalog.get(each)]
        try:
            # The catalog may not have heard of a topic yet: only the store knows.
            gone = [each for each in unknown if not await self._store.get(TOPIC_PREFIX + each)]
            if gone:
                await self._groups.decide_on(
                    loaded,
                    # What was created meanwhile may have offsets of its own.
                    lambda shard, now: shard.topics_deleted(
                        [each for each in gone if not self._catalog.get(each)]
                    ),
                )
        except (NotLeaderError, StorageError) as error:
            _failed(error)


def _failed(error: Exception) -> None:
    log.warning("offsets of deleted topics stay until the next load: %s", error)
