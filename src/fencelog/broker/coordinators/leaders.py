"""Requests of a broker to partition leaders and transaction coordinators, wherever they are.

All leaders are on this broker, so every request is a direct call. Callers use this interface only,
and keep no reference to the shard or the partition that answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Protocol

from fencelog.broker.coordinators.outcomes import Outcomes, committed_outcomes
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import ErrorCode, FencelogError, NotLeaderError, StorageError
from fencelog.log.values import MarkerToWrite, Rejected
from fencelog.ports import WallClock
from fencelog.types import Instant, Offset, TopicPartition
from fencelog.wire.own import app_of

log = logging.getLogger(__name__)


class Leaders(Protocol):
    """The requests of one broker to another."""

    def write_markers(
        self, partition: TopicPartition, markers: Sequence[MarkerToWrite]
    ) -> Awaitable[bool]:
        """End transactions on a partition; the request is sent when this returns.

        The result is true once the markers are committed, or the partition is deleted (E17), and
        false if the partition refused them: retry later.
        """
        ...

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        client_version: ClientVersion,
    ) -> dict[TopicPartition, ErrorCode]:
        """Ask the coordinator whether a producer may write to these partitions in a transaction.

        The answer is valid with a guard that was taken before this call (E14). A producer of
        version 1 has added its partitions before; for one of version 2, and for an attempt of a
        versioned transaction, the request adds them, durably, before it is answered (KIP-890, V5).
        Raises NotLeaderError while the coordinator is not available.
        """
        ...

    async def outcomes(self) -> Outcomes:
        """Ask for the outcomes of transactions that are open on partitions (E17).

        Raises NotLeaderError while any coordinator is not available.
        """
        ...


class LocalLeaders:
    """``Leaders`` of a cluster of one: every partition and coordinator is here."""

    def __init__(
        self,
        logs: LogManager,
        transactions: CoordinatorRuntime[TransactionShard],
        versioned: CoordinatorRuntime[VersionedShard],
        clock: WallClock,
        markers_wait_s: float,
    ) -> None:
        """``markers_wait_s``: how long a transaction waits for the markers of the one before."""
        self._logs = logs
        self._transactions = transactions
        self._versioned = versioned
        self._clock = clock
        self._markers_wait_s = markers_wait_s

    def write_markers(
        self, partition: TopicPartition, markers: Sequence[MarkerToWrite]
    ) -> "asyncio.Future[bool]":
        """Append the markers now; see ``Leaders.write_markers``."""
        result: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        try:
            found = self._logs.find(partition)
        except NotLeaderError as error:
            log.warning("cannot write markers to %s now, retrying: %s", partition, error)
            result.set_result(False)
            return result
        if found is None:
            result.set_result(True)  # deleted: nothing is left to mark (E17)
            return result
        outcome = found.append_markers(markers, now_ms=self._clock.now_ms())
        if isinstance(outcome, Rejected):
            log.error("%s refused a marker: %s", partition, outcome.message)
            result.set_result(False)
            return result

        def committed(error: Exception | None) -> None:
            if not result.done():  # else the caller was cancelled
                result.set_result(not isinstance(error, StorageError))  # deleted counts as done

        found.when_committed(outcome.end_offset, committed)
        return result

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        client_version: ClientVersion,
    ) -> dict[TopicPartition, ErrorCode]:
        """See ``Leaders.verify``."""
        if app_of(transactional_id) is not None:
            error = await self._versioned.decide(
                transactional_id, lambda shard, now: shard.add_partitions(*producer, *partitions)
            )
            return dict.fromkeys(partitions, error)
        if client_version is ClientVersion.V2:
            error = await self._add_partitions(transactional_id, producer, partitions)
            return dict.fromkeys(partitions, error)
        errors = await self._transactions.read(
            transactional_id,
            lambda shard: [shard.verify(transactional_id, *producer, each) for each in partitions],
        )
        return dict(zip(partitions, errors, strict=True))

    async def _add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> ErrorCode:
        deadline = Instant(asyncio.get_running_loop().time() + self._markers_wait_s)
        while True:
            loaded = await self._transactions.shard_of(transactional_id)
            # Taken before the decision: markers may be written while its answer waits.
            seen = loaded.partition.log.log_end_offset
            error = await self._transactions.decide_on(
                loaded,
                lambda shard, now: shard.add_partitions(
                    transactional_id,
                    *producer,
                    partitions,
                    client_version=ClientVersion.V2,
                    wall_ms=self._clock.now_ms(),
                ),
            )
            if error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return error
            if not await _next_step(loaded.partition, seen, deadline):
                return error

    async def outcomes(self) -> Outcomes:
        """See ``Leaders.outcomes``."""
        return await committed_outcomes(self._transactions, self._versioned, self._logs)


async def _next_step(coordinator: Partition, seen: Offset, deadline: Instant) -> bool:
    """Wait until the coordinator has committed a record at ``seen``; False at the deadline."""
    try:
        async with asyncio.timeout_at(deadline):
            await coordinator.committed(Offset(seen + 1))
    except TimeoutError:
        return False
    except FencelogError as error:
        raise NotLeaderError(f"{coordinator.name}: {error}") from error
    return True
