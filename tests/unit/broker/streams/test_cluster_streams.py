"""Streams in a cluster's metadata: several brokers change them at once, and see changes late."""

import asyncio
from random import Random

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import PartitionKey
from fencelog.broker.metadata.controller import NewTopic
from fencelog.broker.metadata.streams import Streams
from fencelog.coordination.streams.model import Stream
from fencelog.coordination.streams.rules import created, unsealed
from fencelog.errors import ErrorCode, RequestError
from fencelog.types import Offset
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import Host, cluster, in_virtual_time, lose_some

ALL = (1, 2, 3)


def streams_of(host: Host) -> Streams:
    streams = Streams(host.topics, host.catalog, 1_000)
    host.catalog.stream_changed = streams.changed
    return streams


def stored(store: SimStore) -> Stream:
    """The stream as the store has it."""
    stream = Topic.decode("s", store.values["topic/s"][0]).stream
    assert stream is not None
    return stream


def states(stream: Stream) -> list[str]:
    return [each.state.value for each in stream.segments]


async def made(hosts: list[Host], segments: int) -> Topic:
    stream = created(segments)
    assert isinstance(stream, Stream)
    (topic,) = await hosts[0].topics.create_topics([NewTopic("s", segments, {}, stream=stream)])
    assert isinstance(topic, Topic)
    for each in hosts:
        await each.state.until(lambda: each.catalog.get("s") is not None)  # noqa: B023
    return topic


async def outcome(change: object) -> RequestError | None:
    try:
        await change  # type: ignore[misc]
    except RequestError as error:
        return error
    return None


def test_a_resize_stores_the_successors_replicas_in_the_same_step() -> None:  # R1
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await made(hosts, 2)
        changed, successors = await streams_of(hosts[1]).resize("s", [0])
        assert successors == (2, 3)
        assert states(stored(store)) == ["sealing", "open", "opening", "opening"]
        placed = [hosts[1].state.partitions[PartitionKey(topic.topic_id, n)] for n in (2, 3)]
        assert all(sorted(each.state.replicas) == [1, 2, 3] for each in placed)
        versions = {each.version for each in placed}
        assert versions == {hosts[1].state.topics["s"].version}, "one commit"
        assert hosts[1].catalog.get("s") == changed

    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(5))
def test_of_resizes_of_one_segment_by_different_brokers_one_is_carried_out(seed: int) -> None:
    async def main() -> None:
        store, random = SimStore(), Random(seed)
        hosts = await cluster(store, *ALL)
        await made(hosts, 3)
        for each in hosts:
            lose_some(each.session, random, 0.3)
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(outcome(streams_of(host).resize("s", segments)))
                for host, segments in zip(hosts, ([1], [0, 1], [1, 2]), strict=True)
            ]
        errors = [each.result() for each in asked]
        assert errors.count(None) == 1
        refused = [each.code for each in errors if each is not None]
        assert refused == [ErrorCode.RESIZE_IN_PROGRESS] * 2
        stream = stored(store)
        assert stream.problem() is None
        assert len(unsealed(stream)) in (1, 2)

    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(5))
def test_ends_that_different_leaders_record_at_once_are_all_kept(seed: int) -> None:  # R2
    async def main() -> None:
        store, random = SimStore(), Random(seed)
        hosts = await cluster(store, *ALL)
        topic = await made(hosts, 3)
        streams = [streams_of(each) for each in hosts]
        await streams[0].resize("s", [0, 1, 2])
        for each in hosts:
            await each.state.until(lambda: len(states_on(each)) == 4)  # noqa: B023
            each.session.lateness = random.random
            lose_some(each.session, random, 0.2)
        async with asyncio.TaskGroup() as tasks:
            for index, each in enumerate(streams):
                tasks.create_task(each.segment_sealed(topic.topic_id, index, Offset(10 + index)))
        stream = stored(store)
        assert states(stream) == ["sealed", "sealed", "sealed", "open"]
        assert [each.end for each in stream.segments[:3]] == [10, 11, 12]

    in_virtual_time(main)


def states_on(host: Host) -> list[str]:
    topic = host.catalog.get("s")
    return [] if topic is None or topic.stream is None else states(topic.stream)


def test_the_end_that_a_deposed_leader_records_late_changes_nothing() -> None:  # R2
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await made(hosts, 2)
        old, new = streams_of(hosts[0]), streams_of(hosts[1])
        await old.resize("s", [0, 1])
        await hosts[1].state.until(lambda: len(states_on(hosts[1])) == 3)
        hosts[0].session.lateness = lambda: 2.0  # it sees nothing of what follows for a while
        await new.segment_sealed(topic.topic_id, 0, Offset(5))
        version = store.values["topic/s"][1]
        late = asyncio.ensure_future(old.segment_sealed(topic.topic_id, 0, Offset(5)))
        await new.segment_sealed(topic.topic_id, 1, Offset(6))
        await late
        stream = stored(store)
        assert states(stream) == ["sealed", "sealed", "open"]
        assert [each.end for each in stream.segments] == [5, 6, -1]
        assert store.values["topic/s"][1] > version

    in_virtual_time(main)


def test_who_waits_for_a_resize_sees_what_another_broker_records() -> None:  # R2
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await made(hosts, 1)
        asked, leader = streams_of(hosts[0]), streams_of(hosts[1])
        _, successors = await asked.resize("s", [0])
        waiting = asyncio.ensure_future(asked.opened(topic.topic_id, successors))
        await hosts[1].state.until(lambda: len(states_on(hosts[1])) == 3)
        assert not waiting.done()
        await leader.segment_sealed(topic.topic_id, 0, Offset(0))
        await waiting
        assert states_on(hosts[0]) == ["sealed", "open", "open"]

    in_virtual_time(main)


def test_the_end_of_a_deleted_stream_is_not_recorded_for_one_of_its_name() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        first = await made(hosts, 1)
        late = streams_of(hosts[0])
        await late.resize("s", [0])
        await hosts[1].state.until(lambda: len(states_on(hosts[1])) == 3)
        hosts[0].session.lateness = lambda: 3.0
        await hosts[1].topics.delete_topic(first)
        second = await made(hosts[1:], 1)
        assert second.topic_id != first.topic_id
        await streams_of(hosts[1]).resize("s", [0])
        refused = await outcome(late.segment_sealed(first.topic_id, 0, Offset(9)))
        assert refused is None or refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert stored(store).segments[0].end == -1

    in_virtual_time(main)
