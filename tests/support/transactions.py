"""Transactional producers through a whole node, request by request."""

import asyncio
from dataclasses import dataclass

from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode
from fencelog.node import Node
from fencelog.wire.messages.abort_transaction import (
    AbortTransactionRequest,
    AbortTransactionResponse,
)
from fencelog.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from fencelog.wire.messages.commit_transaction import (
    CommitTransactionRequest,
    CommitTransactionResponse,
)
from fencelog.wire.messages.describe_app import DescribeAppRequest, DescribeAppResponse
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.messages.join_transaction import JoinTransactionRequest, JoinTransactionResponse
from fencelog.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from fencelog.wire.messages.renew_transaction import (
    RenewTransactionRequest,
    RenewTransactionResponse,
)
from fencelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.support.groups import Member
from tests.support.node import Peer, batch, until

ID = "orders"


class Producer:
    """A version 1 transactional producer, spelled out."""

    def __init__(self, peer: Peer, transactional_id: str = ID) -> None:
        self.peer = peer
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1
        self.sequence = 0

    async def init(self, *, version: int = 4, timeout_ms: int = 60_000) -> ErrorCode:
        """Ask until no older transaction is in the way."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
        )
        while True:
            answer = await self.peer.ask(request, version, InitProducerIdResponse)
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self.sequence = 0
                return ErrorCode(answer.error_code)
            await asyncio.sleep(0)

    async def add(self, topic: str, *partitions: int, version: int = 3) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[*partitions])],
        )
        while True:
            answer = await self.peer.ask(request, version, AddPartitionsToTxnResponse)
            (topic_result,) = answer.results_by_topic_v3_and_below
            error = topic_result.results_by_partition[0].partition_error_code
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                return ErrorCode(error)
            await asyncio.sleep(0)

    async def produce(
        self, topic: str, *values: str, partition: int = 0, version: int = 9
    ) -> ErrorCode:
        sent = batch(
            *values,
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=self.sequence,
            transactional=True,
        )
        result = await self.peer.produce(
            topic,
            sent,
            partition=partition,
            transactional_id=self.transactional_id,
            version=version,
        )
        if result.error is ErrorCode.NONE:
            self.sequence += len(values)
        return result.error

    async def end(self, *, commit: bool, version: int = 3) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self.peer.ask(request, version, EndTxnResponse)
        return ErrorCode(answer.error_code)


async def settled(node: Node, topic: str, partition: int = 0) -> None:
    """Return once no transaction is open on the partition."""
    found = node.broker.logs.get(topic, partition)
    assert found is not None
    await until(
        lambda: found.log.last_stable_offset == found.log.log_end_offset, "the LSO reaches the end"
    )


def partition_of(node: Node, topic: str, index: int = 0) -> Partition:
    found = node.broker.logs.get(topic, index)
    assert found is not None
    return found


class Worker(Producer):
    """A producer that takes a group's offsets into its transactions."""

    async def add_offsets(self, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id="g",
        )
        answer = await self.peer.ask(request, version, AddOffsetsToTxnResponse)
        return ErrorCode(answer.error_code)

    async def commit_offset(
        self, offset: int, member: Member | None = None, version: int = 3
    ) -> ErrorCode:
        part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id="g",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=-1 if member is None else member.generation,
            member_id="" if member is None else member.member_id,
            group_instance_id=None if member is None else member.instance,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        answer = await self.peer.ask(request, version, TxnOffsetCommitResponse)
        return ErrorCode(answer.topics[0].partitions[0].error_code)


def _index(node: Node) -> int:
    """The partition of ``__consumer_offsets`` that holds the group."""
    (found,) = [
        each.index for each in node.broker.groups.loaded() if each.partition.log.log_end_offset > 0
    ]
    return found


async def offsets_settled(node: Node) -> None:
    await settled(node, "__consumer_offsets", _index(node))


@dataclass(frozen=True)
class Run:
    """One driver's run of the query, at one version."""

    peer: Peer
    run_id: str = "run-1"
    version: int = 0
    query_id: str = "query"
    app: str = "app"
    takeover: bool = False

    async def join(
        self, timeout_ms: int = 60_000, session_timeout_ms: int = -1
    ) -> JoinTransactionResponse:
        """Join, once what ended before is out of the way."""
        request = JoinTransactionRequest(
            app=self.app,
            query_id=self.query_id,
            run_id=self.run_id,
            version=self.version,
            timeout_ms=timeout_ms,
            takeover=self.takeover,
            session_timeout_ms=session_timeout_ms,
        )
        while True:
            answer = await self.peer.ask(request, 2, JoinTransactionResponse)
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                return answer
            await asyncio.sleep(0)

    async def write(
        self, joined: JoinTransactionResponse, *values: str, partition: int = 0, sequence: int = 0
    ) -> ErrorCode:
        sent = batch(
            *values,
            producer_id=joined.producer_id,
            epoch=joined.producer_epoch,
            sequence=sequence,
            transactional=True,
        )
        result = await self.peer.produce(
            "t", sent, partition=partition, transactional_id=joined.transactional_id
        )
        return result.error

    async def commit(
        self, *joined: JoinTransactionResponse, fingerprint: bytes = b"input"
    ) -> ErrorCode:
        request = CommitTransactionRequest(
            app=self.app,
            query_id=self.query_id,
            run_id=self.run_id,
            version=self.version,
            fingerprint=fingerprint,
            producer_ids=[each.producer_id for each in joined],
            takeover=self.takeover,
        )
        while True:
            answer = await self.peer.ask(request, 0, CommitTransactionResponse)
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                return ErrorCode(answer.error_code)
            await asyncio.sleep(0)

    async def abort(self) -> ErrorCode:
        request = AbortTransactionRequest(
            app=self.app, query_id=self.query_id, run_id=self.run_id, version=self.version
        )
        answer = await self.peer.ask(request, 0, AbortTransactionResponse)
        return ErrorCode(answer.error_code)

    async def renew(self) -> ErrorCode:
        request = RenewTransactionRequest(
            app=self.app, query_id=self.query_id, run_id=self.run_id, version=self.version
        )
        answer = await self.peer.ask(request, 0, RenewTransactionResponse)
        return ErrorCode(answer.error_code)

    async def describe(self) -> DescribeAppResponse:
        return await self.peer.ask(DescribeAppRequest(app=self.app), 0, DescribeAppResponse)


async def listed(peer: Peer, version: int = 1, **filters: object) -> list[tuple[str, int, str]]:
    answer = await peer.ask(ListTransactionsRequest(**filters), version, ListTransactionsResponse)
    assert answer.error_code == 0
    return [
        (one.transactional_id, one.producer_id, one.transaction_state)
        for one in answer.transaction_states
    ]
