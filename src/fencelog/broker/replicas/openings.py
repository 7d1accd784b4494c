"""Who waits until a new topic's replicas are open on this broker."""

import asyncio
from collections.abc import Callable

from fencelog.types import TopicId


class Openings:
    """Those who wait, by topic."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: dict[TopicId, asyncio.Event] = {}
        self._has_ended = False

    async def until(self, topic_id: TopicId, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, or nothing is opened any more."""
        while not self._has_ended and not condition():
            await self._waiting.setdefault(topic_id, asyncio.Event()).wait()

    def look_again(self, topic_id: TopicId | None = None) -> None:
        """Let those who wait for this topic, None for any, look at their conditions."""
        for each in list(self._waiting) if topic_id is None else [topic_id]:
            self._waiting.pop(each, asyncio.Event()).set()

    def end(self) -> None:
        """Nothing is opened any more: nobody waits, now or later."""
        self._has_ended = True
        self.look_again()
