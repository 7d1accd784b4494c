"""A broker resizes the streams that have a policy, and does nothing for the others (R3)."""

import asyncio
import logging

import pytest

from fencelog.broker.coordinators import stream_policy
from fencelog.broker.handlers.configs import Operation
from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.partitions.segment_load import SegmentLoad
from fencelog.coordination.streams.model import HASH_SPACE
from fencelog.coordination.streams.policy import SegmentRate
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.node import Node
from tests.support.node import Peer, World, until
from tests.support.streams import create_stream, segments_of, states_of, states_on
from tests.unit.broker.test_configs import change, describe

POLICY = {"stream.rate.events.per.segment": "100", "stream.cooldown.ms": "50"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stream_policy, "WINDOW_S_MIN", 0.01)
    caplog.set_level(logging.INFO)


def topic_of(node: Node) -> Topic:
    topic = node.broker.catalog.get("s")
    assert topic is not None
    return topic


class Writer:
    """Counts as written to a segment what a test says, again and again."""

    def __init__(self, node: Node, segment: int, records: int, median_hash: int) -> None:
        self._partition = node.logs.get("s", segment)
        self._records, self._median_hash = records, median_hash
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._write())

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _write(self) -> None:
        assert self._partition is not None
        load = self._partition.load = SegmentLoad(1)
        while True:
            load.add(self._records, 10 * self._records, self._median_hash)
            await asyncio.sleep(0.001)


async def test_a_segment_with_too_much_splits_where_half_of_it_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, settings={**POLICY, "stream.segments.max": "2"})
        async with Writer(node, 0, 100, median_hash=1000):
            await until(lambda: states_on(node) == ["sealed", "open", "open"], "it has split")
        assert [each.low for each in await segments_of(peer)] == [0, 0, 1000]
        (line,) = [each.message for each in caplog.records if "splits" in each.message]
        assert line.startswith("stream s: segment 0 splits at 1000 into 1, 2: ")
        assert "events/s" in line
        assert "the target of a segment is 100 events/s" in line


async def test_segments_with_little_merge_down_to_the_minimum(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=4, settings={**POLICY, "stream.segments.min": "2"})
        merged = ["sealed", "sealed", "sealed", "open", "sealed", "open"]
        await until(lambda: states_on(node) == merged, "two merges")
        policy, topic_id = node.broker.stream_policy, topic_of(node).topic_id
        watched = policy._watched[topic_id]
        await until(lambda: sorted(watched.rates) == [3, 5], "both are measured")
        assert states_on(node) == merged
        lines = [each.message for each in caplog.records if " merge into " in each.message]
        assert lines[0] == (
            "stream s: segments 0 and 1 merge into 4: together 0.0 events/s, 0.0 KiB/s; the target "
            "of a segment is 100 events/s"
        )
        assert len(lines) == 2


async def test_a_stream_without_a_policy_costs_no_task(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        before = len(asyncio.all_tasks())
        await create_stream(peer, segments=4, settings={"stream.cooldown.ms": "50"})
        policy = node.broker.stream_policy
        assert not policy._tasks
        assert len(asyncio.all_tasks()) == before

        key = "stream.rate.events.per.segment"
        assert await change(peer, (Operation.SET, key, "1000"), name="s") is ErrorCode.NONE
        assert len(policy._tasks) == 1
        assert await change(peer, (Operation.DELETE, key, None), name="s") is ErrorCode.NONE
        await until(lambda: not policy._tasks, "its task has ended")
        assert policy.rate(topic_of(node).topic_id, 0) is None


async def test_a_resize_that_is_refused_each_time_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node(partitions_max=2) as node, Peer.of(node) as peer:
        await create_stream(peer, settings=POLICY)
        policy, topic_id = node.broker.stream_policy, topic_of(node).topic_id
        resized_at = set()

        def refusals() -> int:
            resized_at.add(policy._watched[topic_id].resized_at)
            return len(resized_at)

        async with Writer(node, 0, 100, median_hash=1000):
            await until(lambda: refusals() > 3, "it was refused more than twice")
        lines = [each.message for each in caplog.records if "but topic s" in each.message]
        assert len(lines) == 1
        assert "fencelog.max.partitions is 2" in lines[0]
        assert await states_of(peer) == ["open"]


async def test_a_policy_goes_on_after_a_start(world: World) -> None:
    async with world.node(crash=True) as node, Peer.of(node) as peer:
        settings = {**POLICY, "stream.cooldown.ms": "3600000"}
        await create_stream(peer, segments=2, settings=settings)
    async with world.node() as node, Peer.of(node) as peer:
        assert len(node.broker.stream_policy._tasks) == 1
        assert (await describe(peer, "s"))["stream.cooldown.ms"].value == "3600000"


async def test_a_segment_of_another_leader_merges_by_what_that_one_says(world: World) -> None:
    async with world.node() as node, Peer.of(node) as peer:
        policy, asked = node.broker.stream_policy, list[int]()
        find_led = policy._find_led
        policy._find_led = lambda topic_id, index: None if index == 1 else find_led(topic_id, index)
        answers: list[SegmentRate | None] = [None, SegmentRate(events_per_s=0, kbytes_per_s=0)]

        async def ask(topic: Topic, index: int) -> SegmentRate | None:
            assert topic.name == "s"
            asked.append(index)
            if len(asked) == 1:
                raise NotLeaderError("a stand-in")
            return answers.pop(0)

        policy.ask_rate = ask
        await create_stream(peer, segments=2, settings=POLICY)
        await until(lambda: states_on(node) == ["sealed", "sealed", "open"], "they have merged")
        assert asked == [1, 1, 1]


async def test_an_internal_error_ends_no_policy(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decide, failures = stream_policy.decide, [1]

    def fail_once(*args: object) -> object:
        if failures:
            raise ZeroDivisionError(failures.pop())
        return decide(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(stream_policy, "decide", fail_once)
    async with world.node() as node, Peer.of(node) as peer:
        await create_stream(peer, segments=2, settings=POLICY)
        await until(lambda: states_on(node)[-1] == "open" and len(states_on(node)) == 3, "merged")
        assert "stream s: internal error, please report it" in caplog.text
        (whole,) = [each for each in await segments_of(peer) if each.state == "open"]
        assert (whole.low, whole.high) == (0, HASH_SPACE)
