"""One broker runs the rules; one that does not know that it is another one changes nothing."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from fencelog.broker.metadata.catalog import GROUP_TOPIC
from fencelog.broker.metadata.cluster_state import (
    PartitionKey,
    encoded_controller,
    encoded_deletion,
)
from fencelog.broker.metadata.registration import fence
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.controller.rules import isr_changed
from fencelog.ports import MetadataWrite
from fencelog.types import LeaderEpoch, NodeId
from fencelog_sim.world.gate import Lost
from fencelog_sim.world.metadata import SimStore
from tests.support.cluster_metadata import (
    TTL_S,
    Host,
    cluster,
    controller_of,
    in_virtual_time,
    lose_some,
    make_topic,
    stored,
    topic_id_of,
    within,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
ALL = (ONE, TWO, THREE)


def led_by(leader: NodeId, *others: NodeId, epoch: int = 0) -> PartitionState:
    replicas = (leader, *others)
    return PartitionState(replicas, leader, LeaderEpoch(epoch), replicas, (), f"{leader}/1")


def everything(store: SimStore, topic: str, count: int) -> list[PartitionState]:
    return [stored(store, topic, number) for number in range(count)]


async def all_led(host: Host, by: Sequence[NodeId], topic: str, count: int) -> None:
    """Wait until one of these leads each partition."""
    keys = [PartitionKey(topic_id_of(topic), number) for number in range(count)]
    await host.state.until(lambda: all(host.state.partitions[k].state.leader in by for k in keys))


def test_one_broker_is_the_controller_and_the_next_one_when_its_lease_ends() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        first = controller_of(hosts)
        others = [each for each in hosts if each is not first]
        await make_topic(others[0], "t", [led_by(first.node, *(each.node for each in others))])
        first.kill()
        begun = first.loop.time()
        await all_led(others[0], [each.node for each in others], "t", 1)
        assert TTL_S - TTL_S / 3 < first.loop.time() - begun < TTL_S + 1
        second = controller_of(others)
        assert store.values["controller"][0] == encoded_controller(
            second.node, second.registration.registration.incarnation
        )
        assert stored(store, "t").leader_epoch == 1
        assert first.node not in stored(store, "t").isr

    in_virtual_time(main)


def test_the_partitions_of_a_broker_that_is_fenced_are_led_by_others_at_once() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        first = controller_of(hosts)
        others = [each for each in hosts if each is not first]
        replicas = (first.node, *(each.node for each in others))
        count = 300
        await make_topic(others[0], "t", [led_by(*replicas)] * count)
        first.kill()
        begun = first.loop.time()
        version = others[0].state.brokers[first.node].version
        assert await fence(others[0].session, others[0].state, first.node, version)
        await within(0.1, all_led(others[1], replicas[1:], "t", count))
        assert first.loop.time() - begun < 0.1
        for state in everything(store, "t", count):
            assert state == led_by(*replicas)._replace(
                leader=replicas[1],
                leader_epoch=1,
                isr=replicas[1:],
                leader_life=f"{replicas[1]}/1",
            )

    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(10))
def test_each_election_happens_once_where_answers_are_lost_and_watches_late(seed: int) -> None:
    async def main() -> None:
        store = SimStore()
        random = Random(seed)
        hosts = await cluster(store, *ALL)
        for each in hosts:
            lose_some(each.session, random)
            each.session.lateness = lambda: random.choice([0.0, 0.0, 0.05, 2.0])
        victim = random.choice(hosts)
        others = [each for each in hosts if each is not victim]
        count = 200
        replicas = (victim.node, *(each.node for each in others))
        await make_topic(others[0], "t", [led_by(*replicas)] * count)
        victim.kill()
        await within(120, all_led(others[0], replicas[1:], "t", count))
        await asyncio.sleep(30)
        assert {state.leader_epoch for state in everything(store, "t", count)} == {1}

    in_virtual_time(main, seed=str(seed))


def test_a_controller_that_does_not_know_of_its_successor_changes_nothing() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        old = controller_of(hosts)
        others = [each for each in hosts if each is not old]
        # It sees nothing of what comes, and never learns that it is not the controller.
        old.session.lateness = lambda: 10_000.0
        store.commit([MetadataWrite("controller", None)])
        await others[0].state.until(
            lambda: (held := others[0].state.controller) is not None and held.node_id != old.node
        )
        new = controller_of(others)
        await make_topic(new, "t", [led_by(new.node, old.node)])
        before = dict(store.values)
        seen = old.controller._seen([])
        key = PartitionKey(topic_id_of("t"), 0)
        unread = new.controller._seen([key])
        stale = seen._replace(partitions=unread.partitions)
        state = unread.partitions[key].state._replace(leader=old.node, leader_epoch=LeaderEpoch(9))
        assert old.controller.is_controller
        assert not await old.controller._commit_batch(stale, {key: state})
        assert await new.controller._commit_batch(unread, {key: state})
        assert store.values[key.text] != before[key.text]

    in_virtual_time(main)


def test_internal_topics_get_the_replicas_that_were_missing_and_others_do_not() -> None:
    async def main() -> None:
        store = SimStore()
        (first,) = await cluster(store, ONE)
        await make_topic(first, GROUP_TOPIC, [led_by(ONE)] * 100)
        await make_topic(first, "t", [led_by(ONE)])
        factors = []
        for number in (2, 3, 4):
            host = await Host(store, number).join()
            await host.state.until(lambda: len(host.state.brokers) == number)  # noqa: B023
            await asyncio.sleep(5)
            states = everything(store, GROUP_TOPIC, 100)
            factors.append({len(each.replicas) for each in states})
        assert factors == [{2}, {3}, {3}]
        assert all(each._replace(replicas=(ONE,)) == led_by(ONE) for each in states)
        assert stored(store, "t") == led_by(ONE)

    in_virtual_time(main)


def test_a_lease_that_ends_in_the_middle_of_the_work_ends_it() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        old = controller_of(hosts)
        victim, heir = (each for each in hosts if each is not old)
        count = 400
        replicas = (victim.node, heir.node)
        await make_topic(heir, "t", [led_by(*replicas)] * count)
        heir.session.cut()  # the other one does not take the key meanwhile
        done: list[int] = []

        def lose(verb: str, key: str) -> Lost | None:
            if key.startswith("partition/"):
                done.append(0)
                if len(done) == 3:
                    assert old.registration.lease is not None
                    store.end(old.registration.lease)
            return None

        old.session.lose = lose
        victim.kill()
        assert await fence(
            old.session, old.state, victim.node, old.state.brokers[victim.node].version
        )
        await old.state.until(lambda: old.state.controller is None)
        await asyncio.sleep(1)
        epochs = [state.leader_epoch for state in everything(store, "t", count)]
        assert 0 < epochs.count(LeaderEpoch(1)) < count
        assert len(old.lost_at) == 1
        heir.session.heal()
        await within(10, all_led(heir, [heir.node], "t", count))
        assert {state.leader_epoch for state in everything(store, "t", count)} == {1}

    in_virtual_time(main)


def test_a_partition_that_keeps_changing_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        controller = controller_of(hosts)
        victim, leader = (each for each in hosts if each is not controller)
        count = 130
        states = [led_by(victim.node, leader.node)] * count
        await make_topic(leader, "t", states)
        busy = PartitionKey(topic_id_of("t"), 7).text

        def changed(verb: str, key: str) -> None:
            if verb == "commit":
                value, version = store.values[busy]
                store.commit([MetadataWrite(busy, value, version)])

        controller.session.lose = changed
        victim.kill()
        version = controller.state.brokers[victim.node].version
        assert await fence(controller.session, controller.state, victim.node, version)

        def others_are_led() -> bool:
            led = [
                each.state.leader
                for key, each in leader.state.partitions.items()
                if key.partition != 7
            ]
            return set(led) == {leader.node}

        await within(60, leader.state.until(others_are_led))
        assert stored(store, "t", 7).leader == victim.node
        controller.session.lose = None
        await within(5, all_led(leader, [leader.node], "t", count))

    in_virtual_time(main)


def test_a_change_of_the_isr_by_its_leader_is_not_undone() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        controller = controller_of(hosts)
        leader, gone = (each for each in hosts if each is not controller)
        replicas = (leader.node, controller.node, gone.node)
        await make_topic(leader, "t", [led_by(*replicas)])
        key = PartitionKey(topic_id_of("t"), 0)
        before = store.version(key.text)
        smaller = isr_changed(stored(store, "t"), (leader.node, gone.node), 1)

        def overtaken(verb: str, name: str) -> None:
            controller.session.lose = None
            assert name == key.text
            assert store.commit([MetadataWrite(name, smaller.encode(), before)])

        controller.session.lose = overtaken
        gone.kill()
        version = controller.state.brokers[gone.node].version
        assert await fence(leader.session, leader.state, gone.node, version)
        await within(
            5,
            leader.state.until(lambda: leader.state.partitions[key].state.isr == (leader.node,)),
        )
        assert stored(store, "t").leader_epoch == 0

    in_virtual_time(main)


def test_nothing_that_changes_between_two_batches_is_undone() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        controller = controller_of(hosts)
        leader, gone = (each for each in hosts if each is not controller)
        replicas, count = (leader.node, controller.node, gone.node), 130
        await make_topic(leader, "t", [led_by(*replicas)] * count)
        key = PartitionKey(topic_id_of("t"), 100).text
        smaller = isr_changed(stored(store, "t", 100), (leader.node, gone.node), 1)

        def changed(verb: str, name: str) -> None:
            controller.session.lose = None
            assert store.commit([MetadataWrite(key, smaller.encode(), store.version(key))])

        controller.session.lose = changed
        gone.kill()
        version = controller.state.brokers[gone.node].version
        assert await fence(leader.session, leader.state, gone.node, version)
        await asyncio.sleep(5)
        isrs = [state.isr for state in everything(store, "t", count)]
        assert isrs[100] == (leader.node,)
        assert isrs[:100] + isrs[101:] == [replicas[:2]] * (count - 1)

    in_virtual_time(main)


def test_a_broker_that_is_gone_when_it_is_elected_is_not() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        controller = controller_of(hosts)
        gone, next_one = (each for each in hosts if each is not controller)
        replicas = (gone.node, next_one.node, controller.node)
        await make_topic(controller, "t", [led_by(*replicas)])

        def gone_too(verb: str, name: str) -> None:
            if name.startswith("partition/"):
                controller.session.lose = None
                store.commit([MetadataWrite(next_one.registration.key, None)])

        controller.session.lose = gone_too
        gone.kill()
        version = controller.state.brokers[gone.node].version
        assert await fence(next_one.session, next_one.state, gone.node, version)
        await within(5, all_led(controller, [controller.node], "t", 1))
        assert stored(store, "t").leader_epoch == 1

    in_virtual_time(main)


def test_a_broker_that_was_fenced_does_not_become_the_controller() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, ONE, TWO)
        old = controller_of(hosts)
        (fenced,) = (each for each in hosts if each is not old)

        def fence_it(verb: str, key: str) -> None:
            # Its lease goes on, and it does not know yet.
            if key == "controller":
                store.commit([MetadataWrite(fenced.registration.key, None)])

        fenced.session.lose = fence_it
        old.kill()
        store.commit([MetadataWrite("controller", None)])
        await asyncio.sleep(5)
        assert len(fenced.lost_at) == 1
        assert "controller" not in store.values

    in_virtual_time(main)


def test_a_new_life_of_a_leader_leads_in_a_new_epoch_and_its_key_is_taken_over() -> None:
    async def main() -> None:
        store = SimStore()
        (only,) = await cluster(store, 1)
        await make_topic(only, "t", [led_by(ONE)])
        only.kill()
        begun = only.loop.time()
        again = await Host(store, 1, life=2).join()
        await within(2, again.state.until(lambda: stored(store, "t").leader_life == "1/2"))
        assert only.loop.time() - begun < 1.0
        assert stored(store, "t") == led_by(ONE, epoch=1)._replace(leader_life="1/2")
        await asyncio.sleep(3 * TTL_S)
        assert again.controller.is_controller

    in_virtual_time(main)


def test_a_broker_that_stops_is_relieved_and_leads_again_when_it_is_back() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        controller = controller_of(hosts)
        stopping, other = (each for each in hosts if each is not controller)
        replicas = (stopping.node, other.node)
        await make_topic(other, "t", [led_by(*replicas)])
        await stopping.registration.announce_stop()
        await within(2, all_led(other, [other.node], "t", 1))
        assert stored(store, "t").isr == replicas
        await stopping.do(stopping.registration.end)
        stopping.kill()
        back = await Host(store, stopping.node, life=2).join()
        key = PartitionKey(topic_id_of("t"), 0)
        await other.state.until(lambda: other.state.partitions[key].state.isr == (other.node,))
        # Its leader takes it into the ISR again; some time later it is the preferred one again.
        joined = isr_changed(stored(store, "t"), replicas, 1)
        store.commit([MetadataWrite(key.text, joined.encode(), store.version(key.text))])
        await within(60, all_led(back, [back.node], "t", 1))
        assert stored(store, "t").leader_epoch == 2

    in_virtual_time(main)


def test_the_last_member_of_an_isr_stays_when_it_is_gone() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        controller = controller_of(hosts)
        last, other = (each for each in hosts if each is not controller)
        state = led_by(last.node, other.node)._replace(isr=(last.node,))
        await make_topic(other, "t", [state])
        last.kill()
        await all_led(other, [NO_LEADER], "t", 1)
        assert stored(store, "t").isr == (last.node,)
        back = await Host(store, last.node, life=2).join()
        await within(2, all_led(back, [back.node], "t", 1))
        assert stored(store, "t").isr == (last.node,)

    in_virtual_time(main)


def test_nothing_is_left_of_a_topic_that_all_brokers_have_removed() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        topic = await make_topic(hosts[0], "t", [led_by(ONE, TWO)] * 200)
        deleted = f"deleted-topic/{topic.topic_id.hex()}"
        store.commit(
            [
                MetadataWrite("topic/t", None),
                MetadataWrite(deleted, encoded_deletion("t", [ONE, TWO]), 0),
            ]
        )
        await within(5, hosts[0].state.until(lambda: not hosts[0].state.partitions))
        assert deleted in store.values
        for each in hosts:
            await each.state.until(lambda: topic.topic_id in each.state.deleted)  # noqa: B023
            await each.topics.files_removed(topic.topic_id)
        await within(60, hosts[0].state.until(lambda: not hosts[0].state.deleted))
        assert not [key for key in store.values if "topic" in key or "partition" in key]

    in_virtual_time(main)


def test_the_rules_are_run_when_min_insync_replicas_changes() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        state = led_by(*ALL)._replace(isr=(ONE,), eligible=(TWO,))
        await make_topic(hosts[0], "t", [state], {"min.insync.replicas": "2"})
        await asyncio.sleep(1)
        assert stored(store, "t").eligible == (TWO,)

        def one(settings: object) -> dict[str, str]:
            return {"min.insync.replicas": "1"}

        await hosts[1].topics.configure_topic("t", one)
        key = PartitionKey(topic_id_of("t"), 0)
        await within(
            5, hosts[0].state.until(lambda: not hosts[0].state.partitions[key].state.eligible)
        )

    in_virtual_time(main)


def test_a_controller_that_cannot_reach_the_store_is_replaced_and_the_work_is_done() -> None:
    async def main() -> None:
        store = SimStore()
        hosts = await cluster(store, *ALL)
        first = controller_of(hosts)
        others = [each for each in hosts if each is not first]
        await make_topic(others[0], "t", [led_by(first.node, others[0].node)])
        first.session.cut()
        await within(TTL_S + 2, all_led(others[0], [others[0].node], "t", 1))
        assert len(first.lost_at) == 1
        first.session.heal()
        await asyncio.sleep(30)
        assert not first.controller.is_controller
        assert stored(store, "t").leader == others[0].node

    in_virtual_time(main)
