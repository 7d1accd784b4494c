"""A group's members through a whole node, request by request."""

from collections.abc import Iterable

from fencelog.errors import ErrorCode
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
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from fencelog.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from fencelog.wire.primitives import pack_int16, pack_int32, write_bytes, write_string
from tests.support.node import Peer


def subscription(topics: Iterable[str], user_data: bytes = b"") -> bytes:
    """What a consumer sends of itself, version 0."""
    named = [*topics]
    out = bytearray(pack_int16(0) + pack_int32(len(named)))
    for topic in named:
        write_string(out, topic, flexible=False)
    write_bytes(out, user_data, flexible=False)
    return bytes(out)


FAST = {"group_initial_delay_s": 0.0, "group_session_timeout_ms_min": 1}


class Member:
    """One consumer, spelled out."""

    def __init__(self, peer: Peer, instance: str | None = None) -> None:
        self.peer = peer
        self.instance = instance
        self.member_id = ""
        self.generation = -1

    def send_join(self, version: int = 5, session_ms: int = 10_000) -> None:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=10_000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription(["t"]))],
        )
        self.peer.send(request.API_KEY, version, request.write(version))

    async def joined(self, version: int = 5) -> JoinGroupResponse:
        key = JoinGroupResponse.API_KEY
        answer = JoinGroupResponse.read(await self.peer.answer(key, version), version)
        if answer.member_id:
            self.member_id = answer.member_id
        if answer.error_code == ErrorCode.NONE:
            self.generation = answer.generation_id
        return answer

    async def join(self, version: int = 5, session_ms: int = 10_000) -> JoinGroupResponse:
        """Join, with the id that a newcomer is given."""
        self.send_join(version, session_ms)
        answer = await self.joined(version)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.send_join(version, session_ms)
            answer = await self.joined(version)
        return answer

    def send_sync(self, version: int = 3, **shares: bytes) -> None:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=share)
                for member, share in shares.items()
            ],
        )
        self.peer.send(request.API_KEY, version, request.write(version))

    async def synced(self, version: int = 3) -> tuple[ErrorCode, bytes]:
        key = SyncGroupResponse.API_KEY
        answer = SyncGroupResponse.read(await self.peer.answer(key, version), version)
        return ErrorCode(answer.error_code), answer.assignment

    async def lead(self, version: int = 3) -> tuple[ErrorCode, bytes]:
        """Sync as the leader of a group of one."""
        self.send_sync(version, **{self.member_id: b"all"})
        return await self.synced(version)

    async def heartbeat(self, version: int = 3) -> ErrorCode:
        request = HeartbeatRequest(
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        answer = await self.peer.ask(request, version, HeartbeatResponse)
        return ErrorCode(answer.error_code)

    async def leave(self, version: int = 3) -> list[ErrorCode]:
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        request = LeaveGroupRequest(group_id="g", member_id=self.member_id, members=[identity])
        answer = await self.peer.ask(request, version, LeaveGroupResponse)
        assert version < 3 or answer.error_code == ErrorCode.NONE
        codes = [each.error_code for each in answer.members] if version >= 3 else None
        return [ErrorCode(code) for code in codes or [answer.error_code]]

    async def commit(self, offset: int, version: int = 8) -> ErrorCode:
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance if version >= 7 else None,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        answer = await self.peer.ask(request, version, OffsetCommitResponse)
        return ErrorCode(answer.topics[0].partitions[0].error_code)


async def committed(peer: Peer, version: int = 7) -> int:
    """The group's offset on t-0."""
    request = OffsetFetchRequest(group_id="g", topics=None)
    answer = await peer.ask(request, version, OffsetFetchResponse)
    assert answer.error_code == ErrorCode.NONE, answer
    return answer.topics[0].partitions[0].committed_offset if answer.topics else -1


async def commit_offsets(peer: Peer, offset: int, group: str = "g") -> None:
    parts = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=parts)]
    request = OffsetCommitRequest(group_id=group, topics=topics)
    answer = await peer.ask(request, 8, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == 0
