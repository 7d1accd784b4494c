"""The metadata of three brokers over a real etcd: registrations, the controller, elections."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencelog.adapters.etcd_metadata import EtcdMetadata
from fencelog.broker.metadata.catalog import Topic
from fencelog.broker.metadata.cluster_controller import ClusterController
from fencelog.broker.metadata.cluster_state import ClusterState, PartitionKey
from fencelog.broker.metadata.known_commits import WRITES_MAX
from fencelog.broker.metadata.registration import BrokerRegistration, fence
from fencelog.broker.replicas.handovers import Handovers
from fencelog.coordination.controller.model import PartitionState, Registration
from fencelog.ports import MetadataWrite
from fencelog.types import LeaderEpoch, NodeId, TopicId
from tests.support.cluster_metadata import LeadsAsStored
from tests.support.etcd import Etcd

DEADLINE_S = 60.0
SESSION_S = 6.0
PARTITIONS = 200
TOPIC = TopicId(b"t" * 16)


class Host:
    """What a broker has to do with the metadata."""

    def __init__(self, node: NodeId, store: EtcdMetadata) -> None:
        self.node = node
        self.store = store
        self.lost: list[None] = []
        self.state = ClusterState(store)
        self.registration = BrokerRegistration(
            store,
            self.state,
            Registration(node, "h", 9092, f"life of {node}", f"directory of {node}"),
            ttl_s=SESSION_S,
            on_lost=lambda: self.lost.append(None),
        )
        self.controller = ClusterController(
            store, self.state, self.registration, lambda _topic_id: 1, internal_factor=1
        )
        led = LeadsAsStored(self.state, f"life of {node}")
        self.handovers = Handovers(store, self.state, led, led.give_up)
        self.tasks: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        """Start as a broker does."""
        await self.state.start()
        self.tasks.append(asyncio.create_task(self.state.run()))
        await self.registration.begin()
        self.tasks.append(asyncio.create_task(self.registration.run()))
        self.tasks.append(asyncio.create_task(self.controller.run()))
        self.tasks.append(asyncio.create_task(self.handovers.run()))

    async def die(self) -> None:
        """End as a killed process does: the lease goes on."""
        for each in self.tasks:
            each.cancel()
        await asyncio.wait(self.tasks)
        self.tasks.clear()

    def leaders(self) -> list[tuple[NodeId, LeaderEpoch]]:
        """Leader and epoch of each partition, as the broker has seen."""
        stored = self.state.partitions.values()
        return [(each.state.leader, each.state.leader_epoch) for each in stored]


@asynccontextmanager
async def hosts(etcd: Etcd) -> AsyncIterator[list[Host]]:
    """Three brokers that see each other, and one of them as the controller; that one is first."""
    url = etcd.url(f"c{secrets.token_hex(4)}")
    async with asyncio.timeout(DEADLINE_S):
        joined = [Host(NodeId(each), await EtcdMetadata.open(url)) for each in (1, 2, 3)]
        try:
            for each in joined:
                await each.join()
            for each in joined:
                await each.state.until(
                    lambda state=each.state: len(state.brokers) == 3 and state.controller
                )
            yield sorted(joined, key=lambda each: not each.controller.is_controller)
        finally:
            for each in joined:
                if each.tasks:
                    await each.die()
                await each.store.close()


async def make_topic(host: Host, replicas: tuple[NodeId, ...]) -> None:
    """Store a topic whose partitions the first of these leads."""
    topic = Topic(name="t", topic_id=TOPIC, partitions=PARTITIONS, settings={})
    state = PartitionState(
        replicas, replicas[0], LeaderEpoch(0), replicas, (), f"life of {replicas[0]}"
    )
    keys = ["topic/t", *(PartitionKey(TOPIC, index).text for index in range(PARTITIONS))]
    values = [topic.encode(), *[state.encode()] * PARTITIONS]
    writes = [MetadataWrite(key, value, 0) for key, value in zip(keys, values, strict=True)]
    for first in range(0, len(writes), WRITES_MAX):
        assert await host.store.commit(writes[first : first + WRITES_MAX])


def test_the_partitions_of_a_controller_that_is_gone_are_led_by_the_others(etcd: Etcd) -> None:
    async def main() -> None:
        async with hosts(etcd) as (first, *others):
            await make_topic(first, (first.node, *(each.node for each in others)))
            for each in others:
                await each.state.until(lambda state=each.state: len(state.partitions) == PARTITIONS)
            await first.die()
            version = others[0].state.brokers[first.node].version
            assert await fence(others[0].store, others[0].state, first.node, version)
            elected = [(others[0].node, 1)] * PARTITIONS
            for each in others:
                await each.state.until(lambda host=each: host.leaders() == elected)
            assert {each.controller.is_controller for each in others} == {True, False}

    asyncio.run(main())


def test_a_broker_with_a_full_disk_leads_nothing_and_is_the_same_broker(etcd: Etcd) -> None:
    async def main() -> None:
        async with hosts(etcd) as (first, second, third):
            await make_topic(first, (first.node, second.node, third.node))

            async def all_led(by: Host, epoch: int, isr: set[NodeId]) -> None:
                def as_expected() -> bool:
                    known = first.state.partitions.values()
                    return (
                        all(
                            (each.state.leader, each.state.leader_epoch, {*each.state.isr})
                            == (by.node, epoch, isr)
                            for each in known
                        )
                        and len(known) == PARTITIONS
                    )

                await first.state.until(as_expected)

            await all_led(first, 0, {first.node, second.node, third.node})
            await third.registration.announce_full(True)
            await all_led(first, 0, {first.node, second.node})
            await third.registration.announce_full(False)
            await first.registration.announce_full(True)
            await all_led(second, 1, {second.node})
            await second.registration.announce_full(True)
            await second.registration.announce_full(False)
            await first.registration.announce_full(False)
            for each in (first, second, third):
                await first.state.until(
                    lambda host=each: (
                        first.state.brokers[host.node].version == host.registration.version
                    )
                )
            await all_led(second, 1, {second.node})
            assert [each.lost for each in (first, second, third)] == [[], [], []]

    asyncio.run(main())


def test_brokers_live_through_a_restart_of_etcd_and_see_what_comes_after(own_etcd: Etcd) -> None:
    (member,) = own_etcd.members

    async def main() -> None:
        async with hosts(own_etcd) as joined:
            incarnations = [dict(each.state.brokers) for each in joined]
            await asyncio.to_thread(member.kill)
            member.start()
            await asyncio.to_thread(member.wait)
            await make_topic(joined[1], (joined[1].node, joined[2].node))
            for each in joined:
                await each.state.until(lambda state=each.state: len(state.partitions) == PARTITIONS)
            assert [dict(each.state.brokers) for each in joined] == incarnations
            assert [each.lost for each in joined] == [[], [], []]

    asyncio.run(main())
