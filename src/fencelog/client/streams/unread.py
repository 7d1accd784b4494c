"""How many bytes of a stream follow given positions (R10)."""

from collections.abc import Sequence

from fencelog.client.cluster import Cluster
from fencelog.client.leaders_of import ask_leaders
from fencelog.coordination.reader_group.state import Cut
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.messages.describe_unread import (
    DescribeUnreadRequest,
    DescribeUnreadResponse,
    UnreadPartition,
    UnreadTopic,
)
from fencelog.wire.primitives import error_code


async def unread_bytes(cluster: Cluster, stream: str, positions: Cut) -> int:
    """Return the stored bytes from each segment's position to its end, together.

    By the index: for each segment up to ``index.interval.bytes`` too many, and 0 at its end. Raises
    RequestError.
    """

    async def ask(
        connection: Connection, partitions: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        asked = [
            UnreadPartition(partition_index=each.partition, offset=positions[each.partition])
            for each in partitions
        ]
        request = DescribeUnreadRequest(topics=[UnreadTopic(name=stream, partitions=asked)])
        answer = await cluster.ask(connection, request, DescribeUnreadResponse, deadline)
        found = {}
        for topic in answer.topics:
            for result in topic.partitions:
                place = TopicPartition(topic.name, result.partition_index)
                if result.error_code:
                    what = f"unread bytes of {place} at broker {connection.address}"
                    raise failure(error_code(result.error_code), what)
                found[place] = result.bytes
        return found

    places = [TopicPartition(stream, index) for index in sorted(positions)]
    return sum((await ask_leaders(cluster, places, ask)).values())
