"""A copy of a reader group's state, changed by its updates alone (R5)."""

from collections.abc import Callable

from fencelog.client.cluster import Cluster
from fencelog.client.streams.group_model import ReaderGroupError, state_topic
from fencelog.client.streams.synchronizer import StateSynchronizer
from fencelog.coordination.reader_group.replay import apply, refusal
from fencelog.coordination.reader_group.state import EMPTY, GroupState, dump, load
from fencelog.coordination.reader_group.updates import Update, dump_update
from fencelog.coordination.synchronizer.replica import Schema
from fencelog.types import TopicId

SCHEMA = Schema(initial=EMPTY, apply=apply, dump=dump, load=load)
Build = Callable[[GroupState], Update | None]
"""From the newest state to an update; None: nothing is to be changed."""


class GroupCopy:
    """The state as it was last read. ``writer`` and ``incarnation`` are a reader's."""

    def __init__(
        self, cluster: Cluster, group: str, writer: str | None = None, incarnation: int = 0
    ) -> None:
        """Nothing is read before the first call."""
        self._group = group
        self._synchronizer = StateSynchronizer(
            cluster, state_topic(group), SCHEMA, writer, incarnation
        )

    @property
    def state(self) -> GroupState:
        """The newest state that is known here."""
        return self._synchronizer.state

    @property
    def topic_id(self) -> TopicId:
        """The id of the state's topic, once it was read."""
        return self._synchronizer.topic_id

    @property
    def updates_since_mark(self) -> int:
        """How many updates a late joiner reads."""
        return self._synchronizer.updates_since_mark

    async def fetch(self) -> GroupState:
        """Read all that is committed. Raises SynchronizerError, RequestError."""
        return await self._synchronizer.fetch()

    async def wait_changed(self) -> GroupState:
        """Wait until something newer was read. Raises SynchronizerError, RequestError."""
        return await self._synchronizer.wait_changed()

    async def write(self, build: Build) -> int | None:
        """Write the update that follows from the newest state; return its offset.

        None where nothing is to be changed. Raises ReaderGroupError for an update that would have
        no effect, SynchronizerError, RequestError.
        """

        def function(state: GroupState) -> list[object] | None:
            update = build(state)
            if update is None:
                return None
            if (why := refusal(state, update)) is not None:
                raise ReaderGroupError(f"reader group {self._group}: {why}")
            return [dump_update(update)]

        return await self._synchronizer.update(function)

    async def compact(self) -> None:
        """Store the state as a mark, and delete the updates before it."""
        await self._synchronizer.compact()
