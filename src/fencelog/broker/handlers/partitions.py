"""What changes a topic's partitions: DeleteRecords, CreatePartitions."""

from collections import Counter

from fencelog.broker.connection import Request
from fencelog.broker.context import Broker
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import Offset
from fencelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
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
    async for topic in broker.turns.each(message.topics):
        results = [
            await _delete(broker, topic.name, asked)
            async for asked in broker.turns.each(topic.partitions)
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


async def create_partitions(
    broker: Broker, message: CreatePartitionsRequest, request: Request
) -> CreatePartitionsResponse:
    """Raise each topic's partition count to the one asked for, or say why not."""
    del request
    times = Counter(topic.name for topic in message.topics)
    results = []
    async for asked in broker.turns.each(message.topics):
        error, text = ErrorCode.NONE, None
        try:
            await _add(broker, asked, times[asked.name], validate_only=message.validate_only)
        except RequestError as refused:
            error, text = refused.code, str(refused)
        results.append(
            CreatePartitionsTopicResult(name=asked.name, error_code=error, error_message=text)
        )
    return CreatePartitionsResponse(results=results)


async def _add(
    broker: Broker, asked: CreatePartitionsTopic, times: int, *, validate_only: bool
) -> None:
    if times > 1:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"topic {asked.name} is named more than once")
    topic = broker.catalog.get(asked.name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {asked.name}")
    broker.logs.check_count(topic, asked.count)
    if asked.assignments is not None and [one.broker_ids for one in asked.assignments] != [
        [broker.config.node_id]
    ] * (asked.count - topic.partitions):
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            f"{asked.name}: each new partition must be on broker {broker.config.node_id}",
        )
    if not validate_only:
        await broker.logs.add_partitions(topic, asked.count)
