"""OffsetCommit, TxnOffsetCommit, OffsetFetch: offsets of groups with and without members (S6).

Version notes: OffsetFetch names one group up to version 7 and several from 8 on. From 7 on a client
knows UNSTABLE_OFFSET_COMMIT; an older one gets COORDINATOR_LOAD_IN_PROGRESS, which it retries, too
(rule E8). TxnOffsetCommit names the member from version 3 on (KIP-447), knows TRANSACTION_ABORTABLE
from 4 on, and is transaction version 2 from 5 on (KIP-890).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.runtime import InTransaction
from fencelog.broker.handlers.connection_fencing import accepted_on, refuse_stale_connection
from fencelog.broker.network.connection import Request
from fencelog.coordination.group.commit import Answers, Commit
from fencelog.coordination.group.model import Caller
from fencelog.coordination.group.records import CommittedOffset
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.log.config import OwnershipKind
from fencelog.log.values import Rejected
from fencelog.types import (
    Instant,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from fencelog.wire.api_versions import OFFSETS_ENLIST_FROM
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
from fencelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from fencelog.wire.own import app_of, owned_key_of

NO_OFFSET = CommittedOffset(
    offset=Offset(-1), leader_epoch=LeaderEpoch(-1), metadata="", commit_ms=TimestampMs(-1)
)
UNSTABLE_FROM = 7
ABORTABLE_FROM = 4
Committed = dict[TopicPartition, CommittedOffset]


class _Partition(Protocol):
    """One partition in OffsetCommit and TxnOffsetCommit."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class _Topic(Protocol):
    """One topic in OffsetCommit and TxnOffsetCommit."""

    name: str

    @property
    def partitions(self) -> Sequence[_Partition]:
        """Its partitions."""
        ...


# -- committing ---------------------------------------------------------------------------------


async def offset_commit(
    broker: Broker, message: OffsetCommitRequest, request: Request
) -> OffsetCommitResponse:
    """Store a group's offsets durably; each partition has its own result."""
    caller = Caller(
        message.member_id, message.generation_id_or_member_epoch, message.group_instance_id
    )
    session = request.connection.session
    requested, answers = _requested(broker, message.group_id, message.topics, caller, session)
    try:
        answers |= await broker.groups.decide(
            message.group_id,
            lambda shard, now: commit_offsets(broker, shard, requested, now),
        )
    except NotLeaderError as refused:
        answers |= dict.fromkeys(requested.offsets, refused.coordinator_error)
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


def commit_offsets(
    broker: Broker, shard: GroupShard, requested: Commit, now: Instant
) -> Decision[Answers]:
    decision = shard.commit(requested, now=now, wall_ms=broker.clock.now_ms())
    if broker.observer is not None:
        accepted = {
            name: requested.offsets[name].offset
            for name, error in decision.response.items()
            if error is ErrorCode.NONE
        }
        broker.observer.offsets_committed(requested.group, accepted)
    return decision


def _requested(
    broker: Broker, group: str, topics: Sequence[_Topic], caller: Caller, session: str | None
) -> tuple[Commit, Answers]:
    """Return the offsets to store, and the errors of unknown partitions."""
    offsets: Committed = {}
    fenced: set[TopicPartition] = set()
    ownership: dict[TopicPartition, OwnershipKind] = {}
    answers: Answers = {}
    for topic in topics:
        known = broker.catalog.get(topic.name)
        settings = None if known is None else known.log_config(broker.settings.topic_defaults)
        for part in topic.partitions:
            name = TopicPartition(topic.name, part.partition_index)
            if known is None or settings is None or not 0 <= name.partition < known.partitions:
                answers[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            offsets[name] = CommittedOffset(
                offset=Offset(part.committed_offset),
                leader_epoch=LeaderEpoch(part.committed_leader_epoch),
                metadata=part.committed_metadata or "",
            )
            ownership[name] = settings.ownership
            if settings.group_fence == "required":
                fenced.add(name)
    requested = Commit(
        group=group,
        offsets=offsets,
        caller=caller,
        fenced=frozenset(fenced),
        ownership=ownership,
        session=session,
    )
    return requested, answers


async def txn_offset_commit(
    broker: Broker, message: TxnOffsetCommitRequest, request: Request
) -> TxnOffsetCommitResponse:
    """Store a group's offsets in a transaction: they take effect when it commits (rule E8)."""
    version = request.header.api_version
    refuse_stale_connection(broker, request, message.producer_id, message.producer_epoch)
    caller = Caller(message.member_id, message.generation_id, message.group_instance_id)
    session = request.connection.session
    requested, answers = _requested(broker, message.group_id, message.topics, caller, session)
    producer = _Producer(
        message.transactional_id,
        ProducerIdAndEpoch(ProducerId(message.producer_id), ProducerEpoch(message.producer_epoch)),
        ClientVersion.V2 if version >= OFFSETS_ENLIST_FROM else ClientVersion.V1,
    )
    try:
        stored = await _commit_in_transaction(broker, requested, producer)
        if ErrorCode.NONE in stored.values():
            accepted_on(broker, request, message.producer_id, message.producer_epoch)
        answers |= {name: _for_producer(error, version) for name, error in stored.items()}
    except NotLeaderError as refused:
        answers |= dict.fromkeys(requested.offsets, refused.coordinator_error)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=answers[TopicPartition(topic.name, part.partition_index)],
                    )
                    for part in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


@dataclass(frozen=True, slots=True)
class _Producer:
    transactional_id: str
    identity: ProducerIdAndEpoch
    client_version: ClientVersion


async def _commit_in_transaction(broker: Broker, requested: Commit, producer: _Producer) -> Answers:
    """Verify that the transaction is open and has the group's partition, then append (E14)."""
    producer_id, epoch = producer.identity
    if not requested.group or producer_id < 0 or app_of(producer.transactional_id) is not None:
        error = ErrorCode.INVALID_REQUEST if requested.group else ErrorCode.INVALID_GROUP_ID
        return dict.fromkeys(requested.offsets, error)
    loaded = await broker.groups.shard_of(requested.group)
    partition = loaded.partition
    guard = partition.log.begin_verification(producer_id, epoch)
    # A commit has the rights of the claim whose id it names, so that is verified each time (O8).
    if guard is not None or owned_key_of(producer.transactional_id) is not None:
        verified = await broker.leaders.verify(
            producer.transactional_id,
            producer.identity,
            [partition.name],
            producer.client_version,
        )
        error = verified.errors[partition.name]
        if error is ErrorCode.NONE and verified.is_stale(partition.log, producer_id):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # retriable: it is verified again
        if error is not ErrorCode.NONE:
            return dict.fromkeys(requested.offsets, error)
    pending = replace(
        requested, producer_id=producer_id, transactional_id=producer.transactional_id
    )
    answers = await broker.groups.decide_in(
        loaded,
        InTransaction(producer_id, epoch, guard),
        lambda shard, now: commit_offsets(broker, shard, pending, now),
    )
    if isinstance(answers, Rejected):
        return dict.fromkeys(requested.offsets, answers.error)
    return answers


def _for_producer(error: ErrorCode, version: int) -> ErrorCode:
    """Map an error to the codes that TxnOffsetCommit may return."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.CONCURRENT_TRANSACTIONS:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # until the markers are written: retriable
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return error


# -- fetching -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """A group's offsets, and the partitions where an open transaction may still change them."""

    offsets: Committed
    unstable: frozenset[TopicPartition]

    def error(self, name: TopicPartition, code: ErrorCode) -> ErrorCode:
        """Return the code for an unstable partition, else NONE."""
        return code if name in self.unstable else ErrorCode.NONE


async def offset_fetch(
    broker: Broker, message: OffsetFetchRequest, request: Request
) -> OffsetFetchResponse:
    """Return groups' committed offsets; -1 for a partition without one.

    Every fetch is treated as if it required stable offsets: a new owner that reads from before an
    open transaction would process its records twice.
    """
    version = request.header.api_version
    if version < 8:
        found = await _fetch(broker, message.group_id, message.topics)
        if isinstance(found, ErrorCode):
            return OffsetFetchResponse(error_code=found)
        if version >= UNSTABLE_FROM:
            return OffsetFetchResponse(topics=_topics(found, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        # Some clients read the request's error code, some those of the partitions.
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        whole = loading if found.unstable else ErrorCode.NONE
        return OffsetFetchResponse(error_code=whole, topics=_topics(found, loading))
    groups = []
    async for group in broker.time_slices.each(message.groups):
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
    requested: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
) -> _Found | ErrorCode:
    """Return a group's offsets on the named partitions; on all of them if none are named."""
    wanted = None
    if requested is not None:
        wanted = [
            TopicPartition(topic.name, index)
            for topic in requested
            for index in topic.partition_indexes
        ]
    try:
        found, pending = await broker.groups.read(
            group, lambda shard: (_found(broker, shard, group, wanted), shard.pending(group))
        )
    except NotLeaderError as refused:
        return refused.coordinator_error
    names = [*found, *(pending - found.keys())] if wanted is None else wanted
    unstable = pending.intersection(names)
    offsets = {
        name: NO_OFFSET if name in unstable else found.get(name, NO_OFFSET) for name in names
    }
    return _Found(offsets, unstable)


def _found(
    broker: Broker, shard: GroupShard, group: str, wanted: list[TopicPartition] | None
) -> Committed:
    found = shard.fetch(group, wanted)
    if broker.observer is not None:
        broker.observer.offsets_fetched(group, found)
    return found


def _by_topic(found: Committed) -> dict[str, Committed]:
    topics: dict[str, Committed] = {}
    for name in sorted(found):
        topics.setdefault(name.topic, {})[name] = found[name]
    return topics


def _topics(found: _Found, unstable: ErrorCode) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=name.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                    error_code=found.error(name, unstable),
                )
                for name, committed in offsets.items()
            ],
        )
        for topic, offsets in _by_topic(found.offsets).items()
    ]


def _group_topics(found: _Found) -> list[OffsetFetchResponseTopics]:
    return [
        OffsetFetchResponseTopics(
            name=topic,
            partitions=[
                OffsetFetchResponsePartitions(
                    partition_index=name.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                    error_code=found.error(name, ErrorCode.UNSTABLE_OFFSET_COMMIT),
                )
                for name, committed in offsets.items()
            ],
        )
        for topic, offsets in _by_topic(found.offsets).items()
    ]
