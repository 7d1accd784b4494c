"""The leaders on other brokers, as the owner of the replicas asks them."""

from typing import Protocol

from fencelog.broker.peers.identity import Lane
from fencelog.broker.peers.outgoing import OutgoingPeers
from fencelog.broker.replicas.led import Key
from fencelog.errors import CorruptionError, NotLeaderError
from fencelog.log.snapshot import decode_snapshot
from fencelog.log.values import EpochStart
from fencelog.rpc.connection import Connection
from fencelog.storage.checkpointer import Begin
from fencelog.types import LeaderEpoch, NodeId, Offset
from fencelog.wire.messages.replica_snapshot import (
    ReplicaSnapshotRequest,
    ReplicaSnapshotResponse,
)

SNAPSHOT_TIMEOUT_S = 30.0


class Leaders(Protocol):
    """The leaders on other brokers."""

    async def connection(self, leader: NodeId) -> Connection:
        """Return a proven connection for replica fetches. Raises RequestError."""
        ...

    async def snapshot(self, leader: NodeId, key: Key, leader_epoch: LeaderEpoch) -> Begin:
        """Ask where a new replica begins. Raises NotLeaderError without an answer."""
        ...


class RemoteLeaders:
    """Connections and snapshots of the leaders of this broker's replicas."""

    def __init__(self, peers: OutgoingPeers) -> None:
        """Take the connections to the other brokers."""
        self._peers = peers

    async def connection(self, leader: NodeId) -> Connection:
        """Return a proven connection for replica fetches. Raises RequestError."""
        return await self._peers.connection(leader, Lane.FETCHES)

    async def snapshot(self, leader: NodeId, key: Key, leader_epoch: LeaderEpoch) -> Begin:
        """Ask where a new replica begins. Raises NotLeaderError without a sound answer."""
        request = ReplicaSnapshotRequest(
            topic_id=key[0], partition=key[1], leader_epoch=leader_epoch
        )
        answer = await self._peers.ask(leader, request, ReplicaSnapshotResponse, SNAPSHOT_TIMEOUT_S)
        begin = Begin(
            Offset(answer.offset),
            bytes(answer.snapshot),
            [EpochStart(each.epoch, Offset(each.start_offset)) for each in answer.leader_epochs],
        )
        try:
            decode_snapshot(begin.snapshot)
        except CorruptionError as error:
            raise NotLeaderError(f"broker {leader} sent no snapshot: {error}") from error
        return begin
