"""What a client knows of topics that may be streams, for all of its writers (R1).

A topic is asked about once, when a writer first uses it, and only at a broker that knows streams.
Whether it is one never changes, so the answer holds as long as the topic's id does; ranges change
with what the segments answer.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from fencelog.client.retry import Backoff, retrying
from fencelog.client.streams.ranges import Ranges, ranges_of
from fencelog.coordination.streams.model import HASH_SPACE
from fencelog.errors import ErrorCode, FencelogError
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import NO_TOPIC_ID, TopicId
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.hot import Successor

if TYPE_CHECKING:
    from fencelog.client.cluster import Cluster
    from fencelog.client.streams.model import StreamDescription

Places = int | Ranges
"""Where a writer may put a topic's records: that many partitions, or a stream's segments."""


class ExplicitPartitionError(FencelogError, ValueError):
    """A writer asked for a partition of a stream, whose records go where their keys belong."""

    def __init__(self, topic: str, partition: int) -> None:
        """Say what to do instead."""
        super().__init__(
            f"topic {topic} is a stream: a record's key chooses its segment; name no partition "
            f"(it was {partition}), and give records that belong together the same key"
        )


class _Known(NamedTuple):
    topic_id: TopicId
    ranges: Ranges | None
    """None: the topic is no stream."""


class KnownStreams:
    """Which topics are streams, and their ranges."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._known: dict[str, _Known] = {}

    def knows(self, topic: str, topic_id: TopicId) -> bool:
        """Whether it is known if this topic is a stream."""
        known = self._known.get(topic)
        return known is not None and known.topic_id == topic_id

    def ranges(self, topic: str, topic_id: TopicId) -> Ranges | None:
        """Return the ranges of a stream; None for any other topic."""
        known = self._known.get(topic)
        return known.ranges if known is not None and known.topic_id == topic_id else None

    def learn(self, topic: str, topic_id: TopicId, ranges: Ranges | None) -> None:
        """Take what a broker has described."""
        older = self.ranges(topic, topic_id)
        if older is not None and ranges is not None:
            both = Ranges(topic_id, ranges.covering, {**older.known, **ranges.known})
            ranges = both.with_newer(older.known[each.segment] for each in older.covering)
        self._known[topic] = _Known(topic_id, ranges)

    def learn_successors(
        self, topic: str, topic_id: TopicId, successors: Iterable[Successor]
    ) -> None:
        """Take what a sealed segment has answered."""
        ranges = self.ranges(topic, topic_id)
        if ranges is not None:
            self._known[topic] = _Known(topic_id, ranges.with_newer(successors))

    def range_of(self, topic: str, topic_id: TopicId, segment: int) -> Successor:
        """Return the range of a segment: all hashes if it is not known."""
        ranges = self.ranges(topic, topic_id)
        found = None if ranges is None else ranges.known.get(segment)
        return found or Successor(segment, 0, HASH_SPACE)


async def find_places(cluster: "Cluster", topics: list[str], highest: int) -> dict[str, Places]:
    """Return where records of each topic may be put; see ``Cluster.places``."""
    deadline, backoff = cluster.deadline(), Backoff()
    while True:
        counts = await cluster.partition_counts(topics, highest)
        ids = {name: cluster.topic_id(name) or NO_TOPIC_ID for name in topics}
        unknown = {n: each for n, each in ids.items() if not cluster.streams.knows(n, each)}
        created_anew = await _ask(cluster, unknown, deadline) if unknown else []
        if not created_anew:
            return {
                name: cluster.streams.ranges(name, ids[name]) or counts[name] for name in topics
            }
        for name in created_anew:
            cluster.forget(name)
        await backoff.wait(deadline)
        if deadline.passed:
            what = f"topic {created_anew[0]}"
            raise failure(ErrorCode.UNKNOWN_TOPIC_ID, what, "brokers do not agree on its id")


async def _ask(cluster: "Cluster", wanted: dict[str, TopicId], deadline: Deadline) -> list[str]:
    """Learn which of these topics, with the ids that the metadata have, are streams.

    Returns those that have other ids: they were created anew.
    """
    # Its messages are loaded only where there may be streams.
    from fencelog.client.streams.admin import description
    from fencelog.wire.messages.describe_streams import (
        DescribeStreamsRequest,
        DescribeStreamsResponse,
    )

    async def ask(connection: Connection) -> DescribeStreamsResponse | None:
        if ApiKey.DESCRIBE_STREAMS not in connection.versions:
            return None
        request = DescribeStreamsRequest(names=list(wanted))
        return await cluster.ask(connection, request, DescribeStreamsResponse, deadline)

    async def attempt() -> "list[StreamDescription]":
        answer = await cluster.of_any_broker(ask, deadline)
        streams = () if answer is None else answer.streams
        return [description(each) for each in streams if each.error_code or each.segments]

    # A topic that the first broker has not heard of yet is asked for once more.
    found = {each.name: each for each in await retrying(attempt, deadline, lambda: None)}
    for name, topic_id in wanted.items():
        described = found.get(name)
        if described is None:
            cluster.streams.learn(name, topic_id, None)
        elif (problem := described.stream.problem()) is not None:
            raise failure(ErrorCode.UNKNOWN_SERVER_ERROR, f"segments of stream {name}", problem)
        else:
            ranges = ranges_of(described.topic_id, described.stream)
            cluster.streams.learn(name, described.topic_id, ranges)
    return [name for name in found if found[name].topic_id != wanted[name]]
