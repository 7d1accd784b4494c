"""The blocking client's calls about streams."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from fencelog.client.connected import ConnectedClient
from fencelog.client.streams.admin import StreamAdmin
from fencelog.client.streams.model import StreamDescription
from fencelog.types import TopicId

if TYPE_CHECKING:
    from fencelog.client.streams.blocking_group import ReaderGroup, StateSynchronizer
    from fencelog.coordination.reader_group.state import Cut
    from fencelog.coordination.synchronizer.replica import Schema

S = TypeVar("S")


class BlockingStreams(ConnectedClient):
    """What ``blocking.Client`` has of streams and their readers (R1 to R11)."""

    def create_stream(
        self,
        name: str,
        segments: int = 1,
        settings: Mapping[str, str] | None = None,
        replication: int = -1,
    ) -> None:
        """Create a stream: a topic whose partitions, the segments, split and merge.

        Raises RequestError (TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG …).
        """
        self.run(
            lambda cluster: StreamAdmin(cluster).create_stream(
                name, segments, settings or {}, replication
            )
        )

    def describe_stream(self, name: str) -> StreamDescription:
        """One stream with all of its segments.

        Raises RequestError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION if it is no stream.
        """
        return self.run(lambda cluster: StreamAdmin(cluster).describe_stream(name))

    def describe_streams(self, names: Sequence[str] | None = None) -> list[StreamDescription]:
        """These streams, or all, sorted by name. Raises RequestError as ``describe_stream``."""
        return self.run(lambda cluster: StreamAdmin(cluster).describe_streams(names))

    def streams_among(
        self, topics: Sequence[str], known: Mapping[str, tuple[TopicId, int]] | None = None
    ) -> list[StreamDescription]:
        """Those of these topics that are streams; none where brokers know no streams.

        ``known``: for streams a topic id and a segment that a description must have. Raises
        RequestError (UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE).
        """
        return self.run(lambda cluster: StreamAdmin(cluster).streams_among(topics, known))

    def split_segment(self, name: str, segment: int, at: int | None = None) -> list[int]:
        """Split a segment of a stream; return its successors once they are open.

        ``at``: the first hash of the second one; None for the middle of the range. Raises
        RequestError: INVALID_REQUEST for a segment that is not open or a place outside its range,
        POLICY_VIOLATION beyond the stream's maximum, REQUEST_TIMED_OUT if it is not complete yet:
        it goes on.
        """
        return self.run(lambda cluster: StreamAdmin(cluster).split(name, segment, at))

    def merge_segments(self, name: str, segments: Sequence[int]) -> list[int]:
        """Merge adjacent segments of a stream; return their one successor once it is open.

        Raises RequestError as ``split_segment`` does.
        """
        return self.run(lambda cluster: StreamAdmin(cluster).merge(name, segments))

    def reader_group(
        self,
        name: str,
        stream: str | None = None,
        *,
        start: "str | Cut" = "earliest",
        end: "Cut | None" = None,
    ) -> "ReaderGroup":
        """A group of readers that share a stream; nothing is sent before it is used.

        With a ``stream`` the group is created at its first use, or by ``create``; without one it
        must exist. ``start``: ``earliest``, ``latest`` or a stream cut, where reading begins;
        ``end``: the stream cut where it ends. Raises ValueError for a name that none may have.
        """
        from fencelog.client.streams.blocking_group import blocking_group

        loop = self._loop()
        return blocking_group(loop, self._cluster, name, stream, start=start, end=end)

    def reader_groups(self) -> list[str]:
        """The names of all reader groups, sorted."""
        from fencelog.client.streams.reader_group import reader_groups

        return self.run(reader_groups)

    def synchronizer(self, topic: str, schema: "Schema[S]") -> "StateSynchronizer[S]":
        """A copy of a state that others share, over a topic with one partition (R4)."""
        from fencelog.client.streams.blocking_group import blocking_synchronizer

        return blocking_synchronizer(self._loop(), self._cluster, topic, schema)
