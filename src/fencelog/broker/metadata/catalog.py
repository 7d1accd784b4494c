"""The topics: names, ids, partition counts and settings, kept in the metadata store.

A topic is stored before its files are created, and a deletion before its files are removed, so that
a start can finish either after a crash. Which partitions were created is stored after their files
are durable and before they serve: a start that does not find such a partition has lost it.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from fencelog.coordination.streams.model import Stream
from fencelog.errors import CorruptionError, StorageError
from fencelog.log.config import LogConfig
from fencelog.ports import MetadataStore, MetadataWrite
from fencelog.types import TopicId, TopicPartition
from fencelog.wire.control import last_seal

TOPIC_PREFIX = "topic/"
DELETED_PREFIX = "deleted-topic/"
TRANSACTION_TOPIC = "__transaction_state"
GROUP_TOPIC = "__consumer_offsets"
VERSIONED_TOPIC = "__fencelog_versioned"
OWNERSHIP_TOPIC = "__fencelog_ownership"
INTERNAL_TOPICS = frozenset({TRANSACTION_TOPIC, GROUP_TOPIC, VERSIONED_TOPIC, OWNERSHIP_TOPIC})
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


def folded(name: str) -> str:
    """Return what two topics may not have in common: the name in metrics (Kafka's rule)."""
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
    stream: Stream | None = None
    """The segments, one for each partition, if the topic is a stream (R1)."""

    def __post_init__(self) -> None:
        """Check what the two counts have in common."""
        if self.stream is not None:
            assert len(self.stream.segments) == self.partitions, self.name

    @property
    def partition_names(self) -> list[TopicPartition]:
        """The names of its partitions."""
        return [TopicPartition(self.name, index) for index in range(self.partitions)]

    @property
    def without_files(self) -> frozenset[int]:
        """The segments whose files are removed, or are about to be."""
        segments = () if self.stream is None else self.stream.segments
        return frozenset(each.index for each in segments if each.removed is not None)

    def is_without_files(self, index: int) -> bool:
        """Whether a segment's files are removed, or are about to be."""
        segment = None if self.stream is None else self.stream.get(index)
        return segment is not None and segment.removed is not None

    def seal_of(self, index: int) -> bytes | None:
        """Return all that is left of a segment whose files are removed; None: it has files."""
        segment = None if self.stream is None else self.stream.get(index)
        if segment is None or segment.removed is None:
            return None
        return bytes(last_seal(segment.end, *segment.removed))

    @property
    def internal(self) -> bool:
        """Whether clients may not write to it (E9)."""
        return self.name in INTERNAL_TOPICS

    def log_config(self, defaults: Mapping[str, str]) -> LogConfig:
        """Return the topic's settings over the broker's defaults. Raises InvalidConfigError.

        A stream is never compacted, whatever default the broker was started with: what is newest of
        a key may be in another segment.
        """
        config = LogConfig.from_topic_config({**defaults, **self.settings})
        if self.stream is not None and "compact" in config.cleanup_policy:
            return replace(config, cleanup_policy=frozenset({"delete"}))
        return config

    def encode(self) -> bytes:
        """Return the stored form."""
        fields: dict[str, object] = {
            "id": self.topic_id.hex(),
            "partitions": self.partitions,
            "settings": dict(self.settings),
            "created": _ranges(self.created),
        }
        if self.stream is not None:
            fields["stream"] = self.stream.stored()
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def decode(cls, name: str, value: bytes) -> "Topic":
        """Return the topic of a stored form. Raises CorruptionError for segments that are none."""
        fields = json.loads(value)
        stream = None
        if (segments := fields.get("stream")) is not None:
            stream = Stream.of_stored(name, segments)
            if len(stream.segments) != fields["partitions"]:
                count = fields["partitions"]
                raise CorruptionError(
                    f"topic {name}: {count} partitions and {len(stream.segments)} segments"
                )
        created = (range(first, last + 1) for first, last in fields.get("created", ()))
        return cls(
            name=name,
            topic_id=TopicId(bytes.fromhex(fields["id"])),
            partitions=fields["partitions"],
            settings=fields["settings"],
            created=frozenset(chain.from_iterable(created)),
            stream=stream,
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
    """The stored topics, with a copy in memory.

    In a cluster the watch of the store keeps the copy (``apply``), and nothing is stored here.
    """

    def __init__(self, store: MetadataStore) -> None:
        """Empty until ``load``."""
        self._store = store
        self._topics: dict[str, Topic] = {}
        self._names: dict[TopicId, str] = {}
        self._folded: dict[str, str] = {}
        self._storing = asyncio.Lock()
        self.partition_total = 0
        """The number of partitions of all topics."""
        self.generation = 0
        """Grows with every change; what was derived from an older generation is stale."""
        self.stream_changed: Callable[[TopicId], None] = lambda topic_id: None
        """A stream was made, changed or deleted, in this step; it must not raise."""

    async def load(self) -> dict[TopicId, str]:
        """Read all topics; return the deleted ones, by id, whose files may still be here."""
        for key, value, _ in await self._store.list(TOPIC_PREFIX):
            self._put(Topic.decode(key.removeprefix(TOPIC_PREFIX), value))
        return {
            TopicId(bytes.fromhex(key.removeprefix(DELETED_PREFIX))): value.decode()
            for key, value, _ in await self._store.list(DELETED_PREFIX)
        }

    def get(self, name: str) -> Topic | None:
        """Return a topic by name."""
        return self._topics.get(name)

    def by_id(self, topic_id: TopicId) -> Topic | None:
        """Return a topic by id."""
        name = self._names.get(topic_id)
        return None if name is None else self._topics.get(name)

    def has(self, name: TopicPartition) -> bool:
        """Whether a topic has this partition, wherever its replicas are."""
        topic = self._topics.get(name.topic)
        return topic is not None and 0 <= name.partition < topic.partitions

    def colliding(self, name: str) -> str | None:
        """Return another topic whose metric names would be the same (Kafka's rule), or None."""
        other = self._folded.get(folded(name))
        return None if other == name else other

    def topics(self) -> list[Topic]:
        """Return all topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def apply(self, name: str, topic: Topic | None) -> None:
        """Let this be the topic of the name, as the store has it; None: it has none."""
        before = self._topics.get(name)
        if before is not None and (topic is None or topic.topic_id != before.topic_id):
            self._remove(before)
        if topic is not None:
            self._put(topic)
        self.generation += 1

    async def create(self, topics: Sequence[Topic]) -> bool:
        """Store new topics, all or none; False when a name is taken."""
        writes = [MetadataWrite(TOPIC_PREFIX + each.name, each.encode(), 0) for each in topics]
        if not await self._store.commit(writes):
            return False
        for each in topics:
            self._put(each)
        return True

    async def change(self, topic: Topic) -> bool:
        """Store a topic's new settings or partition count; False if it was deleted meanwhile."""
        async with self._storing:
            found = await self._stored(topic)
            if found is None:
                return False
            stored, version = found
            # The caller may have read the topic before partitions were added.
            created = topic.created | stored.created
            topic = replace(topic, created=created - topic.without_files)
            key = TOPIC_PREFIX + topic.name
            if await self._store.put(key, topic.encode(), expected_version=version) is None:
                return False
            self._put(topic)
            return True

    async def add_created(self, created: Mapping[TopicId, Iterable[int]]) -> None:
        """Store that the files of these partitions are durable; deleted topics are left out.

        Raises StorageError; nothing is stored then.
        """
        async with self._storing:
            writes, changed = [], []
            for topic_id, indexes in created.items():
                topic = self.by_id(topic_id)
                if topic is None or topic.created.issuperset(indexes):
                    continue
                found = await self._stored(topic)
                if found is not None:
                    topic = replace(topic, created=topic.created.union(indexes))
                    key = TOPIC_PREFIX + topic.name
                    writes.append(MetadataWrite(key, topic.encode(), found[1]))
                    changed.append(topic)
            if writes and not await self._store.commit(writes):
                raise StorageError("the metadata was changed by another process")
            for topic in changed:
                self._put(topic)

    async def _stored(self, topic: Topic) -> tuple[Topic, int] | None:
        """Return the stored form and its version; None if it is gone or another of its name."""
        cell = await self._store.get(TOPIC_PREFIX + topic.name)
        if cell is None:
            return None
        stored = Topic.decode(topic.name, cell[0])
        return (stored, cell[1]) if stored.topic_id == topic.topic_id else None

    async def begin_deletion(self, topics: Sequence[Topic]) -> None:
        """Store the deletion of topics and remove them; their files may be deleted after this."""
        gone = [MetadataWrite(TOPIC_PREFIX + each.name, None) for each in topics]
        deleted = [
            MetadataWrite(DELETED_PREFIX + each.topic_id.hex(), each.name.encode())
            for each in topics
        ]
        async with self._storing:
            await self._store.commit(gone + deleted)
            for each in topics:
                self._remove(each)
            self.generation += 1

    async def end_deletion(self, topic_ids: Iterable[TopicId]) -> None:
        """Remove the stored deletions, once the files are deleted."""
        await self._store.commit(
            [MetadataWrite(DELETED_PREFIX + each.hex(), None) for each in topic_ids]
        )

    def _remove(self, topic: Topic) -> None:
        self.partition_total -= self._topics.pop(topic.name).partitions
        self._names.pop(topic.topic_id, None)
        self._folded.pop(folded(topic.name), None)
        if topic.stream is not None:
            self.stream_changed(topic.topic_id)

    def _put(self, topic: Topic) -> None:
        before = self._topics.get(topic.name)
        self.partition_total += topic.partitions - (before.partitions if before else 0)
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        self._folded[folded(topic.name)] = topic.name
        self.generation += 1
        if topic.stream is not None:
            self.stream_changed(topic.topic_id)
