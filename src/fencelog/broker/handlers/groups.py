"""Offsets that groups commit, for groups that only record how far they have come (S6).

Version notes: OffsetFetch asks for one group up to version 7 and for several from 8 on.
"""

from collections.abc import Sequence

from fencelog.broker.connection import Request
from fencelog.broker.context import Broker
from fencelog.coordination.group.records import CommittedOffset
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.types import LeaderEpoch, Offset, TimestampMs, TopicPartition
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from fencelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

NO_OFFSET = CommittedOffset(
    offset=Offset(-1), leader_epoch=LeaderEpoch(-1), metadata="", commit_ms=TimestampMs(-1)
)
Committed = dict[TopicPartition, CommittedOffset]


async def offset_commit(
    broker: Broker, message: OffsetCommitRequest, request: Request
) -> OffsetCommitResponse:
    """Store a group's offsets durably; each partition has its own answer."""
    del request
    offsets: Committed = {}
    answers: dict[TopicPartition, ErrorCode] = {}
    wall_ms = broker.clock.now_ms()
    for topic in message.topics:
        known = broker.catalog.get(topic.name)
        for part in topic.partitions:
            name = TopicPartition(topic.name, part.partition_index)
            if known is None or not 0 <= name.partition < known.partitions:
                answers[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            offsets[name] = CommittedOffset(
                offset=Offset(part.committed_offset),
                leader_epoch=LeaderEpoch(part.committed_leader_epoch),
                metadata=part.committed_metadata or "",
                commit_ms=wall_ms,
            )
    try:
        answers |= await broker.groups.decide(
            message.group_id,
            lambda shard, now: shard.commit(
                message.group_id,
                offsets,
                member_id=message.member_id,
                generation=message.generation_id_or_member_epoch,
                wall_ms=wall_ms,
            ),
        )
    except NotLeaderError:
        answers |= dict.fromkeys(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=answers[TopicPartition(topic.name, part.partition_index)],
                    )
                    for part in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


async def offset_fetch(
    broker: Broker, message: OffsetFetchRequest, request: Request
) -> OffsetFetchResponse:
    """How far groups have come; -1 where a partition has no offset."""
    if request.header.api_version < 8:
        found = await _fetch(broker, message.group_id, message.topics)
        if isinstance(found, ErrorCode):
            return OffsetFetchResponse(error_code=found)
        return OffsetFetchResponse(topics=_topics(found))
    groups = []
    for group in message.groups:
        found = await _fetch(broker, group.group_id, group.topics)
        if isinstance(found, ErrorCode):
            answer = OffsetFetchResponseGroup(group_id=group.group_id, error_code=found)
        else:
            answer = OffsetFetchResponseGroup(group_id=group.group_id, topics=_group_topics(found))
        groups.append(answer)
    return OffsetFetchResponse(groups=groups)


async def _fetch(
    broker: Broker,
    group: str,
    asked: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
) -> Committed | ErrorCode:
    """A group's offsets on the partitions asked for; on all that it has where none are named."""
    wanted = None
    if asked is not None:
        wanted = [
            TopicPartition(topic.name, index)
            for topic in asked
            for index in topic.partition_indexes
        ]
    try:
        found = await broker.groups.read(group, lambda shard: shard.fetch(group, wanted))
    except NotLeaderError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if wanted is None:
        return found
    return {name: found.get(name, NO_OFFSET) for name in wanted}


def _by_topic(found: Committed) -> dict[str, Committed]:
    topics: dict[str, Committed] = {}
    for name in sorted(found):
        topics.setdefault(name.topic, {})[name] = found[name]
    return topics


def _topics(found: Committed) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=name.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                )
                for name, committed in offsets.items()
            ],
        )
        for topic, offsets in _by_topic(found).items()
    ]


def _group_topics(found: Committed) -> list[OffsetFetchResponseTopics]:
    return [
        OffsetFetchResponseTopics(
            name=topic,
            partitions=[
                OffsetFetchResponsePartitions(
                    partition_index=name.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                )
                for name, committed in offsets.items()
            ],
        )
        for topic, offsets in _by_topic(found).items()
    ]
