"""Streams in a cluster's metadata: several brokers change them at once, and see changes late."""

import asyncio
from random import Random

import pytest

from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_state import PartitionKey
from fencelog.broker.metadata.controller import NewTopic
from fencelog.broker.metadata.streams import Streams
from fencelog.coordination.streams.model import LogEnd, Stream
from fencelog.coordination.streams.rules import created, unsealed
from fencelog.errors import ErrorCode, RequestError
from fencelog.ports import MetadataWrite
from fencelog.types import LeaderEpoch, Offset
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


async def deleted_segment(hosts: list[Host]) -> tuple[Topic, Host]:
    """A stream whose segment 0 is deleted, and the host that leads it."""
    topic = await made(hosts, 1)
    streams = streams_of(hosts[0])
    await streams.resize("s", [0])
    await streams.segment_sealed(topic.topic_id, 0, Offset(5))
    await streams.segments_emptied(topic.topic_id, [0])
    for each in hosts:
        await each.state.until(lambda: states_on(each)[:1] == ["deleted"])  # noqa: B023
    leader = hosts[0].state.partitions[PartitionKey(topic.topic_id, 0)].state.leader
    return topic, hosts[leader - 1]


def test_the_leader_gives_up_the_files_of_a_deleted_segment() -> None:  # R1
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic, leader = await deleted_segment(hosts)
        before = dict(store.values)
        ends: dict[int, LogEnd | None] = {0: LogEnd(Offset(9), LeaderEpoch(1)), 1: None}
        streams = streams_of(leader)
        gone = await streams.files_removed(topic.topic_id, [0], lambda index: ends[index])
        assert gone == [0]
        assert [each.removed for each in stored(store).segments] == [ends[0], None, None]
        assert {key for key in before if before[key] != store.values[key]} == {"topic/s"}
        assert await streams.files_removed(topic.topic_id, [1], lambda index: ends[index]) == []

    in_virtual_time(main)


def test_a_deposed_leader_gives_up_no_files() -> None:  # F8
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic, leader = await deleted_segment(hosts)
        key = PartitionKey(topic.topic_id, 0)
        state, version = leader.state.partitions[key]
        other = next(each for each in state.replicas if each != state.leader)
        leader.session.lateness = lambda: 2.0  # it hears of its successor late
        elected = state._replace(leader=other, leader_epoch=LeaderEpoch(state.leader_epoch + 1))
        assert store.commit([MetadataWrite(key.text, elected.encode(), version)])
        asked: list[int] = []

        def end_of(index: int) -> LogEnd:
            asked.append(index)
            return LogEnd(Offset(9), LeaderEpoch(1))

        error = await outcome(streams_of(leader).files_removed(topic.topic_id, [0], end_of))
        assert error is not None
        assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert stored(store).segments[0].removed is None
        assert len(asked) > 1, "it tried, was refused, and had heard of it in the end"

    in_virtual_time(main)


def test_only_the_leader_corrects_the_end_of_a_segment() -> None:  # R2, F8
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await made(hosts, 1)
        streams = streams_of(hosts[0])
        await streams.resize("s", [0])
        await streams.segment_sealed(topic.topic_id, 0, Offset(5))
        state = hosts[0].state.partitions[PartitionKey(topic.topic_id, 0)].state
        leader, other = hosts[state.leader - 1], hosts[state.leader % 3]
        for each in hosts:
            await each.state.until(lambda: states_on(each) == ["sealed", "open", "open"])  # noqa: B023
        error = await outcome(streams_of(other).end_corrected(topic.topic_id, 0, Offset(2)))
        assert error is not None
        assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert stored(store).segments[0].end == 5
        await streams_of(leader).end_corrected(topic.topic_id, 0, Offset(3))
        assert [each.end for each in stored(store).segments] == [3, -1, -1]

    in_virtual_time(main)
