"""Settings of topics and of the broker: what is in force, where it comes from, how it changes."""

import asyncio
from pathlib import Path

import pytest

from fencelog.broker.handlers.configs import Operation
from fencelog.broker.metadata.catalog import GROUP_TOPIC
from fencelog.errors import ErrorCode
from fencelog.wire.messages import alter_configs as whole
from fencelog.wire.messages import incremental_alter_configs as incremental
from fencelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from fencelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from fencelog_sim.world.disk import Loss
from tests.support.node import Peer, World, batch

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = Operation


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def change(
    peer: Peer,
    *steps: tuple[Operation, str, str | None],
    name: str = "t",
    kind: int = TOPIC,
    dry: bool = False,
) -> ErrorCode:
    return (await changed(peer, *steps, name=name, kind=kind, dry=dry))[0]


async def changed(
    peer: Peer,
    *steps: tuple[Operation, str, str | None],
    name: str = "t",
    kind: int = TOPIC,
    dry: bool = False,
) -> tuple[ErrorCode, str]:
    configs = [
        incremental.AlterableConfig(name=key, config_operation=operation, value=value)
        for operation, key, value in steps
    ]
    resource = incremental.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
    answer = await peer.ask(request, 1, incremental.IncrementalAlterConfigsResponse)
    return ErrorCode(answer.responses[0].error_code), answer.responses[0].error_message or ""


async def alter(
    peer: Peer, name: str = "t", kind: int = TOPIC, **settings: str | None
) -> ErrorCode:
    configs = [
        whole.AlterableConfig(name=key.replace("_", "."), value=value)
        for key, value in settings.items()
    ]
    resource = whole.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = await peer.ask(
        whole.AlterConfigsRequest(resources=[resource]), 2, whole.AlterConfigsResponse
    )
    return ErrorCode(answer.responses[0].error_code)


async def describe(
    peer: Peer, name: str = "t", kind: int = TOPIC, *, documentation: bool = False
) -> dict[str, DescribeConfigsResourceResult]:
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(
        resources=[asked], include_synonyms=True, include_documentation=documentation
    )
    answer = await peer.ask(request, 4, DescribeConfigsResponse)
    assert answer.results[0].error_code == ErrorCode.NONE, answer.results[0].error_message
    return {entry.name: entry for entry in answer.results[0].configs}


def test_a_setting_shows_every_place_that_makes_it_the_one_in_force_first(world: World) -> None:
    async def scenario() -> None:
        async with (
            world.node(topic_defaults={"retention.ms": "5000"}) as node,
            Peer.of(node) as peer,
        ):
            await peer.create_topic("t", retention_ms="9000")
            everywhere = ("log.retention.ms", "7000")
            assert await change(peer, (SET, *everywhere), name="", kind=BROKER) is ErrorCode.NONE
            here = ("log.retention.ms", "8000")
            assert await change(peer, (SET, *here), name="1", kind=BROKER) is ErrorCode.NONE
            entry = (await describe(peer))["retention.ms"]
            assert (entry.value, entry.config_source, entry.read_only) == ("9000", 1, False)
            assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
                ("retention.ms", "9000", 1),
                ("log.retention.ms", "8000", 2),
                ("log.retention.ms", "7000", 3),
                ("log.retention.ms", "5000", 4),
                ("log.retention.hours", "168", 5),
            ]
            assert (await describe(peer))["cleanup.policy"].config_type == 7
            everywhere_set = await describe(peer, "", BROKER)
            assert [e.name for e in everywhere_set.values()] == ["log.retention.ms"]
            of_broker = await describe(peer, "1", BROKER)
            assert of_broker["log.retention.ms"].value == "8000"
            assert of_broker["node.id"].read_only

    asyncio.run(scenario())


def synonyms(entry: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in entry.synonyms]


def test_a_broker_shows_what_it_was_started_with_under_the_names_that_were_used(
    world: World,
) -> None:
    given = {"log.retention.hours": "2", "broker.id": "1"}
    at_start = {"topic_defaults": {"retention.ms": "7200000"}, "given": given}

    async def scenario() -> None:
        async with world.node(num_partitions=3, **at_start) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            shown = await describe(peer, "1", BROKER)
            partitions = shown["num.partitions"]
            assert (partitions.value, partitions.config_type, partitions.read_only) == (
                "3",
                3,
                True,
            )
            assert synonyms(partitions) == [("num.partitions", "3", 4), ("num.partitions", "1", 5)]
            assert synonyms(shown["node.id"]) == [("broker.id", "1", 4), ("node.id", "1", 5)]
            assert synonyms(shown["max.connections"]) == [("max.connections", "10000", 5)]
            assert shown["connections.max.idle.ms"].value == "600000"
            assert shown["connections.max.idle.ms"].config_type == 5
            assert shown["log.cleaner.enable"].config_type == 1
            assert shown["offsets.topic.replication.factor"].config_type == 4
            assert shown["log.dirs"].value == node.broker.config.data_dir
            assert shown["listeners"].value == "PLAINTEXT://127.0.0.1:0"
            for entry in (shown["log.retention.ms"], (await describe(peer))["retention.ms"]):
                assert (entry.value, entry.config_source, entry.config_type) == ("7200000", 4, 5)
                assert not entry.read_only
                assert synonyms(entry) == [
                    ("log.retention.hours", "2", 4),
                    ("log.retention.hours", "168", 5),
                ]

    asyncio.run(scenario())


def test_a_topic_setting_without_a_value_is_refused_at_creation(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            config = CreatableTopicConfig(name="retention.ms", value=None)
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            topic.configs = [config]
            answer = await peer.ask(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
            assert answer.topics[0].error_code == ErrorCode.INVALID_CONFIG
            assert "retention.ms has no value" in (answer.topics[0].error_message or "")
            assert node.broker.catalog.get("t") is None

    asyncio.run(scenario())


def test_documentation_is_shown_where_it_is_asked_for(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            for name, kind in (("t", TOPIC), ("1", BROKER)):
                told = await describe(peer, name, kind, documentation=True)
                assert all(entry.documentation for entry in told.values())
                assert not any(entry.is_sensitive for entry in told.values())
                silent = await describe(peer, name, kind)
                assert {entry.documentation for entry in silent.values()} == {None}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "step", "error", "told"),
    [
        (TOPIC, (SET, "retention.millis", "1"), "INVALID_CONFIG", "did you mean retention.ms?"),
        (TOPIC, (SET, "retention.ms", "7d"), "INVALID_CONFIG", "7 days are 604800000"),
        (TOPIC, (SET, "log.retention.ms", "7"), "INVALID_CONFIG", "a topic's own is retention.ms"),
        (TOPIC, (SET, "num.partitions", "7"), "INVALID_CONFIG", "a setting of the broker, not of"),
        (TOPIC, (SET, "compression.type", "lzo"), "INVALID_CONFIG", "expected producer, un"),
        (BROKER, (SET, "log.retention.ms", "7d"), "INVALID_CONFIG", "log.retention.ms='7d': "),
        (BROKER, (APPEND, "log.cleanup.policy", "x"), "INVALID_CONFIG", "expected delete or com"),
        (BROKER, (SET, "log.retention.sm", "7"), "INVALID_CONFIG", "mean log.retention.ms?"),
        (BROKER, (SET, "retention.ms", "7"), "INVALID_CONFIG", "all topics is log.retention.ms"),
        (BROKER, (SET, "node.id", "2"), "INVALID_REQUEST", "cannot be changed while"),
        (BROKER, (SET, "log.retention.hours", "2"), "INVALID_REQUEST", "only log.retention.ms can"),
        (BROKER, (SET, "num.io.threads", "2"), "INVALID_REQUEST", "has no effect here"),
    ],
)
def test_a_change_that_means_nothing_is_refused_with_what_would(
    world: World, kind: int, step: tuple[Operation, str, str], error: str, told: str
) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            name = "t" if kind == TOPIC else "1"
            for dry in (True, False):
                code, text = await changed(peer, step, name=name, kind=kind, dry=dry)
                assert (code.name, told in text) == (error, True), text
            assert node.broker.settings.changed("1") == {}

    asyncio.run(scenario())


def test_a_change_holds_at_once_and_after_a_kill(world: World) -> None:
    async def scenario() -> None:
        async with world.node(crash=True) as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            await change(peer, (SET, "max.message.bytes", "100"))
            refused = await peer.produce("t", batch("x" * 200))
            assert refused.error is ErrorCode.MESSAGE_TOO_LARGE
            await change(peer, (SET, "message.timestamp.type", "LogAppendTime"))
            assert (await peer.produce("t", batch("x"))).log_append_time_ms > 0
            limit = ("message.max.bytes", "80")
            assert await change(peer, (SET, *limit), name="", kind=BROKER) is ErrorCode.NONE
            await change(peer, (DELETE, "max.message.bytes", None))
            world.disk = world.disk.power_loss(Loss.ALL)
        async with world.node() as node, Peer.of(node) as peer:
            entries = await describe(peer)
            assert entries["max.message.bytes"].value == "80"
            assert entries["message.timestamp.type"].value == "LogAppendTime"
            refused = await peer.produce("t", batch("x" * 50))
            assert refused.error is ErrorCode.MESSAGE_TOO_LARGE

    asyncio.run(scenario())


def test_lists_grow_and_shrink(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            assert await change(peer, (APPEND, "cleanup.policy", "compact")) is ErrorCode.NONE
            assert (await describe(peer))["cleanup.policy"].value == "delete,compact"
            assert await change(peer, (SUBTRACT, "cleanup.policy", "delete")) is ErrorCode.NONE
            assert (await describe(peer))["cleanup.policy"].value == "compact"
            empty = await change(peer, (SUBTRACT, "cleanup.policy", "compact"))
            assert empty is ErrorCode.INVALID_CONFIG
            assert await change(peer, (APPEND, "retention.ms", "1")) is ErrorCode.INVALID_CONFIG

    asyncio.run(scenario())


def test_alter_configs_replaces_all_that_a_topic_sets(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", retention_ms="1", segment_bytes="2000")
            assert await alter(peer, retention_ms="2") is ErrorCode.NONE
            entries = await describe(peer)
            assert entries["retention.ms"].value == "2"
            assert entries["segment.bytes"].config_source == 5
            assert await alter(peer, retention_ms=None) is ErrorCode.INVALID_REQUEST
            assert await alter(peer, "", BROKER, log_retention_ms="4") is ErrorCode.NONE
            assert await alter(peer, "", BROKER) is ErrorCode.NONE
            assert not await describe(peer, "", BROKER)

    asyncio.run(scenario())


def test_what_cannot_be_changed_is_refused_and_changes_nothing(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t")
            await node.broker.controller.open_internal(GROUP_TOPIC, 0)
            before = await describe(peer)
            steps = [(SET, "retention.ms", "1"), (SET, "retention.millis", "1")]
            assert await change(peer, *steps) is ErrorCode.INVALID_CONFIG
            lags = [(SET, "min.compaction.lag.ms", "9"), (SET, "max.compaction.lag.ms", "8")]
            assert await change(peer, *lags) is ErrorCode.INVALID_CONFIG
            twice = [(SET, "retention.ms", "1"), (SET, "retention.ms", "2")]
            assert await change(peer, *twice) is ErrorCode.INVALID_REQUEST
            assert await change(peer, (SET, "retention.ms", None)) is ErrorCode.INVALID_REQUEST
            assert await change(peer, (SET, "retention.ms", "1"), dry=True) is ErrorCode.NONE
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await change(peer, (SET, "retention.ms", "1"), name="u") is unknown
            policy = (SET, "cleanup.policy", "delete")
            assert await change(peer, policy, name=GROUP_TOPIC) is ErrorCode.POLICY_VIOLATION
            fixed = (SET, "node.id", "2")
            refused = ErrorCode.INVALID_REQUEST
            assert await change(peer, fixed, name="1", kind=BROKER) is refused
            other = (SET, "log.retention.ms", "2")
            assert await change(peer, other, name="7", kind=BROKER) is refused
            bad = (SET, "log.retention.ms", "soon")
            assert await change(peer, bad, name="1", kind=BROKER) is ErrorCode.INVALID_CONFIG
            assert await change(peer, other, name="1", kind=8) is refused
            assert await describe(peer) == before
            internal = await describe(peer, GROUP_TOPIC)
            assert internal["cleanup.policy"].value == "compact"

    asyncio.run(scenario())


def test_a_broker_wide_change_that_a_topic_cannot_have_is_refused(world: World) -> None:
    async def scenario() -> None:
        async with world.node() as node, Peer.of(node) as peer:
            await peer.create_topic("t", min_compaction_lag_ms="50")
            lag = (SET, "log.cleaner.max.compaction.lag.ms", "40")
            assert await change(peer, lag, name="", kind=BROKER) is ErrorCode.INVALID_CONFIG
            assert not await describe(peer, "", BROKER)

    asyncio.run(scenario())
