"""One Kafka transaction of finished record batches, on a broker without versioned transactions.

It is of transaction version 1, which every broker from Kafka 2.5 on speaks: all partitions are
added at once, before the first write. Each transaction begins with InitProducerId, so it has an
epoch of its own, sequences from 0, and nothing that is in flight from an earlier one can be written
into it or after it (E7).
"""

import asyncio
from collections.abc import Collection, Iterable

from fencelog.client.batches import EncodedBatch
from fencelog.client.cluster import TRANSACTION, Cluster
from fencelog.client.partition_sender import ProducerIdentity
from fencelog.client.producer_ids import ask_for_end, init_producer_id
from fencelog.client.retry import retrying
from fencelog.client.sender import ProducerOptions, Sender, open_sender
from fencelog.errors import ErrorCode
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.api_versions import END_BUMPS_FROM
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from fencelog.wire.primitives import error_code

ADD_VERSION_MAX = 3  # above it the request is one between brokers
LOST = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""The transaction is over: another producer has the id, or the coordinator aborted it."""


class DriverTransaction:
    """A transaction under a transactional id. Belongs to one event loop."""

    def __init__(self, cluster: Cluster, identity: ProducerIdentity) -> None:
        """Use ``begin``."""
        self._cluster = cluster
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._begun_at_s = self._loop.time()
        self._sender: Sender | None = None

    @classmethod
    async def begin(
        cls, cluster: Cluster, transactional_id: str, timeout_ms: int
    ) -> "DriverTransaction":
        """Fence every earlier producer of the id and end its transaction (E7).

        When it returns, that transaction's markers are on all of its partitions.
        """
        given = await init_producer_id(cluster, transactional_id, timeout_ms)
        identity = ProducerIdentity(
            given.producer_id, given.producer_epoch, transactional_id, partitions_added=True
        )
        return cls(cluster, identity)

    @property
    def age_s(self) -> float:
        """Seconds since it got its epoch; the broker's timeout begins later, so never less."""
        return self._loop.time() - self._begun_at_s

    async def add(self, partitions: Collection[TopicPartition]) -> None:
        """Add all partitions that will be written. Raises RequestError."""
        topics: dict[str, list[int]] = {}
        for name, number in sorted(partitions):
            topics.setdefault(name, []).append(number)
        identity = self._identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id or "",
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=numbers)
                for name, numbers in topics.items()
            ],
        )
        deadline = self._cluster.deadline()

        async def attempt() -> None:
            answer = await self._cluster.ask_coordinator(
                TRANSACTION,
                identity.transactional_id or "",
                request,
                AddPartitionsToTxnResponse,
                deadline,
                ADD_VERSION_MAX,
            )
            codes = {
                (topic.name, result.partition_index): error_code(result.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            }
            # The others only say that one of them failed.
            wrong = sorted(
                (code is ErrorCode.OPERATION_NOT_ATTEMPTED, str(TopicPartition(*at)), code)
                for at, code in codes.items()
                if code
            )
            if wrong:
                _, where, code = wrong[0]
                raise failure(code, f"{where} in transaction {identity.transactional_id}")

        await retrying(attempt, deadline, self._stale_coordinator)
        self._sender = await open_sender(self._cluster, ProducerOptions(identity=identity))

    async def send(self, batches: Iterable[EncodedBatch]) -> None:
        """Queue batches for their leaders; waits while too much is unacknowledged.

        Writes producer id, epoch, sequence and CRC into their headers. Raises the RequestError of
        an earlier batch.
        """
        assert self._sender is not None, "partitions are added first"
        await self._sender.enqueue(batches)

    async def commit(self) -> None:
        """Commit once everything is acknowledged; may be repeated after a lost response.

        Raises RequestError: one of LOST, after which it may have been committed or aborted.
        """
        assert self._sender is not None, "partitions are added first"
        await self._sender.flush()
        identity = self._identity
        deadline = self._cluster.deadline()

        async def attempt() -> None:
            answer = await ask_for_end(
                self._cluster, identity, deadline, END_BUMPS_FROM - 1, commit=True
            )
            if answer.error_code:
                code = error_code(answer.error_code)
                raise failure(code, f"commit of transaction {identity.transactional_id}")

        await retrying(attempt, deadline, self._stale_coordinator)

    async def close(self) -> None:
        """Stop sending. An open transaction stays open until ``begin`` or its timeout ends it."""
        if self._sender is not None:
            await self._sender.close()

    def _stale_coordinator(self) -> None:
        assert self._identity.transactional_id is not None
        self._cluster.forget_coordinator(TRANSACTION, self._identity.transactional_id)
