"""DescribeUnread: how many stored bytes follow a reader's positions (R10)."""

from fencelog.broker.context import Broker
from fencelog.broker.handlers.brokers import missing
from fencelog.broker.network.connection import Request
from fencelog.errors import ErrorCode
from fencelog.types import Offset
from fencelog.wire.messages.describe_unread import (
    DescribeUnreadRequest,
    DescribeUnreadResponse,
    UnreadPartition,
    UnreadPartitionResult,
    UnreadTopicResult,
)


async def describe_unread(
    broker: Broker, message: DescribeUnreadRequest, request: Request
) -> DescribeUnreadResponse:
    """Return the bytes from an offset to the end of each partition, by its leader."""
    del request
    topics = []
    async for topic in broker.time_slices.each(message.topics):
        results = [
            _one(broker, topic.name, part)
            async for part in broker.time_slices.each(topic.partitions)
        ]
        topics.append(UnreadTopicResult(name=topic.name, partitions=results))
    return DescribeUnreadResponse(topics=topics)


def _one(broker: Broker, topic: str, asked: UnreadPartition) -> UnreadPartitionResult:
    index = asked.partition_index
    partition = broker.logs.get(topic, index)
    if partition is None:
        error = missing(broker, topic, index)
        return UnreadPartitionResult(partition_index=index, error_code=error)
    if partition.read_error is not ErrorCode.NONE:
        return UnreadPartitionResult(partition_index=index, error_code=partition.read_error)
    return UnreadPartitionResult(
        partition_index=index, bytes=partition.log.bytes_from(Offset(asked.offset))
    )
