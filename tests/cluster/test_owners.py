"""Owners of partitions that several brokers lead, whose claims one of them has (O5, O7, O8)."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from fencelog.broker.metadata.catalog import OWNERSHIP_TOPIC
from fencelog.client.blocking import Client
from fencelog.coordination.shard import partition_for
from fencelog.errors import ErrorCode
from fencelog.testing.cluster import LocalCluster
from fencelog.types import TopicPartition
from tests.support.node import Peer, batch
from tests.support.ownership import Claimant, closed
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
]
DEADLINE_S = 40.0
ALL = (1, 2, 3)
SHARD = partition_for("", 50)
PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three brokers, and a topic that only its owner writes to."""
    with LocalCluster(tmp_path) as running:
        running.create_topic("t", PARTITIONS, {"ownership": "required"})
        yield running
    gc.collect()  # a leak shows in the test that made it


def shard_leader(cluster: LocalCluster) -> int:
    return cluster.leader(OWNERSHIP_TOPIC, SHARD)


def wait_in_sync(cluster: LocalCluster) -> None:
    def in_sync() -> bool:
        of_topic = (cluster.isr("t", each) for each in range(PARTITIONS))
        return {cluster.isr(OWNERSHIP_TOPIC, SHARD), *of_topic} == {ALL}

    wait_until(in_sync, deadline_s=DEADLINE_S, what="all replicas in sync")


def test_an_owner_goes_on_while_the_leaders_that_it_uses_are_killed(cluster: LocalCluster) -> None:
    # O5, O7
    names = [f"t/{each}" for each in range(PARTITIONS)]
    with (
        Client(cluster.bootstrap, api_timeout_s=DEADLINE_S) as client,
        client.own(names, lease_s=60.0) as claim,
        claim.producer() as producer,
    ):
        sent = 0

        def write() -> None:
            nonlocal sent
            for each in range(PARTITIONS):
                producer.send("t", b"%d" % sent, partition=each)
                sent += 1
            producer.flush()

        write()
        coordinator, granted = shard_leader(cluster), claim.epoch
        leaders = {cluster.leader("t", each) for each in range(PARTITIONS)}
        assert leaders == set(ALL)
        other = min(leaders - {coordinator})
        cluster.kill(other)
        write()
        claim.check()
        assert claim.epoch == granted  # nothing was claimed again
        cluster.start(other)
        wait_in_sync(cluster)
        cluster.kill(coordinator)
        write()
        wait_until(
            lambda: claim.epoch > granted, deadline_s=DEADLINE_S, what="the claim is made again"
        )
        write()
        claim.check()
        assert claim.epoch == granted + 1  # with the epoch that it held: nobody was between
        cluster.start(coordinator)
        values = sorted(int(each.value or b"") for each in cluster.records("t"))
        assert values == list(range(sent))


@asynccontextmanager
async def peers(cluster: LocalCluster, *brokers: int) -> AsyncIterator[list[Peer]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Peer.at("127.0.0.1", cluster._port(each)))
            for each in brokers
        ]


async def error_of(peer: Peer, partition: TopicPartition, value: str) -> ErrorCode:
    """What a connection is answered that writes a record."""
    peer.send_produce(partition.topic, batch(value), partition=partition.partition)
    return (await peer.produced()).error


def test_a_zombie_is_refused_by_the_leader_of_its_partition(cluster: LocalCluster) -> None:
    # O7, O8
    with Client(cluster.bootstrap) as client, client.own("warm"):
        coordinator = shard_leader(cluster)
    place = TopicPartition("t", next(n for n in range(3) if cluster.leader("t", n) != coordinator))
    leader = cluster.leader(*place)

    async def scenario() -> None:
        async with peers(cluster, coordinator, coordinator, leader, leader, leader) as (
            home,
            next_home,
            attached,
            stranger,
            late,
        ):
            owner, successor = Claimant(home), Claimant(next_home)
            assert (await owner.own(f"t/{place.partition}")).error_code == 0
            assert (await owner.attach(attached)).error_code == 0
            assert await error_of(attached, place, "owner") is ErrorCode.NONE
            assert await error_of(stranger, place, "x") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert (await successor.own(f"t/{place.partition}")).error_code == 0
            await closed(attached)  # at a broker that does not have the shard
            assert (await owner.attach(late)).error_code == ErrorCode.OWNER_FENCED
            assert await error_of(late, place, "zombie") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert (await successor.attach(stranger)).error_code == 0
            assert await error_of(stranger, place, "next") is ErrorCode.NONE

    asyncio.run(scenario())
    assert [each.value for each in cluster.records("t")] == [b"owner", b"next"]


def test_a_broker_that_was_not_told_of_the_end_refuses_the_zombie_as_the_next_leader(
    cluster: LocalCluster,
) -> None:  # O8
    with Client(cluster.bootstrap) as client, client.own("warm"):
        coordinator = shard_leader(cluster)
    found = {each: cluster._state("t", each).replicas for each in range(PARTITIONS)}
    index = next(n for n, replicas in found.items() if replicas[2] == coordinator)
    place, (leader, heir, _) = TopicPartition("t", index), found[index]
    assert cluster.leader(*place) == leader

    async def scenario() -> None:
        async with peers(cluster, coordinator, coordinator, heir) as (home, next_home, attached):
            owner, successor = Claimant(home), Claimant(next_home)
            assert (await owner.own(f"t/{index}", lease_ms=600_000)).error_code == 0
            assert (await owner.attach(attached)).error_code == 0
            cluster.cut(coordinator, heir)
            assert (await successor.own(f"t/{index}")).error_code == 0
            cluster.kill(leader)
            wait_until(
                lambda: cluster.leader(*place) == heir,
                deadline_s=DEADLINE_S,
                what="the next leader",
            )

            # It is attached to a claim that this broker believes in; the log knows better.
            error = await error_of(attached, place, "zombie")
            while (
                error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            ):  # the broker hears of it a little later
                error = await error_of(attached, place, "zombie")
            assert error is ErrorCode.OWNER_FENCED
            cluster.heal()
            await closed(attached)

    asyncio.run(scenario())
