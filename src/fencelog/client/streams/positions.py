"""A group's positions, committed by the owners of its segments: by themselves, or in a transaction.

The metadata of a committed offset name its origin: the state's topic, and the update since which
committed offsets count (``coordination.reader_group.state.Position``).
"""

from collections.abc import Mapping, Sequence

from fencelog.client.cluster import GROUP, Cluster
from fencelog.client.partition_sender import ProducerIdentity
from fencelog.client.retry import retrying
from fencelog.errors import ErrorCode
from fencelog.rpc.failures import failure
from fencelog.types import TopicId, TopicPartition
from fencelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fencelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from fencelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from fencelog.wire.primitives import error_code

OFFSET_COMMIT_VERSION_MAX = 8
OFFSET_FETCH_VERSION_MAX = 7  # above it a request has a list of groups (KIP-709)
TXN_OFFSET_COMMIT_VERSION = 5
"""From here on it adds the offsets to the transaction itself (KIP-890)."""


def metadata_of(state_id: TopicId, origin: int) -> str:
    """Return the metadata of an offset that counts since this update of this state."""
    return f"fencelog {state_id.hex()} {origin}"


async def commit(
    cluster: Cluster, group: str, partition: TopicPartition, offset: int, metadata: str
) -> None:
    """Commit a position as the owner that the connections are attached to. Raises RequestError."""
    asked = OffsetCommitRequestPartition(
        partition_index=partition.partition, committed_offset=offset, committed_metadata=metadata
    )
    request = OffsetCommitRequest(
        group_id=group,
        topics=[OffsetCommitRequestTopic(name=partition.topic, partitions=[asked])],
    )
    deadline = cluster.deadline()

    async def attempt() -> None:
        answer = await cluster.ask_coordinator(
            GROUP, group, request, OffsetCommitResponse, deadline, OFFSET_COMMIT_VERSION_MAX
        )
        for result in (each for topic in answer.topics for each in topic.partitions):
            if result.error_code:
                what = f"commit of {partition} for group {group}"
                raise failure(error_code(result.error_code), what)

    await retrying(attempt, deadline, lambda: cluster.forget_coordinator(GROUP, group))


async def commit_in_transaction(
    cluster: Cluster,
    identity: ProducerIdentity,
    group: str,
    partition: TopicPartition,
    offset: int,
    metadata: str,
) -> None:
    """Add a position to the producer's open transaction (E8). Raises RequestError."""
    asked = TxnOffsetCommitRequestPartition(
        partition_index=partition.partition, committed_offset=offset, committed_metadata=metadata
    )
    request = TxnOffsetCommitRequest(
        transactional_id=identity.transactional_id or "",
        group_id=group,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name=partition.topic, partitions=[asked])],
    )
    deadline = cluster.deadline()

    async def attempt() -> None:
        answer = await cluster.ask_coordinator(
            GROUP, group, request, TxnOffsetCommitResponse, deadline, TXN_OFFSET_COMMIT_VERSION
        )
        for result in (each for topic in answer.topics for each in topic.partitions):
            if result.error_code:
                what = f"commit of {partition} for group {group} in a transaction"
                raise failure(error_code(result.error_code), what)

    await retrying(attempt, deadline, lambda: cluster.forget_coordinator(GROUP, group))


async def committed(
    cluster: Cluster, group: str, topic: str, partitions: Sequence[int] | None = None
) -> Mapping[int, tuple[int, str]]:
    """Return the committed offset of each partition, with its metadata; None: of all.

    Waits for open transactions that have offsets there. Raises RequestError.
    """
    wanted = None
    if partitions is not None:
        wanted = [OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))]
    request = OffsetFetchRequest(group_id=group, topics=wanted, require_stable=True)
    deadline = cluster.deadline()

    async def attempt() -> Mapping[int, tuple[int, str]]:
        answer = await cluster.ask_coordinator(
            GROUP, group, request, OffsetFetchResponse, deadline, OFFSET_FETCH_VERSION_MAX
        )
        if answer.error_code:
            raise failure(error_code(answer.error_code), f"offsets of group {group}")
        found = {}
        for each in (p for t in answer.topics if t.name == topic for p in t.partitions):
            code = error_code(each.error_code)
            if code is not ErrorCode.NONE:
                what = f"offset of {topic}-{each.partition_index} in group {group}"
                raise failure(code, what)
            if each.committed_offset >= 0:
                found[each.partition_index] = each.committed_offset, each.metadata or ""
        return found

    return await retrying(attempt, deadline, lambda: cluster.forget_coordinator(GROUP, group))
