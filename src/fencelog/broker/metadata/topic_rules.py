"""What may become of topics: the controller's rules over the catalog. They change nothing.

Each raises RequestError with the code and the words that the client is answered.
"""

from collections.abc import Mapping

from fencelog.broker.metadata.catalog import INTERNAL_TOPICS, Catalog, Topic
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.config import InvalidConfigError, LogConfig


def check_name_free(catalog: Catalog, name: str) -> None:
    """Refuse the name of a topic that exists, and one too much like it."""
    if catalog.get(name) is not None:
        raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    other = catalog.colliding(name)
    if other is not None:
        raise RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name} collides with {other}: . and _ count as the same",
        )


def check_partition_count(catalog: Catalog, topic: Topic, count: int, partitions_max: int) -> None:
    """Refuse a new partition count that is not more, or more than the broker takes."""
    if topic.internal:
        # The partition of a key follows from their number.
        raise RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"the partitions of {topic.name} are fixed"
        )
    if count <= topic.partitions:
        raise RequestError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} has {topic.partitions} partitions: {count} would not be more",
        )
    check_partition_total(catalog, topic.name, count - topic.partitions, partitions_max)


def check_partition_total(catalog: Catalog, name: str, more: int, partitions_max: int) -> None:
    """Refuse more partitions than the broker takes in all (``fencelog.max.partitions``)."""
    total = catalog.partition_total() + more
    # Not held against the internal ones: without them nobody could commit.
    if total > partitions_max and name not in INTERNAL_TOPICS:
        raise RequestError(
            ErrorCode.POLICY_VIOLATION,
            f"{name} with {more} more partitions would make {total} in all; "
            f"fencelog.max.partitions is {partitions_max}",
        )


def existing_topic(catalog: Catalog, name: str) -> Topic:
    """Return the topic of this name; refuse where there is none."""
    topic = catalog.get(name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic


def valid_config(settings: Mapping[str, str], defaults: Mapping[str, str]) -> LogConfig:
    """Return what these settings of a topic make over the broker's defaults."""
    try:
        return LogConfig.from_topic_config({**defaults, **settings})
    except InvalidConfigError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from error
