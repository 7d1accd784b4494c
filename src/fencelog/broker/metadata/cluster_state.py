"""What the metadata store holds of the cluster, as a copy in memory that a watch keeps up to date.

The copy is that of one revision of the store, always: the changes of one commit are applied at
once, and subscribers are told then. It may be late; who writes compares the versions that it read.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from fencelog.broker.metadata.catalog import DELETED_PREFIX, TOPIC_PREFIX, Topic, name_problem
from fencelog.broker.metadata.granted import COORDINATOR_EPOCH_PREFIX, PRODUCER_ID_KEY, granted_by
from fencelog.broker.metadata.settings import SETTINGS_PREFIX
from fencelog.coordination.controller.model import (
    BROKER_PREFIX,
    CONTROLLER_KEY,
    PARTITION_PREFIX,
    PartitionState,
    Registration,
)
from fencelog.coordination.controller.rules import LiveBroker
from fencelog.errors import CorruptionError, HistoryLostError, StorageError
from fencelog.ports import MetadataChange, MetadataStore
from fencelog.storage.granted import Granted
from fencelog.types import NodeId, TopicId

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""After which time a store that could not be read is asked again."""
NEWS_TIMEOUT_S = 1.0
"""How long the watch may take to show what was committed, or why it was not."""
TOPIC_ID_BYTES = 16
PARTITIONS_MAX = 1_000_000
"""A topic with more is none that a broker has made."""

UNCLEAN_PREFIX = "unclean/"


class PartitionKey(NamedTuple):
    """One partition by its topic's id: a name may be another topic's later."""

    topic_id: TopicId
    partition: int

    @property
    def text(self) -> str:
        """The key in the metadata store."""
        return f"{PARTITION_PREFIX}{self.topic_id.hex()}/{self.partition}"


class StoredTopic(NamedTuple):
    """A topic, and the version of its key."""

    topic: Topic
    version: int


class StoredState(NamedTuple):
    """A partition's state, and the version of its key: the partition epoch."""

    state: PartitionState
    version: int


class DeletedTopic(NamedTuple):
    """A deleted topic, until all brokers have removed its files."""

    name: str
    brokers: tuple[NodeId, ...]
    """Those that may still have files of it."""
    version: int


class ControllerKey(NamedTuple):
    """The broker that runs the controller's rules."""

    node_id: NodeId
    incarnation: str
    version: int


@dataclass(slots=True)
class Changed:
    """What one commit has changed; what is named may be new, different or gone."""

    brokers: set[NodeId] = field(default_factory=set)
    controller: bool = False
    topics: set[str] = field(default_factory=set)
    deleted: set[TopicId] = field(default_factory=set)
    settings: set[str] = field(default_factory=set)
    partitions: set[PartitionKey] = field(default_factory=set)
    granted: bool = False


Subscriber = Callable[[Changed], None]


def broker_key(node_id: NodeId) -> str:
    """Return the key of a broker's registration."""
    return f"{BROKER_PREFIX}{node_id}"


def registration_versions(
    brokers: Mapping[NodeId, LiveBroker], states: Iterable[PartitionState]
) -> dict[str, int]:
    """Return what a commit of these states compares: the registrations of all their replicas.

    By key, in order; 0 for a broker that is not among these.
    """
    read = {node for each in states for node in each.replicas}
    return {
        broker_key(node): brokers[node].version if node in brokers else 0 for node in sorted(read)
    }


def unclean_key(partition: PartitionKey) -> str:
    """Return the key that is there from an unclean election until the coordinator has acted."""
    return UNCLEAN_PREFIX + partition.text.removeprefix(PARTITION_PREFIX)


class ClusterState:
    """Brokers, controller, topics, settings and partitions with the versions of their keys.

    A key that cannot be read is named in the log, and the copy is without it.
    """

    def __init__(self, store: MetadataStore) -> None:
        """Empty until ``start``."""
        self._store = store
        self.revision = 0
        """The revision of the store that this is the copy of."""
        self.versions: dict[str, int] = {}
        """The version of every key, also of those that cannot be read."""
        self.brokers: dict[NodeId, LiveBroker] = {}
        self.controller: ControllerKey | None = None
        self.topics: dict[str, StoredTopic] = {}
        self.deleted: dict[TopicId, DeletedTopic] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.partitions: dict[PartitionKey, StoredState] = {}
        self.granted = Granted()
        """The highest numbers that the store has ever shown here."""
        self._subscribers: list[Subscriber] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._has_ended = False

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call this after each change, in the order of the commits; it must not raise."""
        self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Do not call it any more."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, which is looked at after each change.

        Raises StorageError where it cannot hold any more: ``run`` has ended.
        """
        while not condition():
            if self._has_ended:
                raise StorageError("this broker does not follow the metadata any more: it stops")
            news = asyncio.get_running_loop().create_future()
            self._waiting.append(news)
            await news

    async def until_soon(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, after ``NEWS_TIMEOUT_S``, or when ``run`` has ended.

        For those who wait to see a commit, theirs or another's, and compare versions in any case.
        """
        with suppress(TimeoutError, StorageError):
            async with asyncio.timeout(NEWS_TIMEOUT_S):
                await self.until(condition)

    async def start(self) -> None:
        """Read all there is. Raises StorageError."""
        snapshot = await self._store.snapshot("")
        present = {key: MetadataChange(key, value, each) for key, value, each in snapshot.cells}
        changes = [each for key, each in present.items() if self.versions.get(key) != each.version]
        changes += [
            MetadataChange(key, None, snapshot.revision)
            for key in self.versions
            if key not in present
        ]
        self._take(changes, snapshot.revision)

    async def run(self) -> None:
        """Follow the store until it is closed; call ``start`` first."""
        try:
            await self._follow()
        finally:
            self._has_ended = True
            self._wake()

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self._store.watch("", self.revision):
                    self._take(changes, changes[0].version)
            except HistoryLostError as error:
                log.warning("%s: reading all of it", error)
            else:
                return
            await self._read_again()

    async def _read_again(self) -> None:
        while True:
            try:
                return await self.start()
            except StorageError as error:
                log.warning("the metadata cannot be read, trying again: %s", error)
                await asyncio.sleep(RETRY_S)

    def _take(self, changes: Iterable[MetadataChange], revision: int) -> None:
        """Apply the changes of one revision, and tell of them."""
        changed = Changed()
        for key, value, version in changes:
            if value is None:
                self.versions.pop(key, None)
                self._apply(key, None, version, changed)
                continue
            self.versions[key] = version
            try:
                self._apply(key, value, version, changed)
            except (CorruptionError, ValueError, TypeError, KeyError, AttributeError) as error:
                log.error("metadata key %s cannot be read and is left out: %s", key, error)  # noqa: TRY400 - what another wrote needs no traceback
                self._apply(key, None, version, changed)
        self.revision = revision
        for subscriber in tuple(self._subscribers):
            subscriber(changed)
        self._wake()

    def _wake(self) -> None:
        """Let those who wait look at their conditions."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _apply(self, key: str, value: bytes | None, version: int, changed: Changed) -> None:
        """Apply one key; a value of None removes it. Raises what decoding raises.

        A key that is none of the cluster's is somebody else's, or another part's of the broker.
        """
        if key == CONTROLLER_KEY:
            self.controller = None if value is None else _controller(value, version)
            changed.controller = True
        elif key.startswith(TOPIC_PREFIX):
            self._apply_topic(key.removeprefix(TOPIC_PREFIX), value, version, changed)
        elif key.startswith(SETTINGS_PREFIX):
            self._apply_settings(key.removeprefix(SETTINGS_PREFIX), value, changed)
        elif key.startswith(BROKER_PREFIX):
            self._apply_broker(key, value, version, changed)
        elif key.startswith(PARTITION_PREFIX):
            self._apply_partition(key, value, version, changed)
        elif key.startswith(DELETED_PREFIX):
            self._apply_deleted(key, value, version, changed)
        elif key == PRODUCER_ID_KEY or key.startswith(COORDINATOR_EPOCH_PREFIX):
            before = self.granted
            if value is not None:
                self.granted = before.and_also(granted_by(key, value))
            changed.granted |= self.granted != before

    def _apply_topic(self, name: str, value: bytes | None, version: int, changed: Changed) -> None:
        if value is None:
            self.topics.pop(name, None)
        else:
            if problem := name_problem(name):
                raise ValueError(problem)
            self.topics[name] = StoredTopic(_checked(Topic.decode(name, value)), version)
        changed.topics.add(name)

    def _apply_settings(self, scope: str, value: bytes | None, changed: Changed) -> None:
        if value is None:
            self.settings.pop(scope, None)
        else:
            self.settings[scope] = {str(k): str(v) for k, v in json.loads(value).items()}
        changed.settings.add(scope)

    def _apply_broker(self, key: str, value: bytes | None, version: int, changed: Changed) -> None:
        node_id = _number(key, BROKER_PREFIX)
        if node_id is None:
            if value is not None:
                raise ValueError("no broker's number")
            return
        node = NodeId(node_id)
        if value is None:
            self.brokers.pop(node, None)
        else:
            registration = Registration.decode(key, value)
            if registration.node_id != node:
                raise ValueError(f"it is of broker {registration.node_id}")
            self.brokers[node] = LiveBroker(registration, version)
        changed.brokers.add(node)

    def _apply_partition(
        self, key: str, value: bytes | None, version: int, changed: Changed
    ) -> None:
        partition = _partition(key)
        if partition is None:
            if value is not None:
                raise ValueError("no partition's name")
            return
        if value is None:
            self.partitions.pop(partition, None)
        else:
            state = PartitionState.decode(key, value)
            if not state.replicas:
                raise ValueError("it has no replicas")
            self.partitions[partition] = StoredState(state, version)
        changed.partitions.add(partition)

    def _apply_deleted(self, key: str, value: bytes | None, version: int, changed: Changed) -> None:
        topic_id = _topic_id(key.removeprefix(DELETED_PREFIX))
        if topic_id is None:
            if value is not None:
                raise ValueError("no topic id")
            return
        if value is None:
            self.deleted.pop(topic_id, None)
        else:
            fields = json.loads(value)
            brokers = tuple(NodeId(int(each)) for each in fields["brokers"])
            self.deleted[topic_id] = DeletedTopic(str(fields["name"]), brokers, version)
        changed.deleted.add(topic_id)


def encoded_deletion(name: str, brokers: Iterable[NodeId]) -> bytes:
    """Return the stored form of a deleted topic, with the brokers that may have files of it."""
    return json.dumps({"name": name, "brokers": sorted(brokers)}).encode()


def encoded_controller(node_id: NodeId, incarnation: str) -> bytes:
    """Return the stored form of the controller's key."""
    return json.dumps({"node_id": node_id, "incarnation": incarnation}).encode()


def _checked(topic: Topic) -> Topic:
    """Return a topic whose fields are what fencelog writes. Raises ValueError."""
    if len(topic.topic_id) != TOPIC_ID_BYTES:
        raise ValueError("its id has not 16 bytes")
    if type(topic.partitions) is not int or not 0 < topic.partitions <= PARTITIONS_MAX:
        raise ValueError(f"it has {topic.partitions!r:.100} partitions")
    if any(type(each) is not str for pair in topic.settings.items() for each in pair):
        raise ValueError("a setting is no text")
    return topic


def _controller(value: bytes, version: int) -> ControllerKey:
    fields = json.loads(value)
    return ControllerKey(NodeId(int(fields["node_id"])), str(fields["incarnation"]), version)


def _number(text: str, prefix: str) -> int | None:
    """Return the number after a prefix, if it is written as fencelog writes it."""
    number = text.removeprefix(prefix)
    if not (number.isascii() and number.isdigit()):
        return None
    return int(number) if str(int(number)) == number else None


def _topic_id(text: str) -> TopicId | None:
    try:
        topic_id = TopicId(bytes.fromhex(text))
    except ValueError:
        return None
    return topic_id if len(topic_id) == TOPIC_ID_BYTES and topic_id.hex() == text else None


def _partition(key: str) -> PartitionKey | None:
    text, _, number = key.removeprefix(PARTITION_PREFIX).partition("/")
    topic_id, index = _topic_id(text), _number(number, "")
    return None if topic_id is None or index is None else PartitionKey(topic_id, index)
