"""What changes the partitions of a topic: DeleteRecords."""

from fencelog.broker.connection import Request
from fencelog.broker.context import Broker
from fencelog.broker.dispatch import each
from fencelog.errors import ErrorCode
from fencelog.types import Offset
from fencelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_OFFSET = -1


async def delete_records(
    broker: Broker, message: DeleteRecordsRequest, request: Request
) -> DeleteRecordsResponse:
    """Begin each partition at the offset asked for (D4); answered once that is durable."""
    del request
    topics = []
    for topic in message.topics:
        results = [
            await _delete(broker, topic.name, asked) async for asked in each(topic.partitions)
        ]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    broker: Broker, name: str, asked: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    index = asked.partition_index
    partition = broker.logs.get(name, index)
    topic = broker.catalog.get(name)
    low_watermark = NO_OFFSET
    if topic is not None and topic.internal:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif partition is None:
        error = broker.logs.missing(name, index)
    elif "delete" not in partition.log.config.cleanup_policy:
        # Of a compacted topic every key's newest value is kept: nobody may cut it off.
        error = ErrorCode.POLICY_VIOLATION
    else:
        error = await broker.logs.delete_records(partition, Offset(asked.offset))
        if error is ErrorCode.NONE:
            low_watermark = partition.log.log_start_offset
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=low_watermark, error_code=error
    )
