"""Any broker of a cluster changes topics and settings, at the same time as any other."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from fencelog.broker.metadata.catalog import GROUP_TOPIC, Topic
from fencelog.broker.metadata.cluster_state import PartitionKey
from fencelog.broker.metadata.controller import NewTopic
from fencelog.coordination.controller.model import PartitionState
from fencelog.errors import ErrorCode, NotCoordinatorError, NotLeaderError, RequestError
from fencelog.ports import MetadataWrite
from fencelog.types import NodeId, TopicId
from fencelog_sim.world.gate import Fault, Lost
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import (
    Host,
    cluster,
    in_background,
    in_virtual_time,
    lose_some,
    within,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
ALL = (ONE, TWO, THREE)


def states(host: Host, topic: Topic) -> list[PartitionState]:
    """The states of a topic's partitions, as a broker sees them."""
    keys = [PartitionKey(topic.topic_id, number) for number in range(topic.partitions)]
    return [host.state.partitions[key].state for key in keys]


def code(outcome: Topic | RequestError | BaseException | None) -> ErrorCode:
    assert isinstance(outcome, RequestError), outcome
    return outcome.code


async def outcome_of(change: object) -> RequestError | None:
    try:
        await change  # type: ignore[misc]
    except RequestError as error:
        return error
    return None


def setting(key: str, value: str) -> object:
    def change(settings: Mapping[str, str]) -> dict[str, str]:
        return {**settings, key: value}

    return change


def test_a_topic_that_one_broker_creates_is_there_on_all() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await hosts[0].topics.create_topic("t", 6, {"retention.ms": "1000"})
        assert hosts[0].catalog.get("t") == topic
        placed = states(hosts[0], topic)
        assert sorted(each.leader for each in placed) == [1, 1, 2, 2, 3, 3]
        assert all(sorted(each.isr) == sorted(each.replicas) == [1, 2, 3] for each in placed)
        for each in hosts:
            await each.state.until(lambda: "t" in each.state.topics)  # noqa: B023
            assert each.catalog.get("t") == topic
            assert each.catalog.by_id(topic.topic_id) == topic
            assert states(each, topic) == placed

    in_virtual_time(main)


def test_a_change_is_answered_once_this_broker_has_seen_it() -> None:
    async def main() -> None:
        store = SimStore()
        (host,) = await cluster(store, 1)
        host.topics._factors = host.topics._factors._replace(default=1)
        host.session.lateness = lambda: 3.0
        opened: list[Topic] = []

        async def open_replicas(topic: Topic) -> None:
            assert host.catalog.get(topic.name) is not None
            opened.append(topic)

        host.topics.opened = open_replicas
        begun = host.loop.time()
        creating = in_background(host.topics.create_topic("t", 1, {}))
        await asyncio.sleep(2.9)
        assert "topic/t" in store.values
        assert not creating.done()
        topic = await creating
        assert opened == [topic]
        assert host.loop.time() - begun >= 3.0
        await host.topics.configure_topic("t", setting("retention.ms", "7"))  # type: ignore[arg-type]
        changed = host.catalog.get("t")
        assert changed is not None
        assert changed.settings == {"retention.ms": "7"}
        await host.topics.add_partitions(changed, 3)
        assert host.catalog.partition_total == 3
        assert [each.partitions for each in opened] == [1, 3]
        await host.topics.delete_topic(changed)
        assert host.catalog.get("t") is None
        await host.topics.configure_broker("", setting("log.retention.ms", "9"))  # type: ignore[arg-type]
        assert host.settings.topic_defaults["retention.ms"] == "9"

    in_virtual_time(main)


def test_a_change_that_is_not_seen_for_long_is_a_time_out() -> None:
    async def main() -> None:
        store = SimStore()
        (host,) = await cluster(store, 1)
        host.topics._factors = host.topics._factors._replace(default=1)
        host.session.lateness = lambda: 60.0
        with pytest.raises(RequestError, match="does not see") as refused:
            await host.topics.create_topic("t", 1, {})
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT

    in_virtual_time(main)


def test_a_stop_waits_for_no_change_that_this_broker_cannot_see_any_more() -> None:
    async def main() -> None:  # F7: a life that has lost its lease ends soon, and another begins
        store = SimStore()
        (host,) = await cluster(store, 1)
        host.topics._factors = host.topics._factors._replace(default=1)
        host.session.lateness = lambda: 60.0
        creating = [
            in_background(outcome_of(host.topics.create_topic(name, 1, {}))) for name in "abc"
        ]
        await asyncio.sleep(1.0)
        following, *_ = host.tasks
        following.cancel()
        await within(0.1, host.topics.stop())
        stopping = ErrorCode.BROKER_NOT_AVAILABLE  # of those that waited for their turn
        codes = sorted([code(await each) for each in creating])
        assert codes == [ErrorCode.REQUEST_TIMED_OUT, stopping, stopping]
        assert len({"topic/a", "topic/b", "topic/c"} & store.values.keys()) == 1

    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(5))
def test_of_topics_of_one_name_that_are_created_at_once_one_is(seed: int) -> None:
    async def main() -> None:
        store, random = SimStore(), Random(seed)
        hosts = await cluster(store, *ALL)
        for each in hosts:
            lose_some(each.session, random, 0.4)
        async with asyncio.TaskGroup() as tasks:
            creating = [
                tasks.create_task(
                    each.topics.create_topics(
                        [NewTopic("same", 2, {}), NewTopic(f"own-{each.node}", 2, {})]
                    )
                )
                for each in hosts
            ]
        outcomes = [each.result() for each in creating]
        same = [outcome[0] for outcome in outcomes]
        (winner,) = (each for each in same if isinstance(each, Topic))
        others = [code(each) for each in same if not isinstance(each, Topic)]
        assert others == [ErrorCode.TOPIC_ALREADY_EXISTS] * 2
        assert all(isinstance(outcome[1], Topic) for outcome in outcomes)
        await asyncio.sleep(5)
        assert [each.catalog.get("same") for each in hosts] == [winner] * 3
        partitions = sum(key.startswith("partition/") for key in store.values)
        assert partitions == 4 * 2

    in_virtual_time(main, seed=str(seed))


@pytest.mark.parametrize("seed", range(5))
def test_topics_of_any_size_are_created_where_answers_are_lost(seed: int) -> None:
    async def main() -> None:
        store, random = SimStore(), Random(seed)
        hosts = await cluster(store, *ALL)
        lose_some(hosts[0].session, random, 0.3)
        sizes = [1, 500, 3, 62, 63, 64, 1, 128, 20, 20, 20, 20, 20]
        requested = [NewTopic(f"t{number}", size, {}) for number, size in enumerate(sizes)]
        created = await hosts[0].topics.create_topics(requested)
        await asyncio.sleep(5)
        for each, size in zip(created, sizes, strict=True):
            assert isinstance(each, Topic)
            assert len(states(hosts[1], each)) == size

    in_virtual_time(main, seed=str(seed))


def test_no_commit_is_larger_than_etcd_takes() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        commit, largest = store.commit, 0

        def counted(
            writes: Sequence[MetadataWrite], unchanged: Mapping[str, int] | None = None
        ) -> int | None:
            nonlocal largest
            largest = max(largest, len(writes) + len(unchanged or {}))
            return commit(writes, unchanged)

        store.commit = counted  # type: ignore[method-assign]
        await hosts[0].topics.create_topics([NewTopic(f"t{n}", n, {}) for n in (5, 60, 64, 300)])
        hosts[2].kill()
        await asyncio.sleep(30)
        assert 60 < largest <= 128

    in_virtual_time(main)


def test_a_topic_is_there_with_all_its_partitions_or_not_at_all() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        commits = 0

        def third_fails(verb: str, key: str, size: int) -> Fault | None:
            nonlocal commits
            commits += verb == "commit"
            return Fault() if verb == "commit" and commits == 3 else None

        hosts[0].session.gate = third_fails
        with pytest.raises(RequestError) as failed:
            await hosts[0].topics.create_topic("t", 300, {})
        assert failed.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "topic/t" not in store.values
        topic = await hosts[0].topics.create_topic("t", 300, {})
        assert len(states(hosts[0], topic)) == 300

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewTopic("t", 1, {}, replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, {}, replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, {}, assignment=[[ONE, ONE]]), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        (NewTopic("t", 1, {}, assignment=[[NodeId(9)]]), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        (NewTopic("t", 1, {"retention.ms": "x"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("a_b", 1, {}), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a.b", 1, {}), ErrorCode.TOPIC_ALREADY_EXISTS),
    ],
)
def test_what_cannot_be_created_is_refused_alone(new: NewTopic, error: ErrorCode) -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        await hosts[0].topics.create_topic("a.b", 1, {})
        before = dict(store.values)
        refused, created = await hosts[0].topics.create_topics([new, NewTopic("good", 1, {})])
        assert code(refused) is error
        assert isinstance(created, Topic)
        await hosts[0].topics.delete_topic(created)
        await asyncio.sleep(1)
        assert {k: v for k, v in store.values.items() if "deleted" not in k} == before

    in_virtual_time(main)


def test_replicas_are_those_that_a_request_names() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        named = NewTopic("t", 2, {}, assignment=[[TWO, ONE], [THREE, TWO]])
        (topic,) = await hosts[0].topics.create_topics([named])
        assert isinstance(topic, Topic)
        assert [each.replicas for each in states(hosts[0], topic)] == [(TWO, ONE), (THREE, TWO)]
        wrong = hosts[0].topics.add_partitions(topic, 3, [[ONE]])
        assert code(await outcome_of(wrong)) is ErrorCode.INVALID_REPLICATION_ASSIGNMENT
        await hosts[0].topics.add_partitions(topic, 3, [[ONE, THREE]])
        await hosts[0].topics.add_partitions(topic, 4)
        changed = hosts[0].catalog.get("t")
        assert changed is not None
        assert [len(each.replicas) for each in states(hosts[0], changed)] == [2] * 4
        assert states(hosts[0], changed)[2].replicas == (ONE, THREE)

    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(5))
def test_changes_that_two_brokers_make_at_once_are_both_there(seed: int) -> None:
    async def main() -> None:
        store, random = SimStore(), Random(seed)
        hosts = await cluster(store, *ALL)
        topic = await hosts[0].topics.create_topic("t", 2, {})
        for each in hosts:
            await each.state.until(lambda: "t" in each.state.topics)  # noqa: B023
            lose_some(each.session, random, 0.3)
            each.session.lateness = lambda: random.choice([0.0, 0.1])
        keys = ("retention.ms", "segment.bytes", "max.message.bytes")
        async with asyncio.TaskGroup() as tasks:
            for host, key in zip(hosts, keys, strict=True):
                tasks.create_task(host.topics.configure_topic("t", setting(key, "20000")))  # type: ignore[arg-type]
                tasks.create_task(
                    host.topics.configure_broker("", setting(f"log.{key}", "30000"))  # type: ignore[arg-type]
                    if key != "max.message.bytes"
                    else host.topics.add_partitions(topic, 5)
                )
        await asyncio.sleep(5)
        for host in hosts:
            changed = host.catalog.get("t")
            assert changed is not None
            assert changed.settings == dict.fromkeys(keys, "20000")
            assert changed.partitions == 5
            assert len(states(host, changed)) == 5
            assert host.settings.changed("") == {
                "log.retention.ms": "30000",
                "log.segment.bytes": "30000",
            }

    in_virtual_time(main, seed=str(seed))


def test_a_partition_that_an_attempt_has_left_does_not_stand_in_the_way() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await hosts[0].topics.create_topic("t", 1, {})
        key = PartitionKey(topic.topic_id, 1)
        store.commit([MetadataWrite(key.text, states(hosts[0], topic)[0].encode())])
        await hosts[0].topics.add_partitions(topic, 2)
        assert hosts[0].catalog.partition_total == 2

    in_virtual_time(main)


@pytest.mark.parametrize("lost", [None, Lost(False), Lost(True), Lost(True, after_s=0.5)])
def test_a_topic_is_deleted_once_and_its_name_is_free(lost: Lost | None) -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        first = await hosts[0].topics.create_topic("t", 3, {})
        await hosts[1].state.until(lambda: "t" in hosts[1].state.topics)
        answers = [lost]
        hosts[0].session.lose = lambda _verb, _key: answers.pop() if answers else None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hosts[0].topics.delete_topic(first))
            tasks.create_task(hosts[1].topics.delete_topic(first))
        assert hosts[0].state.deleted[first.topic_id].brokers == ALL
        second = await hosts[0].topics.create_topic("t", 1, {})
        await hosts[0].topics.delete_topic(first)
        await asyncio.sleep(5)
        for each in hosts:
            assert each.catalog.get("t") == second
            assert each.catalog.by_id(TopicId(first.topic_id)) is None
            assert each.catalog.partition_total == 1

    in_virtual_time(main)


def test_a_topic_that_is_gone_or_wrong_is_refused() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topics = hosts[0].topics
        topic = await topics.create_topic("t", 2, {})
        fewer = await outcome_of(topics.add_partitions(topic, 2))
        assert code(fewer) is ErrorCode.INVALID_PARTITIONS
        wrong = await outcome_of(topics.configure_topic("t", setting("retention.ms", "x")))  # type: ignore[arg-type]
        assert code(wrong) is ErrorCode.INVALID_CONFIG
        defaults = setting("log.message.timestamp.type", "x")
        wrong = await outcome_of(topics.configure_broker("", defaults))  # type: ignore[arg-type]
        assert code(wrong) is ErrorCode.INVALID_CONFIG
        await topics.delete_topic(topic)
        for change in (
            topics.add_partitions(topic, 3),
            topics.configure_topic("t", setting("retention.ms", "1")),  # type: ignore[arg-type]
        ):
            assert code(await outcome_of(change)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await topics.stop()
        late = await outcome_of(topics.create_topic("u", 1, {}))
        assert code(late) is ErrorCode.BROKER_NOT_AVAILABLE

    in_virtual_time(main)


def test_without_the_store_a_change_is_unknown_to_the_client() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        hosts[0].session.cut()
        failed = await outcome_of(hosts[0].topics.create_topic("t", 1, {}))
        assert code(failed) is ErrorCode.REQUEST_TIMED_OUT

    in_virtual_time(main)


def test_an_internal_topic_has_as_many_replicas_as_there_are_brokers_up_to_its_factor() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, ONE, TWO)

        async def opening(host: Host, index: int) -> type[Exception] | None:
            try:
                await host.topics.open_internal(GROUP_TOPIC, index)
            except (NotLeaderError, NotCoordinatorError) as error:
                return type(error)
            return None

        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(opening(each, 0)) for each in hosts for _ in range(2)]
        assert None not in [each.result() for each in both]
        await asyncio.sleep(1)
        topic = hosts[0].catalog.get(GROUP_TOPIC)
        assert topic is not None
        assert topic == hosts[1].catalog.get(GROUP_TOPIC)
        placed = states(hosts[0], topic)
        assert [sorted(each.replicas) for each in placed] == [[1, 2]] * 2
        for index, state in enumerate(placed):
            for host in hosts:
                is_led_here = state.leader == host.node
                found = await opening(host, index)
                assert found is (NotLeaderError if is_led_here else NotCoordinatorError)

    in_virtual_time(main)


def test_settings_that_cannot_be_used_leave_the_old_ones_in_force(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await hosts[0].topics.create_topic("t", 1, {"min.insync.replicas": "2"})
        assert hosts[0].feed.min_isr(topic.topic_id) == 2
        assert hosts[0].feed.min_isr(TopicId(bytes(16))) is None
        foreign = Topic(
            name="t", topic_id=topic.topic_id, partitions=1, settings={"retention.ms": "x"}
        )
        store.commit([MetadataWrite("topic/t", foreign.encode())])
        await within(5, hosts[0].state.until(lambda: hosts[0].state.topics["t"].topic == foreign))
        assert "topic t keeps its settings" in caplog.text
        assert hosts[0].feed.min_isr(topic.topic_id) == 1

    in_virtual_time(main)


@pytest.mark.parametrize("commits", range(5))
@pytest.mark.parametrize("goes_on", [False, True])
def test_what_a_broker_leaves_that_stops_while_it_stores_a_topic_is_removed(
    commits: int, *, goes_on: bool
) -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        (maker, *_) = [each for each in hosts if not each.controller.is_controller]
        go_on, commit, left = asyncio.Event(), maker.session.commit, commits

        async def stop_then_commit(*writes: object, **how: object) -> bool:
            nonlocal left
            if left == 0:
                await go_on.wait()
            left -= 1
            return await commit(*writes, **how)  # type: ignore[arg-type]

        maker.session.commit = stop_then_commit  # type: ignore[method-assign, assignment]
        creating = in_background(outcome_of(maker.topics.create_topic("t", 200, {})))
        await asyncio.sleep(200)
        if goes_on:
            go_on.set()
            await creating
        await asyncio.sleep(200)
        is_there = "topic/t" in store.values
        assert len([key for key in store.values if key.startswith("partition/")]) == 200 * is_there
        assert is_there == (commits > 3 or (goes_on and commits == 0))

    in_virtual_time(main)


def test_partitions_that_were_added_without_their_topic_are_removed() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await hosts[0].topics.create_topic("t", 2, {})
        (first, _) = states(hosts[0], topic)
        more = [
            MetadataWrite(PartitionKey(topic.topic_id, index).text, first.encode(), 0)
            for index in range(2, 66)
        ]
        assert store.commit(more)
        await asyncio.sleep(200)
        left = [key for key in store.values if key.startswith("partition/")]
        assert sorted(left) == [PartitionKey(topic.topic_id, each).text for each in (0, 1)]
        await hosts[0].topics.add_partitions(topic, 150)
        await asyncio.sleep(200)
        assert len([key for key in store.values if key.startswith("partition/")]) == 150

    in_virtual_time(main)
