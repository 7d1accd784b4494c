"""A leader that hands over serves readers no more before it stores who leads (F8)."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from fencelog.broker.metadata.catalog import GROUP_TOPIC
from fencelog.broker.metadata.cluster_state import PartitionKey
from fencelog.broker.metadata.elections import Elections
from fencelog.broker.metadata.known_commits import WRITES_MAX
from fencelog.broker.metadata.placement import ElectionType
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.ports import MetadataChange, MetadataWrite
from fencelog.types import LeaderEpoch, NodeId, Offset, TopicPartition
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import (
    Host,
    cluster,
    in_virtual_time,
    lose_some,
    make_topic,
    stored,
    topic_id_of,
    within,
)
from tests.support.partition import scenario
from tests.unit.replicas.hosts import TOPIC, until
from tests.unit.replicas.test_replica_manager import running

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
ALL = (ONE, TWO, THREE)
LED = PartitionState(ALL, ONE, LeaderEpoch(4), ALL, (), "1/1", heir=TWO)
HANDED_OVER = PartitionState(ALL, TWO, LeaderEpoch(5), ALL, (), "2/1")


def name_of(index: int = 0) -> PartitionKey:
    return PartitionKey(topic_id_of("t"), index)


def put(store: SimStore, state: PartitionState, index: int = 0) -> None:
    text = name_of(index).text
    assert store.commit([MetadataWrite(text, state.encode(), store.version(text))])


async def led_on(store: SimStore, host: Host, count: int = 1) -> None:
    """Return when a host has seen that these partitions are handed over."""
    keys = [name_of(index) for index in range(count)]
    await host.state.until(
        lambda: all(host.state.partitions[each].state == HANDED_OVER for each in keys)
    )
    assert [stored(store, "t", index) for index in range(count)] == [HANDED_OVER] * count


async def joined(store: SimStore) -> list[Host]:
    """Three brokers without a controller."""
    hosts = [await Host(store, number).join(controls=False) for number in ALL]
    for each in hosts:
        await each.state.until(lambda each=each: len(each.state.brokers) == len(ALL))
    return hosts


def test_it_resigns_before_it_stores_who_leads() -> None:
    async def main() -> None:
        store = SimStore()
        one, two, _ = await joined(store)
        seen: list[int] = []

        def committed(changes: Sequence[MetadataChange]) -> None:
            if any(each.value == HANDED_OVER.encode() for each in changes):
                seen.append(len(one.led.resigned))

        store.committed = committed
        await make_topic(one, "t", [LED])
        await within(1, led_on(store, two))
        assert seen == [1]
        assert one.led.resigned == [((topic_id_of("t"), 0), 4)]
        assert not two.led.resigned

    in_virtual_time(main)


def test_one_that_has_begun_to_lead_before_it_looked_is_seen_as_well() -> None:
    async def main() -> None:
        store = SimStore()
        one, two, _ = await joined(store)
        one.tasks[-1].cancel()
        await make_topic(one, "t", [LED])
        again = one.loop.start(one.process, one.handovers.run())
        await within(1, led_on(store, two))
        assert not again.done()

    in_virtual_time(main)


def test_a_write_of_its_in_sync_replicas_has_to_end_first() -> None:
    async def main() -> None:
        store = SimStore()
        one, two, _ = await joined(store)
        one.led.unsettled.add((topic_id_of("t"), 0))
        await make_topic(one, "t", [LED])
        await asyncio.sleep(1.0)
        assert stored(store, "t") == LED
        assert not one.led.resigned
        one.led.unsettled.clear()
        one.led.settled((topic_id_of("t"), 0))
        await within(1, led_on(store, two))

    in_virtual_time(main)


def test_many_partitions_are_handed_over_in_few_commits() -> None:
    async def main() -> None:
        store = SimStore()
        one, two, _ = await joined(store)
        count = 2 * WRITES_MAX + 1
        await make_topic(one, "t", [LED] * count)
        before = store.revision
        await within(1, led_on(store, two, count))
        assert store.revision == before + 3

    in_virtual_time(main)


def test_one_that_has_changed_meanwhile_does_not_hinder_the_others() -> None:
    async def main() -> None:
        store = SimStore()
        one, two, _ = await joined(store)
        one.session.lateness = lambda: 0.5
        await make_topic(two, "t", [LED._replace(heir=NO_LEADER)] * 3)
        for index in range(3):
            put(store, LED, index)
        await asyncio.sleep(0.7)  # it has seen the topic, and soon sees each heir
        put(store, LED._replace(isr=(ONE, TWO)), 1)
        both = HANDED_OVER, HANDED_OVER._replace(isr=(ONE, TWO))
        await within(5, until_stored(store, [both[0], both[1], both[0]]))
        assert len(one.led.resigned) == 3

    in_virtual_time(main)


async def until_stored(store: SimStore, states: list[PartitionState]) -> None:
    while [stored(store, "t", index) for index in range(len(states))] != states:  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("seed", range(20))
def test_each_is_handed_over_once_where_answers_are_lost_and_watches_late(seed: int) -> None:
    async def main() -> None:
        store = SimStore()
        random = Random(seed)
        hosts = await joined(store)
        for each in hosts:
            lose_some(each.session, random, 0.4)
            each.session.lateness = lambda: random.uniform(0.0, 0.3)
        await make_topic(hosts[0], "t", [LED] * 5)
        await until_stored(store, [HANDED_OVER] * 5)
        await asyncio.sleep(5.0)
        assert [stored(store, "t", index) for index in range(5)] == [HANDED_OVER] * 5
        assert sorted(hosts[0].led.resigned) == [((topic_id_of("t"), n), 4) for n in range(5)]

    in_virtual_time(main, seed=str(seed))


def test_without_an_heir_by_then_it_leads_on_in_another_epoch() -> None:
    async def main() -> None:
        store = SimStore()
        one, two, _ = await joined(store)
        await make_topic(one, "t", [LED._replace(heir=NO_LEADER)])
        put(store, LED)
        await one.state.until(lambda: one.state.partitions[name_of()].state == LED)
        one.session.cut()  # it resigns, and cannot store it
        await asyncio.sleep(0.1)
        assert len(one.led.resigned) == 1
        put(store, LED._replace(isr=(ONE, THREE), heir=NO_LEADER))
        two.kill()
        one.session.heal()
        expected = PartitionState(ALL, ONE, LeaderEpoch(5), (ONE, THREE), (), "1/1")
        await within(5, until_stored(store, [expected]))

    in_virtual_time(main)


def test_a_deleted_partition_is_not_handed_over() -> None:
    async def main() -> None:
        store = SimStore()
        one, two, _ = await joined(store)
        await make_topic(one, "t", [LED._replace(heir=NO_LEADER)] * 2)
        put(store, LED)
        await one.state.until(lambda: one.state.partitions[name_of()].state == LED)
        one.session.cut()
        await asyncio.sleep(0.1)
        assert store.commit([MetadataWrite(name_of().text, None)])
        one.session.heal()
        await asyncio.sleep(3.0)
        assert name_of().text not in store.values
        put(store, LED, 1)  # it goes on with others
        await two.state.until(lambda: two.state.partitions[name_of(1)].state == HANDED_OVER)

    in_virtual_time(main)


def test_an_operator_is_told_that_the_leader_has_not_handed_over_yet() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        by_two = PartitionState(ALL, TWO, LeaderEpoch(3), ALL, (), "2/1")
        await make_topic(hosts[2], "t", [by_two])
        hosts[1].session.lateness = lambda: 8.0
        asked = Elections(hosts[2].session, hosts[2].state, hosts[2].feed.min_isr)
        refused = await asked.elect(topic_id_of("t"), 0, ElectionType.PREFERRED, None)
        assert refused is not None
        assert refused.code is ErrorCode.REQUEST_TIMED_OUT
        assert refused.text == "broker 2 has not handed over yet; it does when it can"
        assert stored(store, "t") == by_two._replace(heir=ONE)
        await within(
            20,
            until_stored(
                store, [by_two._replace(leader=ONE, leader_epoch=LeaderEpoch(4), leader_life="1/1")]
            ),
        )

    in_virtual_time(main)


@scenario
async def test_readers_wait_at_the_old_leader_before_the_next_one_is_stored_and_writers_go_on() -> (
    None
):
    async with running() as replicas:
        replicas.lead(1)
        await until(lambda: replicas.leads(1, 0))
        replicas.hosts[ONE].produce(b"a")
        await until(lambda: replicas.committed(1))
        old = replicas.partition(1)
        failures: list[Exception | None] = []
        seen: list[tuple[ErrorCode, bool]] = []

        def committed(changes: Sequence[MetadataChange]) -> None:
            del changes
            if replicas.state().leader == TWO and not seen:
                seen.append((old.read_error, old.leads))
                replicas.hosts[ONE].produce(b"too late")
                old.when_committed(Offset(2), failures.append)

        replicas.store.committed = committed
        heir = replicas.state()._replace(heir=TWO)
        replicas.commit((PartitionKey(TOPIC, 0).text, heir.encode()))
        await until(lambda: replicas.leads(2, 1))
        assert seen == [(ErrorCode.OFFSET_NOT_AVAILABLE, True)]
        replicas.hosts[TWO].produce(b"b")
        await until(lambda: replicas.committed(2))
        assert [type(each) for each in failures] == [NotLeaderError]
        (copy,) = {host.bytes_of() for host in replicas.hosts.values()}
        assert b"too late" not in copy


@scenario
async def test_a_coordinator_stops_before_the_next_leader_is_stored() -> None:  # E16
    async with running() as replicas:
        for node in replicas.nodes.values():
            node.name_of = lambda one: TopicPartition(GROUP_TOPIC, one[1])  # type: ignore[method-assign]
        replicas.lead(1)
        await until(lambda: replicas.leads(1, 0))
        resigned: list[TopicPartition] = []
        replicas.nodes[1].manager.resigned = resigned.append
        seen: list[tuple[list[TopicPartition], bool]] = []

        def committed(changes: Sequence[MetadataChange]) -> None:
            del changes
            if replicas.state().leader == TWO:
                seen.append((list(resigned), replicas.partition(1).leads))

        replicas.store.committed = committed
        heir = replicas.state()._replace(heir=TWO)
        replicas.commit((PartitionKey(TOPIC, 0).text, heir.encode()))
        await until(lambda: replicas.leads(2, 1))
        assert seen[0] == ([TopicPartition(GROUP_TOPIC, 0)], False)
        replicas.hosts[TWO].produce(b"b")
        await until(lambda: replicas.committed(1))


@scenario
async def test_a_leadership_that_begins_with_an_heir_is_handed_over() -> None:
    async with running() as replicas:
        replicas.lead(1, heir=TWO)
        await until(lambda: replicas.leads(2, 1))
        assert replicas.state().heir == NO_LEADER
