"""Topics: create, delete, and what their settings are."""

from collections import Counter
from collections.abc import Mapping

from fencelog.broker.catalog import INTERNAL_TOPICS, Topic, name_problem
from fencelog.broker.config import BrokerConfig
from fencelog.broker.connection import Request
from fencelog.broker.context import Broker
from fencelog.broker.dispatch import each
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.config import InvalidConfigError, LogConfig
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
from fencelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
SOURCE_TOPIC = 1
SOURCE_STATIC_BROKER = 4
SOURCE_DEFAULT = 5
TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5}


async def create_topics(
    broker: Broker, message: CreateTopicsRequest, request: Request
) -> CreateTopicsResponse:
    """Create each topic, or say why not; the good ones are made."""
    del request
    names = Counter(topic.name for topic in message.topics)
    results = []
    async for asked in each(message.topics):
        try:
            _check_name(asked.name, times=names[asked.name])
            results.append(await _create(broker, asked, validate_only=message.validate_only))
        except RequestError as error:
            results.append(
                CreatableTopicResult(
                    name=asked.name,
                    error_code=error.code,
                    error_message=str(error),
                    configs=None,
                )
            )
    return CreateTopicsResponse(topics=results)


def _check_name(name: str, *, times: int) -> None:
    if times > 1:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"topic {name} is named more than once")
    problem = name_problem(name)
    if name in INTERNAL_TOPICS:
        problem = f"topic {name} is internal: the broker makes it when it is needed"
    if problem is not None:
        raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def _partition_count(broker: Broker, asked: CreatableTopic) -> int:
    if asked.assignments:
        indexes = sorted(one.partition_index for one in asked.assignments)
        node = broker.config.node_id
        if indexes != list(range(len(indexes))) or any(
            one.broker_ids != [node] for one in asked.assignments
        ):
            raise RequestError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
                f"{asked.name}: partitions must be 0 to n-1, each on broker {node}",
            )
        return len(indexes)
    if asked.num_partitions == -1:
        return broker.config.num_partitions
    if asked.num_partitions < 1:
        raise RequestError(
            ErrorCode.INVALID_PARTITIONS,
            f"{asked.name}: {asked.num_partitions} partitions; at least 1 is needed",
        )
    return asked.num_partitions


async def _create(
    broker: Broker, asked: CreatableTopic, *, validate_only: bool
) -> CreatableTopicResult:
    if asked.replication_factor not in (-1, 1) and not asked.assignments:
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{asked.name}: replication factor {asked.replication_factor}, but there is 1 broker",
        )
    count = _partition_count(broker, asked)
    settings = {c.name: c.value for c in asked.configs if c.value is not None}
    if validate_only:
        _check(broker, asked.name, settings)
        topic_id = NO_TOPIC_ID
    else:
        topic = await broker.logs.create_topic(asked.name, count, settings)
        topic_id = topic.topic_id
    config = LogConfig.from_topic_config({**broker.config.topic_defaults, **settings})
    return CreatableTopicResult(
        name=asked.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=count,
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(name=key, value=value, config_source=_source(key, settings))
            for key, value in config.to_topic_config().items()
        ],
    )


def _check(broker: Broker, name: str, settings: dict[str, str]) -> None:
    if broker.catalog.get(name) is not None:
        raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    try:
        LogConfig.from_topic_config({**broker.config.topic_defaults, **settings})
    except InvalidConfigError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from error


async def delete_topics(
    broker: Broker, message: DeleteTopicsRequest, request: Request
) -> DeleteTopicsResponse:
    """Delete each topic by name or id, or say why not."""
    if request.header.api_version >= 6:
        asked = [(state.name, state.topic_id) for state in message.topics]
    else:
        asked = [(name, NO_TOPIC_ID) for name in message.topic_names]
    results = []
    for name, topic_id in asked:
        topic = broker.catalog.get(name) if name is not None else None
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name is None:
            topic = broker.catalog.by_id(TopicId(topic_id))
            error = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is not None and topic.internal:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is not None:
            error = await _delete(broker, topic)
        results.append(
            DeletableTopicResult(
                name=topic.name if topic else name,
                topic_id=topic.topic_id if topic else topic_id,
                error_code=error,
                error_message=None if error is ErrorCode.NONE else f"{name}: {error.name}",
            )
        )
    return DeleteTopicsResponse(responses=results)


async def _delete(broker: Broker, topic: Topic) -> ErrorCode:
    try:
        await broker.logs.delete_topic(topic)
    except RequestError as error:
        return error.code
    await broker.members.forget_topics([topic.name])
    return ErrorCode.NONE


async def describe_configs(
    broker: Broker, message: DescribeConfigsRequest, request: Request
) -> DescribeConfigsResponse:
    """The settings in force of topics and of this broker, each with where it comes from."""
    del request
    return DescribeConfigsResponse(
        results=[_describe(broker, asked) async for asked in each(message.resources)]
    )


def _describe(broker: Broker, asked: DescribeConfigsResource) -> DescribeConfigsResult:
    error, text = ErrorCode.NONE, None
    entries: list[DescribeConfigsResourceResult] = []
    if asked.resource_type == TOPIC_RESOURCE:
        topic = broker.catalog.get(asked.resource_name)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            text = f"there is no topic {asked.resource_name}"
        else:
            entries = _topic_entries(broker, topic)
    elif asked.resource_type == BROKER_RESOURCE:
        if asked.resource_name in ("", str(broker.config.node_id)):
            entries = _broker_entries(broker.config)
        else:
            error = ErrorCode.INVALID_REQUEST
            text = f"this is broker {broker.config.node_id}, not {asked.resource_name!r}"
    else:
        error = ErrorCode.INVALID_REQUEST
        text = f"resource type {asked.resource_type} has no settings here"
    wanted = asked.configuration_keys
    return DescribeConfigsResult(
        error_code=error,
        error_message=text,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[entry for entry in entries if wanted is None or entry.name in wanted],
    )


def _topic_entries(broker: Broker, topic: Topic) -> list[DescribeConfigsResourceResult]:
    config = topic.log_config(broker.config.topic_defaults)
    entries = []
    for key, value in config.to_topic_config().items():
        source = _source(key, topic.settings)
        if source == SOURCE_DEFAULT and key in broker.config.topic_defaults:
            source = SOURCE_STATIC_BROKER
        entries.append(_entry(key, value, source))
    return entries


def _broker_entries(config: BrokerConfig) -> list[DescribeConfigsResourceResult]:
    values = {
        "node.id": str(config.node_id),
        "num.partitions": str(config.num_partitions),
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "durability": config.durability,
        "log.dirs": config.data_dir,
        "message.max.bytes": str(config.log_config.max_message_bytes),
        "socket.request.max.bytes": str(config.frame_bytes_max),
        "max.connections": str(config.connections_max),
        "transaction.max.timeout.ms": str(config.transaction_timeout_ms_max),
    }
    return [_entry(key, value, SOURCE_STATIC_BROKER) for key, value in values.items()]


def _entry(key: str, value: str, source: int) -> DescribeConfigsResourceResult:
    kind = "string"
    if value in ("true", "false"):
        kind = "boolean"
    elif value.lstrip("-").isdecimal():
        kind = "long"
    return DescribeConfigsResourceResult(
        name=key,
        value=value,
        read_only=True,
        config_source=source,
        config_type=TYPES[kind],
        documentation=None,
    )


def _source(key: str, settings: Mapping[str, str]) -> int:
    return SOURCE_TOPIC if key in settings else SOURCE_DEFAULT
