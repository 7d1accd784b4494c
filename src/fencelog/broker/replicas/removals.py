"""The removals of deleted topics' files, each of which is tried until it is done.

A full disk has room again some day, and the metadata store answers again. Until then the files
keep their names, and a new topic of the same name waits; who has created it does not.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from fencelog.broker.replicas.logs import Logs
from fencelog.broker.replicas.repair import Pauses
from fencelog.errors import CorruptionError, StorageError
from fencelog.types import Instant, TopicId

log = logging.getLogger(__name__)

RETRY_S_MAX = 30.0
"""A step that fails again and again is tried after twice as long each time, up to this."""


class Removals:
    """The deleted topics whose files are still here."""

    def __init__(
        self, logs: Logs, limit: asyncio.Semaphore, failed: Callable[[Exception], None]
    ) -> None:
        """``limit`` is that of all work on files; ``failed`` is told of each failed try."""
        self._logs = logs
        self._limit = limit
        self._failed = failed
        self._begun: set[TopicId] = set()
        self._names: dict[TopicId, str] = {}
        self._stuck: set[TopicId] = set()
        # After a power cut files may not tell whose they are: two topics of one name want them.
        self._one_at_a_time = asyncio.Lock()

    def is_begun(self, topic_id: TopicId) -> bool:
        """Whether a topic's removal has begun in this life of the broker."""
        return topic_id in self._begun

    def hold(self, topic_id: TopicId, name: str) -> None:
        """Files have the names of this topic's partitions until ``remove_files`` returns.

        From when the deletion is known: the removal may have to wait for what is being opened.
        """
        self._names[topic_id] = name

    def begin(self, topic_id: TopicId) -> None:
        """The removal of a held topic begins."""
        self._begun.add(topic_id)

    def forget(self, topic_ids: Collection[TopicId]) -> None:
        """No broker has anything of these topics any more."""
        self._begun.difference_update(topic_ids)

    def holds(self, name: str) -> bool:
        """Whether a topic of this name waits for a removal."""
        return name in self._names.values()

    def is_stuck(self, name: str) -> bool:
        """Whether a removal that a topic of this name waits for has failed, and may take long."""
        return any(self._names[each] == name for each in self._stuck)

    async def remove_files(self, topic_id: TopicId) -> None:
        """Remove the files of a topic; returns when nothing is left of them."""
        name = self._names[topic_id]

        async def remove() -> None:
            try:
                async with self._limit, self._one_at_a_time:
                    await self._logs.remove(topic_id, name)
            except (CorruptionError, StorageError):
                self._stuck.add(topic_id)
                raise

        await self.until_done(name, remove)
        del self._names[topic_id]
        self._stuck.discard(topic_id)

    async def until_done(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        """Try one step of a topic's removal until it succeeds."""
        pauses, loop = Pauses(RETRY_S_MAX), asyncio.get_running_loop()
        while True:
            try:
                await step()
            except (CorruptionError, StorageError) as error:
                log.error("%s is deleted, its removal is tried again: %s", name, error)  # noqa: TRY400
                self._failed(error)
            else:
                return
            await asyncio.sleep(pauses.next(Instant(loop.time())))
