"""The controller's rules for topics. They change nothing.

Each raises RequestError with the code and the text of the response.
"""

from collections.abc import Mapping

from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Catalog, Topic
from fencelog.coordination.streams.settings import StreamSettings
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.config import InvalidConfigError, LogConfig
from fencelog.settings.stream_table import STREAM_KEYS


def check_name_free(catalog: Catalog, name: str) -> None:
    """Refuse the name of an existing topic, and one that collides with it."""
    if catalog.get(name) is not None:
        raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    check_no_collision(name, catalog.colliding(name))


def check_no_collision(name: str, other: str | None) -> None:
    """Refuse a name if there is another topic with the same name in metrics."""
    if other is not None:
        raise RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name} collides with topic {other}: '.' and '_' count as the same character",
        )


def check_partition_count(catalog: Catalog, topic: Topic, count: int, partitions_max: int) -> None:
    """Refuse a new partition count that is not higher, or above the broker's limit."""
    if topic.internal:
        # The partition count maps keys to shards.
        raise RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {topic.name} is internal: its partition count cannot be changed",
        )
    if topic.stream is not None:
        raise RequestError(
            ErrorCode.POLICY_VIOLATION,
            f"topic {topic.name} is a stream: split one of its segments (fencelog stream split), "
            "which keeps the order of each key",
        )
    if count <= topic.partitions:
        raise RequestError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {topic.partitions} partitions: the new count must be higher, "
            f"not {count}",
        )
    check_partition_total(catalog, topic.name, count - topic.partitions, partitions_max)


def check_partition_total(catalog: Catalog, name: str, more: int, partitions_max: int) -> None:
    """Refuse more partitions than the broker's limit (``fencelog.max.partitions``)."""
    total = catalog.partition_total + more
    # Internal topics are exempt: without them no client could commit.
    if total > partitions_max and name not in INTERNAL_TOPICS:
        raise RequestError(
            ErrorCode.POLICY_VIOLATION,
            f"topic {name} with {more} more partitions would make {total} in all; "
            f"fencelog.max.partitions is {partitions_max}",
        )


def existing_topic(catalog: Catalog, name: str) -> Topic:
    """Return the topic of this name; refuse the request if there is none."""
    topic = catalog.get(name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic


def valid_config(
    settings: Mapping[str, str], defaults: Mapping[str, str], *, is_stream: bool = False
) -> LogConfig:
    """Return the log config of these topic settings over the broker's defaults."""
    try:
        config = LogConfig.from_topic_config({**defaults, **settings})
    except InvalidConfigError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from error
    problem = _stream_problem(settings, config) if is_stream else _others_problem(settings)
    if problem is not None:
        raise RequestError(ErrorCode.INVALID_CONFIG, problem)
    return config


def _stream_problem(settings: Mapping[str, str], config: LogConfig) -> str | None:
    if "compact" in config.cleanup_policy:
        return (
            "cleanup.policy: a stream cannot be compacted, because the records of one key may be "
            "in several segments; set cleanup.policy=delete for it"
        )
    return StreamSettings.of_topic_config(settings).problem()


def _others_problem(settings: Mapping[str, str]) -> str | None:
    for key in settings:
        if key in STREAM_KEYS:
            return f"{key}: the topic is no stream; a stream is made by `fencelog stream create`"
    return None
