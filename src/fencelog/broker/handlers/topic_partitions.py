"""DeleteRecords, CreatePartitions."""

from collections import Counter
from collections.abc import Mapping

from fencelog.broker.context import Broker
from fencelog.broker.handlers.brokers import missing
from fencelog.broker.metadata.topic_rules import existing_topic
from fencelog.broker.network.connection import Request
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import NodeId, Offset, TopicPartition
from fencelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from fencelog.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_OFFSET = -1


async def delete_records(
    broker: Broker, message: DeleteRecordsRequest, request: Request
) -> DeleteRecordsResponse:
    """Raise each partition's log start to the requested offset (D4).

    Answered once it is durable, and once all in-sync replicas have it, or an election would bring
    the records back. REQUEST_TIMED_OUT where they do not in time: the leader's log begins there all
    the same.
    """
    del request
    errors: dict[TopicPartition, ErrorCode] = {}
    wanted: dict[Partition, Offset] = {}
    async for topic in broker.time_slices.each(message.topics):
        async for requested in broker.time_slices.each(topic.partitions):
            name = TopicPartition(topic.name, requested.partition_index)
            partition = broker.logs.get(*name)
            error = _refusal(broker, name, partition)
            if partition is None or error is not ErrorCode.NONE:
                errors[name] = error
            else:
                wanted[partition] = Offset(requested.offset)
    outcomes = await broker.logs.delete_records(wanted)
    errors |= {partition.name: error for partition, error in outcomes.items()}
    raised = {
        partition: partition.log.log_start_offset
        for partition, error in outcomes.items()
        if error is ErrorCode.NONE
    }
    if broker.low_watermarks is not None and raised:
        late = await broker.low_watermarks.reached(raised, max(message.timeout_ms, 0) / 1000)
        errors |= {partition.name: error for partition, error in late.items()}
    starts = {partition.name: start for partition, start in raised.items()}
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _result(TopicPartition(topic.name, requested.partition_index), errors, starts)
                    async for requested in broker.time_slices.each(topic.partitions)
                ],
            )
            async for topic in broker.time_slices.each(message.topics)
        ]
    )


def _refusal(broker: Broker, name: TopicPartition, partition: Partition | None) -> ErrorCode:
    """Return why a partition's records may not be deleted; NONE if they may."""
    topic = broker.catalog.get(name.topic)
    if topic is not None and topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if partition is None:
        return missing(broker, *name)
    if partition.read_error is not ErrorCode.NONE:
        return partition.read_error
    if "delete" not in partition.log.config.cleanup_policy:
        # A compacted topic keeps every key's newest value, so its log start cannot be raised.
        return ErrorCode.POLICY_VIOLATION
    return ErrorCode.NONE


def _result(
    name: TopicPartition,
    errors: Mapping[TopicPartition, ErrorCode],
    starts: Mapping[TopicPartition, Offset],
) -> DeleteRecordsPartitionResult:
    error = errors[name]
    low_watermark = starts[name] if error is ErrorCode.NONE else NO_OFFSET
    return DeleteRecordsPartitionResult(
        partition_index=name.partition, low_watermark=low_watermark, error_code=error
    )


async def create_partitions(
    broker: Broker, message: CreatePartitionsRequest, request: Request
) -> CreatePartitionsResponse:
    """Raise each topic's partition count to the requested one, or return why not."""
    del request
    times = Counter(topic.name for topic in message.topics)
    results = []
    async for requested in broker.time_slices.each(message.topics):
        error, text = ErrorCode.NONE, None
        try:
            await _add(
                broker, requested, times[requested.name], validate_only=message.validate_only
            )
        except RequestError as refused:
            error, text = refused.code, refused.text
        results.append(
            CreatePartitionsTopicResult(name=requested.name, error_code=error, error_message=text)
        )
    return CreatePartitionsResponse(results=results)


async def _add(
    broker: Broker, requested: CreatePartitionsTopic, times: int, *, validate_only: bool
) -> None:
    if times > 1:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"topic {requested.name} is named more than once"
        )
    await broker.controller.refresh([requested.name])
    topic = existing_topic(broker.catalog, requested.name)
    broker.controller.check_partition_count(topic, requested.count)
    added = requested.count - topic.partitions
    given = [[NodeId(each) for each in one.broker_ids] for one in requested.assignments or ()]
    if broker.placement is not None:
        if requested.assignments is not None and len(given) != added:
            raise RequestError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
                f"{requested.name}: {len(given)} assignments for {added} new partitions",
            )
    elif requested.assignments is not None and given != [[broker.config.node_id]] * added:
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            f"{requested.name}: each new partition must be on broker {broker.config.node_id}",
        )
    if not validate_only:
        await broker.controller.add_partitions(topic, requested.count, given)
