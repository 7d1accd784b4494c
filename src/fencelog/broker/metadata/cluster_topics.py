"""Creates, deletes and configures topics in a cluster, on any of its brokers.

The same methods as ``Controller`` has for one broker. A change is stored by comparing the versions
that were read, and is answered once this broker's own copy of the metadata has it: opening and
removing partitions follows from that, on every broker alike.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fencelog.broker.config import BrokerConfig
from fencelog.broker.metadata.catalog import (
    DELETED_PREFIX,
    INTERNAL_TOPICS,
    TOPIC_PREFIX,
    Catalog,
    Topic,
    folded,
)
from fencelog.broker.metadata.changes import Changes
from fencelog.broker.metadata.cluster_state import (
    ClusterState,
    PartitionKey,
    StoredTopic,
    encoded_deletion,
)
from fencelog.broker.metadata.contended_keys import seen, until_stored
from fencelog.broker.metadata.controller import INTERNAL_SETTINGS, Change, NewTopic, TopicChange
from fencelog.broker.metadata.known_commits import WRITES_MAX, commit_in_parts, commit_known
from fencelog.broker.metadata.settings import SETTINGS_PREFIX, Settings, encoded_settings
from fencelog.broker.metadata.topic_rules import (
    check_name_free,
    check_no_collision,
    check_partition_count,
    check_partition_total,
    existing_topic,
    valid_config,
)
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.controller.model import PartitionState
from fencelog.coordination.controller.placement import assigned, placed
from fencelog.coordination.controller.rules import Refused
from fencelog.errors import ErrorCode, NotCoordinatorError, NotLeaderError, RequestError
from fencelog.log.config import LogConfig
from fencelog.ports import MetadataStore, MetadataWrite, Random
from fencelog.types import NodeId, TopicId, TopicPartition

Opened = Callable[[Topic], Awaitable[None]]
"""Returns when this broker's replicas of a new topic serve, or cannot."""


async def _at_once(topic: Topic) -> None:
    del topic


class ReplicationFactors(NamedTuple):
    """How many replicas a partition has where nobody says."""

    default: int
    internal: int
    """Of internal topics, and fewer while there are fewer brokers."""


class _Planned(NamedTuple):
    """A topic to be created, and the first states of its partitions."""

    topic: Topic
    states: Sequence[PartitionState]


class ClusterTopics:
    """Changes the cluster's topics and settings in the metadata store."""

    def __init__(
        self,
        config: BrokerConfig,
        catalog: Catalog,
        settings: Settings,
        state: ClusterState,
        store: MetadataStore,
        logs: LogManager,
        random: Random,
        factors: ReplicationFactors,
    ) -> None:
        """``catalog`` and ``settings`` are those that a ``ClusterFeed`` keeps."""
        self._config = config
        self._catalog = catalog
        self._settings = settings
        self._state = state
        self._store = store
        self._logs = logs
        self._random = random
        self._factors = factors
        self._changes = Changes()
        self.opened: Opened = _at_once
        """Waits for this broker's replicas of a new topic; set before the first use."""

    async def stop(self) -> None:
        """Wait for changes in progress, and accept no more."""
        await self._changes.stop()

    async def refresh(self, names: Iterable[str]) -> None:
        """Wait until this broker knows these topics as they are stored now. Raises RequestError."""
        await self._changes.run(lambda: self._refresh(names))

    async def _refresh(self, names: Iterable[str]) -> None:
        for key in (TOPIC_PREFIX + name for name in names):
            await seen(self._state, self._store, key, self._state.versions.get(key, 0))

    # -- new topics ----------------------------------------------------------------------------

    def check_new_topic(self, new: NewTopic) -> None:
        """Check that a topic may be created with its settings. Raises RequestError."""
        check_name_free(self._catalog, new.name)
        self.valid(new.settings, is_stream=new.stream is not None)

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic. Raises RequestError."""
        (created,) = await self.create_topics([NewTopic(name, partitions, settings)])
        if isinstance(created, RequestError):
            raise created
        return created

    async def create_topics(self, requested: Sequence[NewTopic]) -> list[Topic | RequestError]:
        """Create topics, each of which succeeds or fails alone.

        Raises RequestError if the store fails: some may be created then.
        """
        return await self._changes.run(lambda: self._create(requested))

    async def _create(self, requested: Sequence[NewTopic]) -> list[Topic | RequestError]:
        # A name that another broker has freed is not taken. One that it has taken is a conflict.
        await self._refresh(each.name for each in requested if self._catalog.get(each.name))
        planned = self._plan(requested)
        refused = {name: each for name, each in planned.items() if isinstance(each, RequestError)}
        new = [each for each in planned.values() if isinstance(each, _Planned)]
        created = await self._store_topics(new)
        stored = [each.topic.name for each in new if each.topic.name in created]
        if stored:
            await seen(self._state, self._store, TOPIC_PREFIX + stored[-1], before=0)
        # Who is told that a topic exists finds it here.
        await self._refresh(each.topic.name for each in new if each.topic.name not in created)
        for each in new:
            name = each.topic.name
            if name in created:
                await self.opened(each.topic)
            else:
                refused[name] = _exists(name)
        topics = {each.topic.name: each.topic for each in new}
        return [refused.get(each.name) or topics[each.name] for each in requested]

    def _plan(self, requested: Sequence[NewTopic]) -> dict[str, _Planned | RequestError]:
        """Place the partitions of topics that may be created; others get the reason."""
        planned: dict[str, _Planned | RequestError] = {}
        names: dict[str, str] = {}
        existing = [each.state for each in self._state.partitions.values()]
        partitions = 0
        for each in requested:
            try:
                check_partition_total(
                    self._catalog,
                    each.name,
                    partitions + each.partitions,
                    self._config.partitions_max,
                )
                self.check_new_topic(each)
                check_no_collision(each.name, names.get(folded(each.name)))
                states = self._placed(each, existing)
            except RequestError as error:
                planned[each.name] = error
                continue
            names[folded(each.name)] = each.name
            partitions += each.partitions
            existing += states
            topic = Topic(
                name=each.name,
                topic_id=TopicId(self._random.bytes(16)),
                partitions=len(states),
                settings=each.settings,
                stream=each.stream,
            )
            planned[each.name] = _Planned(topic, states)
        return planned

    def _placed(self, new: NewTopic, existing: Iterable[PartitionState]) -> list[PartitionState]:
        """Return the first states of a topic's partitions. Raises RequestError."""
        brokers = self._state.brokers
        if new.assignment:
            states = assigned(new.assignment, brokers)
        else:
            factor = new.replication_factor
            if factor == -1 and new.name in INTERNAL_TOPICS:
                factor = max(1, min(self._factors.internal, len(brokers)))
            elif factor == -1:
                factor = self._factors.default
            states = placed(new.partitions, factor, brokers, existing)
        if isinstance(states, Refused):
            raise RequestError(states.error, f"topic {new.name}: {states.reason}")
        return states

    async def _store_topics(self, new: Sequence[_Planned]) -> set[str]:
        """Store topics with their partitions; return the names of those that were free.

        Many small ones in one commit. Of one that does not fit into a commit the partitions go
        first: the topic's key makes it one.
        """
        created: set[str] = set()
        small: list[_Planned] = []
        size = 0
        for each in new:
            writes = 1 + len(each.states)
            if size + writes > WRITES_MAX:
                created |= await self._store_together(small)
                small, size = [], 0
            small.append(each)
            size += writes
        return created | await self._store_together(small)

    async def _store_together(self, new: Sequence[_Planned]) -> set[str]:
        writes = [write for each in new for write in _writes(each)]
        if writes and await commit_in_parts(self._store, writes):
            return {each.topic.name for each in new}
        if len(new) < 2:
            return set()
        # A name is taken; the others are not.
        return {
            each.topic.name for each in new if await commit_in_parts(self._store, _writes(each))
        }

    async def open_internal(self, topic_name: str, index: int) -> Partition:
        """Return the partition of an internal topic that is led here; create the topic if needed.

        Raises NotCoordinatorError if another broker leads it, and NotLeaderError while that is not
        known or it is not open.
        """
        assert topic_name in INTERNAL_TOPICS, topic_name
        topic = self._catalog.get(topic_name)
        if topic is None:
            try:
                topic = await self.create_topic(
                    topic_name, self._config.internal_partitions, INTERNAL_SETTINGS
                )
            except RequestError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise NotLeaderError(str(error)) from error
                topic = self._catalog.get(topic_name)
        name, stored = TopicPartition(topic_name, index), None
        if topic is not None:
            stored = self._state.partitions.get(PartitionKey(topic.topic_id, index))
        if stored is None:
            raise NotLeaderError(f"{name} is not known yet")
        if stored.state.leader != self._config.node_id:
            raise NotCoordinatorError(f"{name} is led by broker {stored.state.leader}")
        return self._logs.find(name)

    # -- partitions ----------------------------------------------------------------------------

    def check_partition_count(self, topic: Topic, count: int) -> None:
        """Check that a topic may get this many partitions. Raises RequestError."""
        check_partition_count(self._catalog, topic, count, self._config.partitions_max)

    async def add_partitions(
        self, topic: Topic, count: int, assignment: Sequence[Sequence[NodeId]] = ()
    ) -> None:
        """Raise a topic's partition count to ``count``. Raises RequestError.

        ``assignment``: the replicas of each new partition, if the request names them.
        """

        def added(stored: Topic) -> Topic:
            self.check_partition_count(stored, count)
            return replace(stored, partitions=count)

        await self.change_topic(topic.name, added, assignment)

    async def change_topic(
        self,
        name: str,
        change: TopicChange,
        assignment: Sequence[Sequence[NodeId]] = (),
        *,
        led: Collection[int] = (),
    ) -> Topic:
        """Store what ``change`` makes of a topic, with the partitions that it adds, in one step.

        ``change`` is called with what is stored, again after a conflict. ``led``: partitions whose
        states must be those that this broker knew then, and name it. Raises RequestError.
        """
        changed: list[Topic] = []

        def writes(stored: StoredTopic) -> list[MetadataWrite]:
            changed[:] = [topic := change(stored.topic)]
            if topic is stored.topic:
                return []
            added = range(stored.topic.partitions, topic.partitions)
            states = self._more(stored.topic, topic.partitions, assignment) if added else []
            keys = [PartitionKey(topic.topic_id, index).text for index in added]
            return [
                _topic_write(stored, topic),
                # An attempt that did not get as far as the topic may have left some.
                *(
                    MetadataWrite(key, state.encode(), self._state.versions.get(key, 0))
                    for key, state in zip(keys, states, strict=True)
                ),
            ]

        async def run() -> Topic:
            before = existing_topic(self._catalog, name).partitions
            await self._change_topic(name, writes, led)
            (topic,) = changed
            seen = self._catalog.by_id(topic.topic_id)
            # Who resizes a stream waits for its segments' leaders instead, wherever they are.
            if seen is not None and topic.partitions > before and topic.stream is None:
                await self.opened(seen)
            return topic

        return await self._changes.run(run)

    def _led_versions(self, topic_id: TopicId, indexes: Collection[int]) -> dict[str, int]:
        """Return the keys of partitions that this broker leads, and their versions."""
        versions = {}
        for key in (PartitionKey(topic_id, index) for index in indexes):
            known = self._state.partitions.get(key)
            if known is None or known.state.leader != self._config.node_id:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                raise RequestError(code, f"partition {key.partition} is led here no more")
            versions[key.text] = known.version
        return versions

    async def open_partitions(self, topic_id: TopicId, indexes: Collection[int]) -> bool:
        """Return True: each broker opens what it holds as it sees the metadata."""
        del topic_id, indexes
        return True

    def _more(
        self, topic: Topic, count: int, assignment: Sequence[Sequence[NodeId]]
    ) -> list[PartitionState]:
        """Return the first states of more partitions, with as many replicas as the first one has.

        Raises RequestError.
        """
        first = self._state.partitions.get(PartitionKey(topic.topic_id, 0))
        if first is None:
            raise RequestError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the replicas of {topic.name}-0 are unknown"
            )
        factor, more = len(first.state.replicas), count - topic.partitions
        if assignment and {len(each) for each in assignment} != {factor}:
            raise RequestError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
                f"topic {topic.name} has {factor} replicas of each partition",
            )
        existing = [each.state for each in self._state.partitions.values()]
        states = (
            assigned(assignment, self._state.brokers)
            if assignment
            else placed(more, factor, self._state.brokers, existing)
        )
        if isinstance(states, Refused):
            raise RequestError(states.error, f"topic {topic.name}: {states.reason}")
        return states

    # -- deletion ------------------------------------------------------------------------------

    async def delete_topic(self, topic: Topic) -> None:
        """Delete one topic; see ``delete_topics``."""
        await self.delete_topics([topic])

    async def delete_topics(self, topics: Sequence[Topic]) -> None:
        """Delete topics. Raises RequestError; some may be deleted then.

        Each broker removes its files when it sees the deletion, the controller the partitions.
        """

        async def run() -> None:
            for topic in topics:
                await self._delete(topic)

        await self._changes.run(run)

    async def _delete(self, topic: Topic) -> None:
        replicas = {
            node
            for index in range(topic.partitions)
            if (stored := self._state.partitions.get(PartitionKey(topic.topic_id, index)))
            for node in stored.state.replicas
        }
        key = DELETED_PREFIX + topic.topic_id.hex()

        def writes(stored: StoredTopic) -> list[MetadataWrite]:
            if stored.topic.topic_id != topic.topic_id:
                raise _unknown(topic.name)
            return [
                MetadataWrite(TOPIC_PREFIX + topic.name, None, stored.version),
                MetadataWrite(key, encoded_deletion(topic.name, replicas), 0),
            ]

        try:
            await self._change_topic(topic.name, writes)
        except RequestError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise  # else another request has deleted it already

    async def files_removed(self, topic_id: TopicId) -> None:
        """Store that this broker has nothing of a deleted topic any more. Raises StorageError."""
        node = NodeId(self._config.node_id)
        while (deleted := self._state.deleted.get(topic_id)) and node in deleted.brokers:
            key = DELETED_PREFIX + topic_id.hex()
            value = encoded_deletion(deleted.name, (n for n in deleted.brokers if n != node))
            await commit_known(self._store, [MetadataWrite(key, value, deleted.version)])
            version = deleted.version
            await self._state.until(lambda: self._state.versions.get(key, 0) != version)  # noqa: B023 - awaited here

    # -- settings ------------------------------------------------------------------------------

    def valid(
        self,
        settings: Mapping[str, str],
        defaults: Mapping[str, str] | None = None,
        *,
        is_stream: bool = False,
    ) -> LogConfig:
        """Return the log config of these topic settings over the defaults. Raises RequestError."""
        defaults = self._settings.topic_defaults if defaults is None else defaults
        return valid_config(settings, defaults, is_stream=is_stream)

    async def configure_topic(self, name: str, change: Change) -> None:
        """Apply ``change`` to a topic's settings. Raises RequestError; nothing is stored then."""

        def writes(stored: StoredTopic) -> list[MetadataWrite]:
            settings = change(stored.topic.settings)
            self.valid(settings, is_stream=stored.topic.stream is not None)
            return [_topic_write(stored, replace(stored.topic, settings=settings))]

        await self._changes.run(lambda: self._change_topic(name, writes))

    async def configure_broker(self, scope: str, change: Change) -> None:
        """Change the defaults of all topics, by broker config names; as ``configure_topic``."""
        key = SETTINGS_PREFIX + scope

        async def attempt() -> bool:
            settings = change(self._settings.changed(scope))
            defaults = self._settings.topic_defaults_with(scope, settings)
            for topic in self._catalog.topics():
                self.valid(topic.settings, defaults, is_stream=topic.stream is not None)
            self.valid({}, defaults)
            version = self._state.versions.get(key, 0)
            write = MetadataWrite(key, encoded_settings(settings), version)
            return await commit_known(self._store, [write])

        await self._changes.run(lambda: until_stored(self._state, self._store, key, attempt))

    # -- inside --------------------------------------------------------------------------------

    async def _change_topic(
        self,
        name: str,
        writes: Callable[[StoredTopic], list[MetadataWrite]],
        led: Collection[int] = (),
    ) -> None:
        """Commit what follows from the topic as it is; again after a conflict."""

        async def attempt() -> bool:
            existing_topic(self._catalog, name)
            stored = self._state.topics[name]
            found = writes(stored)
            if found and led:
                unchanged = self._led_versions(stored.topic.topic_id, led)
                return await commit_known(self._store, found, unchanged=unchanged)
            return not found or await commit_in_parts(self._store, found)

        await until_stored(self._state, self._store, TOPIC_PREFIX + name, attempt)


def _writes(planned: _Planned) -> list[MetadataWrite]:
    """Return a new topic's key, then its partitions'."""
    topic, states = planned
    return [
        MetadataWrite(TOPIC_PREFIX + topic.name, topic.encode(), 0),
        *(
            MetadataWrite(PartitionKey(topic.topic_id, index).text, state.encode(), 0)
            for index, state in enumerate(states)
        ),
    ]


def _topic_write(stored: StoredTopic, topic: Topic) -> MetadataWrite:
    return MetadataWrite(TOPIC_PREFIX + topic.name, topic.encode(), stored.version)


def _exists(name: str) -> RequestError:
    return RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")


def _unknown(name: str) -> RequestError:
    return RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
