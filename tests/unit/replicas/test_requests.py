"""Replica fetches and snapshots over real sockets: only after a proof, and whatever is asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fencelog.broker.dispatch import Dispatcher
from fencelog.broker.handlers.peers import broker_handlers
from fencelog.broker.handlers.replicas import replica_handlers
from fencelog.broker.handlers.table import handlers
from fencelog.broker.network.response_budget import SMALL_BYTES, QueuedResponses
from fencelog.broker.peers.identity import Lane
from fencelog.broker.peers.outgoing import OutgoingPeers
from fencelog.broker.replicas.leaders import RemoteLeaders
from fencelog.broker.replicas.led import Key, Led, LedPartitions
from fencelog.broker.replicas.serving import Serving
from fencelog.errors import ErrorCode, NotLeaderError, RequestError
from fencelog.log.snapshot import decode_snapshot
from fencelog.node import Node
from fencelog.replication.leader import LeaderProgress, Leadership
from fencelog.rpc.connection import Connection
from fencelog.rpc.deadline import Deadline
from fencelog.types import Instant, LeaderEpoch, Offset
from fencelog.wire.message import Message
from fencelog.wire.messages.replica_fetch import (
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPosition,
)
from fencelog.wire.messages.replica_snapshot import (
    ReplicaSnapshotRequest,
    ReplicaSnapshotResponse,
)
from tests.support.brokers import HERE, THERE, Target
from tests.support.node import Peer, World, until
from tests.support.storage import batch_of

EPOCH = LeaderEpoch(3)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Leader(Target):
    """A node that leads the first partition of its topic, and has a follower, which asks it."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.led = LedPartitions()
        serving = Serving(self.led, node.broker.time_slices)
        node.server._dispatch = Dispatcher(  # type: ignore[assignment]
            node.broker,
            handlers(),
            {
                **broker_handlers(self.incoming, self.local),
                **replica_handlers(self.incoming, serving, self.led),
            },
        )

    def lead(self) -> Key:
        topic = self.node.broker.catalog.get("t")
        partition = self.node.broker.logs.get("t", 0)
        assert topic is not None
        assert partition is not None
        begun = Leadership(
            THERE, (THERE, HERE), (THERE,), EPOCH, partition.log.log_end_offset, Offset(0), 1
        )
        now = Instant(asyncio.get_running_loop().time())
        progress = LeaderProgress(begun, all_replicas=False, now=now)
        partition.lead(progress)
        self.led.lead(Led((topic.topic_id, 0), partition, progress, 1))
        return topic.topic_id, 0


@asynccontextmanager
async def stage(world: World) -> AsyncIterator[tuple[Leader, Key, OutgoingPeers, Peer]]:
    async with world.node() as node, Peer.of(node) as peer:
        await peer.create_topic("t")
        leader = Leader(node)
        key, peers = leader.lead(), leader.opener()
        try:
            yield leader, key, peers, peer
        finally:
            peers.close()


def position(key: Key, offset: int = 0, **fields: int) -> ReplicaPosition:
    given = {
        "leader_epoch": int(EPOCH),
        "last_epoch": -1,
        "durable_end": offset,
        "partition": key[1],
        **fields,
    }
    return ReplicaPosition(topic_id=key[0], fetch_offset=offset, **given)


async def fetch(
    connection: Connection, *positions: ReplicaPosition, wait_ms: int = 100
) -> ReplicaFetchResponse:
    request = ReplicaFetchRequest(
        max_wait_ms=wait_ms, max_bytes=1 << 20, partition_max_bytes=1 << 20, positions=positions
    )
    body = await connection.call(request.API_KEY, 0, [request.write(0)], Deadline(10))
    return ReplicaFetchResponse.read(body, 0)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (ReplicaFetchRequest(max_wait_ms=10_000), ReplicaFetchResponse),
        (ReplicaSnapshotRequest(), ReplicaSnapshotResponse),
    ],
)
async def test_nobody_fetches_as_a_replica_without_a_proof(
    world: World, asked: Message, answer: type[Message]
) -> None:
    async with stage(world) as (leader, key, _, peer):
        refused = await peer.ask(asked, 0, answer)
        assert getattr(refused, "error_code") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # noqa: B009
        assert not leader.led.get(key).progress.has_heard(HERE)  # type: ignore[union-attr]


async def test_a_follower_is_told_what_it_lacks_and_its_word_counts_at_once(world: World) -> None:
    async with stage(world) as (leader, key, peers, peer):
        connection = await peers.connection(THERE, Lane.FETCHES)
        assert (await peer.produce("t", batch_of(b"a"), acks=1)).error is ErrorCode.NONE
        (told,) = (await fetch(connection, position(key))).partitions
        assert (told.error_code, told.fetch_offset, told.high_watermark) == (0, 0, 1)
        assert told.records_size > 0
        progress = leader.led.get(key).progress  # type: ignore[union-attr]
        waiting = asyncio.ensure_future(fetch(connection, position(key, 1), wait_ms=60_000))
        await until(lambda: progress._followers[HERE].fetch_end == 1, "its word counts")
        # A second request ends the wait of the first.
        again = await fetch(connection, position(key, 1, durable_end=1), wait_ms=0)
        assert (await waiting).partitions == []
        assert again.partitions == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"leader_epoch": 2}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 4}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"last_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"offset": 7}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"partition": 5}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_what_does_not_fit_is_refused_and_does_not_count(
    world: World, fields: dict[str, int], error: ErrorCode
) -> None:
    async with stage(world) as (leader, key, peers, _):
        connection = await peers.connection(THERE, Lane.FETCHES)
        asked = position(key, fields.pop("offset", 0), **fields)
        (told,) = (await fetch(connection, asked)).partitions
        assert told.error_code == error
        assert leader.led.get(key).progress.high_watermark == 0  # type: ignore[union-attr]


async def test_a_request_of_a_hundred_thousand_partitions_closes_the_connection(
    world: World,
) -> None:
    async with stage(world) as (_, key, peers, peer):
        connection = await peers.connection(THERE, Lane.FETCHES)
        with pytest.raises(RequestError):
            await fetch(connection, *[position(key)] * 100_000)
        assert (await peer.produce("t", batch_of(b"a"), acks=1)).error is ErrorCode.NONE
        assert (await fetch(await peers.connection(THERE, Lane.FETCHES), position(key))).partitions


async def test_a_leader_gives_the_producers_at_its_start(world: World) -> None:
    async with stage(world) as (_, key, peers, __):
        begin = await RemoteLeaders(peers).snapshot(THERE, key, EPOCH)
        assert begin.offset == 0
        decode_snapshot(begin.snapshot)
        with pytest.raises(NotLeaderError, match="FENCED_LEADER_EPOCH"):
            await RemoteLeaders(peers).snapshot(THERE, key, LeaderEpoch(2))


async def test_clients_that_do_not_read_never_hold_up_replication(world: World) -> None:
    async with stage(world) as (leader, key, peers, peer):
        leader.incoming.responses = leader.node.server.reserve_for_brokers()
        connection = await peers.connection(THERE, Lane.FETCHES)
        large = batch_of(bytes(2 * SMALL_BYTES))
        assert (await peer.produce("t", large, acks=1)).error is ErrorCode.NONE
        budget = leader.node.server.responses
        slow = QueuedResponses(budget)
        slow.queue(budget.free)
        (told,) = (await fetch(connection, position(key))).partitions
        assert told.records_size > 2 * SMALL_BYTES
        slow.close()
