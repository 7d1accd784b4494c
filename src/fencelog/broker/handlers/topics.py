"""CreateTopics, DeleteTopics."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from fencelog.broker.context import Broker
from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Topic, name_problem
from fencelog.broker.metadata.controller import NewTopic
from fencelog.broker.network.connection import Request
from fencelog.broker.network.time_slices import ITEMS_PER_SLICE
from fencelog.errors import ErrorCode, RequestError
from fencelog.settings.stream_table import STREAM_KEYS
from fencelog.settings.table import TOPIC_KEYS
from fencelog.types import NO_TOPIC_ID, NodeId, TopicId
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

T = TypeVar("T")


async def create_topics(
    broker: Broker, message: CreateTopicsRequest, request: Request
) -> CreateTopicsResponse:
    """Create each topic, or return why not; the valid ones are created."""
    version = request.header.api_version
    names = Counter(topic.name for topic in message.topics)
    results: list[CreatableTopicResult] = []
    for part in _batches(message.topics):
        valid: dict[str, NewTopic] = {}
        failed: dict[str, RequestError] = {}
        for requested in part:
            try:
                check_name(requested.name, times=names[requested.name])
                valid[requested.name] = _new_topic(broker, requested)
                if message.validate_only:
                    broker.controller.check_new_topic(valid[requested.name])
            except RequestError as error:
                failed[requested.name] = error
        if message.validate_only:
            created = dict.fromkeys(valid, TopicId(NO_TOPIC_ID))
        else:
            created = await _create(broker, valid, failed)
        for name in (requested.name for requested in part):
            result = (
                _refused(name, failed[name])
                if name in failed
                else _created(broker, valid[name], created[name])
            )
            # At once, because each topic has all its settings: thousands take a tenth of a second.
            results.append(result.encoded(version))
        await broker.time_slices.next()
    return CreateTopicsResponse(topics=results)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split what one request names into parts that are changed together."""
    for start in range(0, len(items), ITEMS_PER_SLICE):
        yield items[start : start + ITEMS_PER_SLICE]


def check_name(name: str, *, times: int) -> None:
    """Check that clients may create a topic of this name. Raises RequestError."""
    if times > 1:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"topic {name} is named more than once")
    problem = name_problem(name)
    if name in INTERNAL_TOPICS:
        problem = f"topic {name} is internal: the broker creates it when it is needed"
    if problem is not None:
        raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def _assignment(broker: Broker, requested: CreatableTopic) -> list[list[NodeId]]:
    """Return the replicas of each partition, if the request names them. Raises RequestError."""
    named = sorted(requested.assignments, key=lambda one: one.partition_index)
    node = broker.config.node_id
    problem = None
    if [one.partition_index for one in named] != list(range(len(named))):
        problem = "partitions must be numbered from 0 without gaps"
    elif broker.placement is None and any(one.broker_ids != [node] for one in named):
        problem = f"each partition must be on broker {node}"
    if problem is not None:
        error = ErrorCode.INVALID_REPLICATION_ASSIGNMENT
        raise RequestError(error, f"topic {requested.name}: {problem}")
    return [[NodeId(each) for each in one.broker_ids] for one in named]


def _partition_count(broker: Broker, requested: CreatableTopic) -> int:
    if requested.assignments:
        return len(requested.assignments)
    if requested.num_partitions == -1:
        return broker.config.num_partitions
    if requested.num_partitions < 1:
        raise RequestError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {requested.name}: the partition count must be at least 1, not "
            f"{requested.num_partitions}",
        )
    return requested.num_partitions


def check_factor(broker: Broker, name: str, factor: int) -> None:
    """Check the replication factor; in a cluster placing does it. Raises RequestError."""
    if broker.placement is None and factor not in (-1, 1):
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {name}: the replication factor must be 1, not {factor}: there is one broker",
        )


def _new_topic(broker: Broker, requested: CreatableTopic) -> NewTopic:
    factor = requested.replication_factor
    if not requested.assignments:
        check_factor(broker, requested.name, factor)
    assignment = _assignment(broker, requested)
    count = _partition_count(broker, requested)
    return NewTopic(requested.name, count, _settings(requested), factor, assignment)


async def _create(
    broker: Broker, valid: Mapping[str, NewTopic], failed: dict[str, RequestError]
) -> dict[str, TopicId]:
    """Create the valid topics; return their ids, and add those that failed to ``failed``."""
    created: dict[str, TopicId] = {}
    try:
        outcomes = await broker.controller.create_topics(list(valid.values()))
    except RequestError as error:
        failed.update(dict.fromkeys(valid, error))
        return created
    for name, outcome in zip(valid, outcomes, strict=True):
        if isinstance(outcome, RequestError):
            failed[name] = outcome
        else:
            created[name] = outcome.topic_id
    return created


def _refused(name: str, error: RequestError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.text)


def _created(broker: Broker, topic: NewTopic, topic_id: TopicId) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=_replication_factor(broker, topic, topic_id),
        configs=[
            CreatableTopicConfigs(name=key, value=value.text, config_source=value.source)
            for key in TOPIC_KEYS
            if key not in STREAM_KEYS
            for value in broker.settings.values(key, topic.settings)[:1]
        ],
    )


def _replication_factor(broker: Broker, topic: NewTopic, topic_id: TopicId) -> int:
    """Return how many replicas each partition has; as requested if it was not created."""
    if broker.placement is None:
        return 1
    state = broker.placement.partition(topic_id, 0)
    return topic.replication_factor if state is None else len(state.replicas)


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
    results: list[DeletableTopicResult] = []
    for part in _batches(requested):
        results += await _delete(broker, part)
        await broker.time_slices.next()
    return DeleteTopicsResponse(responses=results)


async def _delete(
    broker: Broker, requested: Sequence[tuple[str | None, bytes]]
) -> list[DeletableTopicResult]:
    """Delete some topics together; one that is named twice is unknown the second time."""
    topics: dict[TopicId, Topic] = {}
    results = []
    try:
        await broker.controller.refresh(name for name, _ in requested if name is not None)
    except RequestError as refused:
        code, reason = refused.code, refused.text
        return [
            DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=code, error_message=reason
            )
            for name, topic_id in requested
        ]
    for name, topic_id in requested:
        topic = (
            broker.catalog.by_id(TopicId(topic_id)) if name is None else broker.catalog.get(name)
        )
        error, text = ErrorCode.NONE, None
        if topic is None or topic.topic_id in topics:
            error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}"
            if name is None:
                error, text = ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id"
            topic = None
        elif topic.internal:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            text = f"topic {topic.name} is internal: it cannot be deleted"
        else:
            topics[topic.topic_id] = topic
        results.append(
            DeletableTopicResult(
                name=topic.name if topic else name,
                topic_id=topic.topic_id if topic else topic_id,
                error_code=error,
                error_message=text,
            )
        )
    try:
        await broker.controller.delete_topics(list(topics.values()))
    except RequestError as error:
        for each in results:
            if each.topic_id in topics:
                each.error_code, each.error_message = error.code, error.text
    return results
