"""CreateTopics, DeleteTopics."""

from collections import Counter

from fencelog.broker.context import Broker
from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Topic, name_problem
from fencelog.broker.network.connection import Request
from fencelog.errors import ErrorCode, RequestError
from fencelog.settings.table import TOPIC_KEYS
from fencelog.types import NO_TOPIC_ID, TopicId
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)


async def create_topics(
    broker: Broker, message: CreateTopicsRequest, request: Request
) -> CreateTopicsResponse:
    """Create each topic, or return why not; the valid ones are created."""
    del request
    names = Counter(topic.name for topic in message.topics)
    results = []
    async for requested in broker.time_slices.each(message.topics):
        try:
            _check_name(requested.name, times=names[requested.name])
            results.append(await _create(broker, requested, validate_only=message.validate_only))
        except RequestError as error:
            results.append(
                CreatableTopicResult(
                    name=requested.name,
                    error_code=error.code,
                    error_message=error.text,
                    configs=None,
                )
            )
    return CreateTopicsResponse(topics=results)


def _check_name(name: str, *, times: int) -> None:
    if times > 1:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"topic {name} is named more than once")
    problem = name_problem(name)
    if name in INTERNAL_TOPICS:
        problem = f"topic {name} is internal: the broker creates it when it is needed"
    if problem is not None:
        raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def _partition_count(broker: Broker, requested: CreatableTopic) -> int:
    if requested.assignments:
        indexes = sorted(one.partition_index for one in requested.assignments)
        node = broker.config.node_id
        if indexes != list(range(len(indexes))) or any(
            one.broker_ids != [node] for one in requested.assignments
        ):
            raise RequestError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
                f"topic {requested.name}: partitions must be numbered from 0 without gaps, each on "
                f"broker {node}",
            )
        return len(indexes)
    if requested.num_partitions == -1:
        return broker.config.num_partitions
    if requested.num_partitions < 1:
        raise RequestError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {requested.name}: the partition count must be at least 1, not "
            f"{requested.num_partitions}",
        )
    return requested.num_partitions


async def _create(
    broker: Broker, requested: CreatableTopic, *, validate_only: bool
) -> CreatableTopicResult:
    if requested.replication_factor not in (-1, 1) and not requested.assignments:
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {requested.name}: the replication factor must be 1, not "
            f"{requested.replication_factor}: there is one broker",
        )
    count = _partition_count(broker, requested)
    settings = _settings(requested)
    if validate_only:
        broker.controller.check_new_topic(requested.name, settings)
        topic_id = NO_TOPIC_ID
    else:
        topic = await broker.controller.create_topic(requested.name, count, settings)
        topic_id = topic.topic_id
    return CreatableTopicResult(
        name=requested.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=count,
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(name=key, value=value.text, config_source=value.source)
            for key in TOPIC_KEYS
            for value in broker.settings.values(key, settings)[:1]
        ],
    )


def _settings(asked: CreatableTopic) -> dict[str, str]:
    for config in asked.configs:
        if config.value is None:
            raise RequestError(ErrorCode.INVALID_CONFIG, f"{config.name} has no value")
    return {config.name: config.value or "" for config in asked.configs}


async def delete_topics(
    broker: Broker, message: DeleteTopicsRequest, request: Request
) -> DeleteTopicsResponse:
    """Delete each topic by name or id, or return why not."""
    if request.header.api_version >= 6:
        requested = [(state.name, state.topic_id) for state in message.topics]
    else:
        requested = [(name, NO_TOPIC_ID) for name in message.topic_names]
    results = []
    async for name, topic_id in broker.time_slices.each(requested):
        topic = broker.catalog.get(name) if name is not None else None
        error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}"
        if name is None:
            topic = broker.catalog.by_id(TopicId(topic_id))
            error, text = ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id"
        if topic is not None and topic.internal:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            text = f"topic {topic.name} is internal: it cannot be deleted"
        elif topic is not None:
            error, text = await _delete(broker, topic)
        results.append(
            DeletableTopicResult(
                name=topic.name if topic else name,
                topic_id=topic.topic_id if topic else topic_id,
                error_code=error,
                error_message=None if error is ErrorCode.NONE else text,
            )
        )
    return DeleteTopicsResponse(responses=results)


async def _delete(broker: Broker, topic: Topic) -> tuple[ErrorCode, str]:
    try:
        await broker.controller.delete_topic(topic)
    except RequestError as error:
        return error.code, error.text
    await broker.group_requests.forget_topics([topic.name])
    return ErrorCode.NONE, ""
