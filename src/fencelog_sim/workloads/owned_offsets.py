"""A producer that commits a group's offsets in transactions, on raw messages.

It does so as stock ones of two versions: AddOffsetsToTxn and then TxnOffsetCommit, or the latter
alone, which adds the group to the transaction by itself. No request is sent twice.
"""

from dataclasses import dataclass, replace
from typing import Self

from fencelog.check.history import key_of
from fencelog.client.cluster import GROUP, TRANSACTION, Cluster
from fencelog.client.partition_sender import ProducerIdentity
from fencelog.client.producer_ids import ask_for_end, init_producer_id
from fencelog.errors import RequestError
from fencelog.rpc.deadline import Deadline
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import END_BUMPS_FROM, OFFSETS_ENLIST_FROM
from fencelog.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from fencelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from fencelog.wire.primitives import error_code
from fencelog_sim.workload import Stage

PATIENCE_S = 4.0
ADD_OFFSETS_VERSION = 3


@dataclass
class OffsetProducer:
    """One producer; after an error it is of no more use."""

    stage: Stage
    cluster: Cluster
    group: str
    identity: ProducerIdentity
    version: int
    """1: it adds the group to the transaction itself, and keeps its epoch. 2: neither."""
    taken: list[str]
    """Metadata of the offsets in the open transaction, as far as they were asked for."""

    @classmethod
    async def open(
        cls, stage: Stage, cluster: Cluster, group: str, transactional_id: str, timeout_ms: int
    ) -> Self:
        """Fence the producer before. Raises RequestError."""
        identity = await init_producer_id(cluster, transactional_id, timeout_ms)
        return cls(stage, cluster, group, identity, stage.random.choice((1, 2)), [])

    async def begin(self) -> None:
        """Add the group to the transaction, where a request says it. Raises RequestError."""
        if self.version != 1:
            return
        request = AddOffsetsToTxnRequest(
            transactional_id=self.identity.transactional_id or "",
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            group_id=self.group,
        )
        answer = await self.cluster.ask_coordinator(
            TRANSACTION,
            request.transactional_id,
            request,
            AddOffsetsToTxnResponse,
            Deadline(PATIENCE_S),
            ADD_OFFSETS_VERSION,
        )
        _raise(answer.error_code, f"{self.group} in a transaction of {request.transactional_id}")

    async def commit(
        self, partition: TopicPartition, offset: int, metadata: str, as_whom: str | None = None
    ) -> None:
        """Put an offset into the transaction; ``as_whom``: the transactional id that it names.

        Raises RequestError.
        """
        self.taken.append(metadata)
        asked = TxnOffsetCommitRequestPartition(
            partition_index=partition.partition,
            committed_offset=offset,
            committed_metadata=metadata,
        )
        request = TxnOffsetCommitRequest(
            transactional_id=as_whom or self.identity.transactional_id or "",
            group_id=self.group,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=partition.topic, partitions=[asked])],
        )
        answer = await self.cluster.ask_coordinator(
            GROUP,
            self.group,
            request,
            TxnOffsetCommitResponse,
            Deadline(PATIENCE_S),
            OFFSETS_ENLIST_FROM if self.version != 1 else OFFSETS_ENLIST_FROM - 1,
        )
        ((result,),) = (topic.partitions for topic in answer.topics)
        _raise(result.error_code, f"offset of {key_of(*partition)} in a transaction")

    async def end(self, *, commit: bool) -> None:
        """End the transaction. Raises RequestError."""
        note = self.stage.history.note
        taken, self.taken = self.taken, []
        note(what="offsets end", metadata=taken, commit=commit)
        version = END_BUMPS_FROM if self.version != 1 else END_BUMPS_FROM - 1
        answer = await ask_for_end(
            self.cluster, self.identity, Deadline(PATIENCE_S), version, commit=commit
        )
        _raise(answer.error_code, f"end of a transaction of {self.identity.transactional_id}")
        note(what="offsets ended", metadata=taken, commit=commit)
        if self.version != 1:
            self.identity = replace(
                self.identity,
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
            )


def _raise(code: int, what: str) -> None:
    if code:
        raise RequestError(error_code(code), what)
