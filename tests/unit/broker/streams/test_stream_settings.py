"""The settings of streams: shown and changed as those of topics, and of streams only (R3)."""

import pytest

from fencelog.broker.handlers.configs import Operation
from fencelog.errors import ErrorCode
from fencelog.settings.stream_table import STREAM_KEYS
from tests.support.node import Peer, World
from tests.support.streams import create_stream
from tests.unit.broker.test_configs import BROKER, alter, change, changed, describe

SET, DELETE = Operation.SET, Operation.DELETE
EVENTS = "stream.rate.events.per.segment"


async def test_the_settings_of_a_stream_are_shown_with_their_defaults(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, settings={EVENTS: "10"})
        shown = await describe(peer, "s")
        assert {key: shown[key].value for key in STREAM_KEYS} == {
            "stream.segments.min": "1",
            "stream.segments.max": "10000",
            EVENTS: "10",
            "stream.rate.kbytes.per.segment": "0",
            "stream.cooldown.ms": "600000",
        }
        assert [each.source for each in shown[EVENTS].synonyms] == [1, 5]


async def test_a_topic_that_is_no_stream_has_none_of_them(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        assert not STREAM_KEYS & (await describe(peer, "t")).keys()
        for dry in (True, False):
            code, text = await changed(peer, (SET, EVENTS, "5"), dry=dry)
            assert code is ErrorCode.INVALID_CONFIG
            assert "the topic is no stream" in text
        assert await alter(peer, stream_segments_min="2") is ErrorCode.INVALID_CONFIG


async def test_settings_of_streams_have_no_default_in_the_broker(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        code, _ = await changed(peer, (SET, EVENTS, "5"), name="1", kind=BROKER)
        assert code is ErrorCode.INVALID_CONFIG


async def test_a_streams_settings_change_and_are_kept(world: World) -> None:
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        await create_stream(peer)
        assert await change(peer, (SET, EVENTS, "7"), name="s") is ErrorCode.NONE
    async with world.node() as node, Peer.of(node) as peer:
        assert (await describe(peer, "s"))[EVENTS].value == "7"


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ((SET, "cleanup.policy", "compact"), "a stream cannot be compacted"),
        ((SET, "cleanup.policy", "compact,delete"), "set cleanup.policy=delete for it"),
        ((SET, "stream.segments.min", "0"), "expected a whole number from 1 to 10000"),
        ((SET, "stream.segments.max", "10001"), "expected a whole number from 1 to 10000"),
        ((SET, "stream.segments.max", "1"), "stream.segments.min=2: above stream.segments.max=1"),
        ((SET, EVENTS, "-1"), "expected a whole number from 0"),
        ((SET, "stream.cooldown.ms", "0"), "expected a whole number of milliseconds from 1"),
    ],
)
async def test_a_change_that_a_stream_cannot_have_is_refused(
    world: World, step: tuple[Operation, str, str], told: str
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=2, settings={"stream.segments.min": "2"})
        before = await describe(peer, "s")
        for dry in (True, False):
            code, text = await changed(peer, step, name="s", dry=dry)
            assert code is ErrorCode.INVALID_CONFIG
            assert told in text
        assert await describe(peer, "s") == before


async def test_compaction_is_no_default_while_a_stream_would_have_it(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
        compact = (SET, "log.cleanup.policy", "compact")
        assert await change(peer, compact, name="", kind=BROKER) is ErrorCode.INVALID_CONFIG
        keep = (SET, "cleanup.policy", "delete")
        assert await change(peer, keep, name="s") is ErrorCode.NONE
        assert await change(peer, compact, name="", kind=BROKER) is ErrorCode.NONE
        code, text = await create_stream(peer, "other")
        assert code is ErrorCode.INVALID_CONFIG
        assert "set cleanup.policy=delete" in str(text)
        assert await create_stream(peer, "other", settings={"cleanup.policy": "delete"}) == (
            ErrorCode.NONE,
            None,
        )


async def test_no_default_that_a_broker_is_started_with_compacts_a_stream(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer)
    compact = {"topic_defaults": {"cleanup.policy": "compact"}}
    async with world.node(**compact) as node:
        partition = node.logs.get("s", 0)
        assert partition is not None
        assert partition.log.config.cleanup_policy == {"delete"}
        assert not partition.is_compacted
