"""The topics: names, ids, partition counts and settings, kept in the metadata store.

A topic is stored before its files are created, and a deletion before its files are removed, so that
a start can finish either after a crash. Which partitions were created is stored after their files
are durable and before they serve: a start that does not find such a partition has lost it.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from fencelog.log.config import LogConfig
from fencelog.ports import MetadataStore
from fencelog.types import TopicId

TOPIC_PREFIX = "topic/"
DELETED_PREFIX = "deleted-topic/"
TRANSACTION_TOPIC = "__transaction_state"
GROUP_TOPIC = "__consumer_offsets"
VERSIONED_TOPIC = "__fencelog_versioned"
INTERNAL_TOPICS = frozenset({TRANSACTION_TOPIC, GROUP_TOPIC, VERSIONED_TOPIC})
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def name_problem(name: str) -> str | None:
    """Return why a topic may not have this name (Kafka's rule), or None."""
    if name in (".", ".."):
        return f"topic name {name!r} is not allowed"
    if not _LEGAL_NAME.fullmatch(name):
        return (
            f"topic name {name!r} is not allowed: use 1 to 249 of the characters a-z A-Z 0-9 . _ -"
        )
    return None


def _folded(name: str) -> str:
    return name.replace(".", "_")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic as it is stored."""

    name: str
    topic_id: TopicId
    partitions: int
    settings: Mapping[str, str]
    """The topic's own settings, by Kafka's topic configuration names."""
    created: frozenset[int] = frozenset()
    """The partitions whose files were created, durably."""

    @property
    def internal(self) -> bool:
        """Whether clients may not write to it (E9)."""
        return self.name in INTERNAL_TOPICS

    def log_config(self, defaults: Mapping[str, str]) -> LogConfig:
        """Return the topic's settings over the broker's defaults. Raises InvalidConfigError."""
        return LogConfig.from_topic_config({**defaults, **self.settings})

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(
            {
                "id": self.topic_id.hex(),
                "partitions": self.partitions,
                "settings": dict(self.settings),
                "created": _ranges(self.created),
            },
            sort_keys=True,
        ).encode()

    @classmethod
    def decode(cls, name: str, value: bytes) -> "Topic":
        """Return the topic of a stored form."""
        fields = json.loads(value)
        created = (range(first, last + 1) for first, last in fields.get("created", ()))
        return cls(
            name=name,
            topic_id=TopicId(bytes.fromhex(fields["id"])),
            partitions=fields["partitions"],
            settings=fields["settings"],
            created=frozenset(chain.from_iterable(created)),
        )


def _ranges(indexes: Iterable[int]) -> list[list[int]]:
    """Return the first and the last number of each run of consecutive ones."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return runs


class Catalog:
    """The stored topics, with a copy in memory."""

    def __init__(self, store: MetadataStore) -> None:
        """Empty until ``load``."""
        self._store = store
        self._topics: dict[str, Topic] = {}
        self._names: dict[TopicId, str] = {}
        self._folded: dict[str, str] = {}
        self._storing = asyncio.Lock()
        self.generation = 0
        """Grows with every change; what was derived from an older generation is stale."""

    async def load(self) -> list[tuple[str, TopicId]]:
        """Read all topics; return name and id of those whose deletion a crash interrupted."""
        deleted = []
        for key, value, _ in await self._store.list(DELETED_PREFIX):
            name = value.decode()
            topic_id = TopicId(bytes.fromhex(key.removeprefix(DELETED_PREFIX)))
            deleted.append((name, topic_id))
            await self._drop(name, topic_id)
        for key, value, _ in await self._store.list(TOPIC_PREFIX):
            self._put(Topic.decode(key.removeprefix(TOPIC_PREFIX), value))
        return deleted

    def get(self, name: str) -> Topic | None:
        """Return a topic by name."""
        return self._topics.get(name)

    def by_id(self, topic_id: TopicId) -> Topic | None:
        """Return a topic by id."""
        name = self._names.get(topic_id)
        return None if name is None else self._topics.get(name)

    def colliding(self, name: str) -> str | None:
        """Return another topic whose metric names would be the same (Kafka's rule), or None."""
        other = self._folded.get(_folded(name))
        return None if other == name else other

    def topics(self) -> list[Topic]:
        """Return all topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def partition_total(self) -> int:
        """Return the number of partitions of all topics."""
        return sum(topic.partitions for topic in self._topics.values())

    async def create(self, topic: Topic) -> bool:
        """Store a new topic; False when the name is taken."""
        stored = await self._store.put(
            TOPIC_PREFIX + topic.name, topic.encode(), expected_version=0
        )
        if stored is None:
            return False
        self._put(topic)
        return True

    async def change(self, topic: Topic) -> bool:
        """Store a topic's new settings or partition count; False if it was deleted meanwhile."""
        async with self._storing:
            return await self._change(topic)

    async def add_created(self, topic: Topic, indexes: Iterable[int]) -> bool:
        """Store that the files of these partitions are durable; False if the topic was deleted."""
        async with self._storing:
            current = self.by_id(topic.topic_id)
            if current is None:
                return False
            created = current.created.union(indexes)
            return created == current.created or await self._change(
                replace(current, created=created)
            )

    async def _change(self, topic: Topic) -> bool:
        key = TOPIC_PREFIX + topic.name
        cell = await self._store.get(key)
        if cell is None:
            return False
        stored = Topic.decode(topic.name, cell[0])
        if stored.topic_id != topic.topic_id:
            return False
        # The caller may have read the topic before partitions were added.
        topic = replace(topic, created=topic.created | stored.created)
        if await self._store.put(key, topic.encode(), expected_version=cell[1]) is None:
            return False
        self._put(topic)
        return True

    async def begin_deletion(self, topic: Topic) -> None:
        """Store the deletion, then remove the topic; its files may be deleted after this."""
        await self._store.put(
            DELETED_PREFIX + topic.topic_id.hex(), topic.name.encode(), expected_version=0
        )
        # Deleted from here on, even if the rest fails: the next start would finish the deletion.
        self._topics.pop(topic.name, None)
        self._names.pop(topic.topic_id, None)
        self._folded.pop(_folded(topic.name), None)
        self.generation += 1
        await self._drop(topic.name, topic.topic_id)

    async def end_deletion(self, topic_id: TopicId) -> None:
        """Remove the stored deletion, once the files are deleted."""
        key = DELETED_PREFIX + topic_id.hex()
        cell = await self._store.get(key)
        if cell is not None:
            await self._store.delete(key, expected_version=cell[1])

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        self._folded[_folded(topic.name)] = topic.name
        self.generation += 1

    async def _drop(self, name: str, topic_id: TopicId) -> None:
        """Remove the topic's entry unless it belongs to a later topic of the same name."""
        cell = await self._store.get(TOPIC_PREFIX + name)
        if cell is not None and Topic.decode(name, cell[0]).topic_id == topic_id:
            await self._store.delete(TOPIC_PREFIX + name, expected_version=cell[1])
