"""The controller's rules over the catalog: which name, partition count and settings are refused."""

import asyncio
from collections.abc import Callable

import pytest

from fencelog.broker.metadata.catalog import GROUP_TOPIC, Catalog, Topic
from fencelog.broker.metadata.topic_rules import (
    check_name_free,
    check_partition_count,
    check_partition_total,
    existing_topic,
    valid_config,
)
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import TopicId
from fencelog_sim.world.metadata import SimMetadata

ORDERS = Topic(name="or.ders", topic_id=TopicId(b"o" * 16), partitions=3, settings={})
OFFSETS = Topic(name=GROUP_TOPIC, topic_id=TopicId(b"g" * 16), partitions=4, settings={})
PARTITIONS_MAX = 10


def catalog() -> Catalog:
    """One topic of clients and one of the broker: 7 partitions in all."""
    made = Catalog(SimMetadata())

    async def fill() -> None:
        assert await made.create([ORDERS])
        assert await made.create([OFFSETS])

    asyncio.run(fill())
    return made


def refusal(rule: Callable[..., object], *arguments: object) -> tuple[ErrorCode, str]:
    with pytest.raises(RequestError) as caught:
        rule(*arguments)
    return caught.value.code, caught.value.text


def test_a_name_is_refused_where_it_exists_and_where_metrics_could_not_tell_it_apart() -> None:
    known = catalog()
    check_name_free(known, "orders")
    check_name_free(known, "or-ders")
    assert refusal(check_name_free, known, "or.ders") == (
        ErrorCode.TOPIC_ALREADY_EXISTS,
        "topic or.ders exists already",
    )
    assert refusal(check_name_free, known, "or_ders") == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "topic or_ders collides with topic or.ders: '.' and '_' count as the same character",
    )


@pytest.mark.parametrize("count", [4, 6])
def test_a_partition_count_may_rise_up_to_what_the_broker_takes(count: int) -> None:
    check_partition_count(catalog(), ORDERS, count, PARTITIONS_MAX)


@pytest.mark.parametrize(
    ("topic", "count", "code", "text"),
    [
        (
            ORDERS,
            3,
            ErrorCode.INVALID_PARTITIONS,
            "topic or.ders has 3 partitions: the new count must be higher, not 3",
        ),
        (
            ORDERS,
            2,
            ErrorCode.INVALID_PARTITIONS,
            "topic or.ders has 3 partitions: the new count must be higher, not 2",
        ),
        (
            ORDERS,
            7,
            ErrorCode.POLICY_VIOLATION,
            "topic or.ders with 4 more partitions would make 11 in all; "
            "fencelog.max.partitions is 10",
        ),
        (
            OFFSETS,
            5,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "topic __consumer_offsets is internal: its partition count cannot be changed",
        ),
    ],
)
def test_a_partition_count_is_refused(topic: Topic, count: int, code: ErrorCode, text: str) -> None:
    assert refusal(check_partition_count, catalog(), topic, count, PARTITIONS_MAX) == (code, text)


def test_internal_topics_are_made_even_where_clients_may_make_no_more() -> None:
    known = catalog()
    check_partition_total(known, "new", 3, PARTITIONS_MAX)
    assert refusal(check_partition_total, known, "new", 4, PARTITIONS_MAX)[0] is (
        ErrorCode.POLICY_VIOLATION
    )
    check_partition_total(known, GROUP_TOPIC, 50, PARTITIONS_MAX)


def test_a_topic_that_is_to_be_changed_has_to_exist() -> None:
    assert existing_topic(catalog(), "or.ders") == ORDERS
    assert refusal(existing_topic, catalog(), "orders") == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "there is no topic orders",
    )


def test_a_topics_own_settings_go_over_the_defaults() -> None:
    defaults = {"segment.bytes": "2048", "retention.ms": "5000"}
    config = valid_config({"segment.bytes": "4096"}, defaults)
    assert (config.segment_bytes, config.retention_ms) == (4096, 5000)
    code, text = refusal(valid_config, {"segment.bytes": "much"}, defaults)
    assert code is ErrorCode.INVALID_CONFIG
    assert "segment.bytes" in text
    assert refusal(valid_config, {}, {"segment.bytes": "much"})[0] is ErrorCode.INVALID_CONFIG
