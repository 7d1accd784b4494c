"""A member of a consumer group on fencelog's own wire: join, sync, heartbeat, leave, and the
offsets of a transaction with the member's own credentials (KIP-447).

It takes part as a consumer library does: heartbeats go on beside whatever its owner does, on
connections of their own, and say when the group wants everybody to join again.
"""

import asyncio
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fencelog.client.cluster import GROUP, TRANSACTION, Cluster
from fencelog.client.groups import assigned
from fencelog.client.partition_sender import ProducerIdentity
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import OFFSETS_ENLIST_FROM
from fencelog.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from fencelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from fencelog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from fencelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from fencelog.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from fencelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from fencelog.wire.primitives import error_code

PROTOCOL_TYPE = "consumer"
PROTOCOL = "deal"
HEARTBEATS_PER_SESSION = 4
ADD_OFFSETS_VERSION = 3
NAMES_MEMBER_VERSION = 3
"""Of TxnOffsetCommit, the first that names the member; the group is added to the transaction by a
request of its own."""
GONE = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""After these a member has to join again."""


@dataclass(frozen=True)
class Credentials:
    """As whom offsets are committed; a zombie has those of an earlier generation."""

    generation: int
    member_id: str
    instance_id: str | None


class GroupMember:
    """One member, in or out. Offsets are committed through the cluster of its owner."""

    def __init__(
        self,
        cluster: Cluster,
        beats: Cluster,
        group: str,
        inputs: Sequence[TopicPartition],
        *,
        session_s: float,
        instance_id: str | None,
        adds_offsets: bool,
    ) -> None:
        """``beats`` has the connections on which joins and heartbeats wait.

        ``adds_offsets``: it adds its group to transactions as clients did before KIP-890.
        """
        self._cluster = cluster
        self._beats = beats
        self.group = group
        self._inputs = inputs
        self._session_s = session_s
        self._instance_id = instance_id
        self._adds_offsets = adds_offsets
        self._member_id = ""
        self._generation = -1
        self._beating: asyncio.Task[None] | None = None
        self.must_join = True
        """It was never in, is out, or the group begins a new generation."""
        self.is_silent = False
        """Its heartbeats stop for a while, as in a process that hangs."""

    @property
    def credentials(self) -> Credentials:
        """Who it is in the present generation."""
        return Credentials(self._generation, self._member_id, self._instance_id)

    # -- in and out ------------------------------------------------------------------------------

    async def join(self) -> list[TopicPartition]:
        """Take part in a new generation; return the partitions that are this member's."""
        self.must_join = True
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        answer = await self._join()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            answer = await self._join()
        self._check(answer.error_code, "join")
        self._member_id, self._generation = answer.member_id, answer.generation_id
        members = [each.member_id for each in answer.members]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=each, assignment=_assignment(self._inputs[number :: len(members)])
                )
                for number, each in enumerate(members)
            ],
        )
        synced = await self._beats.ask_coordinator(
            GROUP, self.group, request, SyncGroupResponse, self._beats.deadline()
        )
        self._check(synced.error_code, "sync")
        self.must_join = False
        return list(assigned(synced.assignment))

    async def _join(self) -> JoinGroupResponse:
        timeout_ms = int(self._session_s * 1000)
        metadata = _subscription(sorted({each.topic for each in self._inputs}))
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=timeout_ms,
            rebalance_timeout_ms=timeout_ms,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=metadata)],
        )
        return await self._beats.ask_coordinator(
            GROUP, self.group, request, JoinGroupResponse, self._beats.deadline()
        )

    async def leave(self) -> None:
        """Go at once, so that the others need not wait for the session's end."""
        request = LeaveGroupRequest(
            group_id=self.group,
            member_id=self._member_id,
            members=[
                MemberIdentity(member_id=self._member_id, group_instance_id=self._instance_id)
            ],
        )
        self.must_join, self._member_id = True, ""
        answer = await self._beats.ask_coordinator(
            GROUP, self.group, request, LeaveGroupResponse, self._beats.deadline()
        )
        self._check(answer.error_code, "leave")

    async def close(self) -> None:
        """Stop the heartbeats; the group finds out."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait([beating])

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._session_s / HEARTBEATS_PER_SESSION)
            if self.must_join or self.is_silent:
                continue
            asked = self.credentials
            request = HeartbeatRequest(
                group_id=self.group,
                generation_id=asked.generation,
                member_id=asked.member_id,
                group_instance_id=asked.instance_id,
            )
            try:
                answer = await self._beats.ask_coordinator(
                    GROUP, self.group, request, HeartbeatResponse, self._beats.deadline()
                )
                self._check(answer.error_code, "heartbeat", asked)
            except (RequestError, TimeoutError, ConnectionError):
                self._beats.forget_coordinator(GROUP, self.group)

    def _check(self, code: int, what: str, asked: Credentials | None = None) -> None:
        """Raise RequestError for an answer that is an error, and draw the conclusion from it."""
        if not code:
            return
        error = error_code(code)
        self.refused(error, asked)
        raise failure(error, f"{what} of {self._member_id or 'a new member'} of {self.group}")

    def refused(self, error: ErrorCode, asked: Credentials | None = None) -> None:
        """A request as one of the group was refused; ``asked``: by these credentials."""
        if error not in GONE or (asked is not None and asked != self.credentials):
            return
        self.must_join = True
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self._instance_id = None  # another process has its place
        if error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID):
            self._member_id = ""

    # -- offsets in a transaction ----------------------------------------------------------------

    async def commit(
        self, identity: ProducerIdentity, who: Credentials, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Put offsets into the open transaction of a producer (E8). Raises RequestError."""
        deadline = self._cluster.deadline()
        name = identity.transactional_id or ""
        if self._adds_offsets:
            await retrying(
                partial(self._enlist, identity, deadline),
                deadline,
                lambda: self._cluster.forget_coordinator(TRANSACTION, name),
            )
        await retrying(
            partial(self._store, identity, who, offsets, deadline),
            deadline,
            lambda: self._cluster.forget_coordinator(GROUP, self.group),
        )

    async def _enlist(self, identity: ProducerIdentity, deadline: Deadline) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=identity.transactional_id or "",
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=self.group,
        )
        answer = await self._cluster.ask_coordinator(
            TRANSACTION,
            identity.transactional_id or "",
            request,
            AddOffsetsToTxnResponse,
            deadline,
            ADD_OFFSETS_VERSION,
        )
        if answer.error_code:
            what = f"{self.group} in transaction {identity.transactional_id}"
            raise failure(error_code(answer.error_code), what)

    async def _store(
        self,
        identity: ProducerIdentity,
        who: Credentials,
        offsets: Mapping[TopicPartition, int],
        deadline: Deadline,
    ) -> None:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for partition, offset in offsets.items():
            topics.setdefault(partition.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition.partition, committed_offset=offset
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=identity.transactional_id or "",
            group_id=self.group,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            generation_id=who.generation,
            member_id=who.member_id,
            group_instance_id=who.instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        answer = await self._cluster.ask_coordinator(
            GROUP,
            self.group,
            request,
            TxnOffsetCommitResponse,
            deadline,
            NAMES_MEMBER_VERSION if self._adds_offsets else OFFSETS_ENLIST_FROM,
        )
        what = f"offsets of {self.group} in transaction {identity.transactional_id}"
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code:
                    raise failure(error_code(each.error_code), what)


def _subscription(topics: Sequence[str]) -> bytes:
    """Kafka's ConsumerProtocolSubscription, version 0."""
    out = struct.pack(">hi", 0, len(topics))
    for topic in topics:
        out += struct.pack(">h", len(topic)) + topic.encode()
    return out + struct.pack(">i", -1)


def _assignment(partitions: Sequence[TopicPartition]) -> bytes:
    """Kafka's ConsumerProtocolAssignment, version 0."""
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    out = struct.pack(">hi", 0, len(by_topic))
    for topic, numbers in by_topic.items():
        out += struct.pack(">h", len(topic)) + topic.encode()
        out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return out + struct.pack(">i", -1)
