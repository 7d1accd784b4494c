"""Requests of a broker to partition leaders and transaction coordinators, wherever they are.

All leaders are on this broker, so every request is a direct call. Callers use this interface only,
and keep no reference to the shard or the partition that answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from fencelog.broker.coordinators.claims import ClaimConnections
from fencelog.broker.coordinators.outcomes import Outcomes, committed_outcomes
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.network.limited_log import LimitedLog
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.ownership.model import NO_FENCE
from fencelog.coordination.shard import Decision
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.errors import (
    ErrorCode,
    ExhaustedError,
    FencelogError,
    NotLeaderError,
    StorageError,
)
from fencelog.log.ownership import Owner
from fencelog.log.values import MarkerToWrite, Rejected
from fencelog.ports import WallClock
from fencelog.types import Instant, Offset, TopicPartition
from fencelog.wire.own import app_of

log = logging.getLogger(__name__)

REFUSED = Offset(-2)
"""Instead of a fence offset: the partition takes no owner of this group, now or later."""
OFFLINE = Offset(-3)
"""The same, of any group: the partition is offline until the next start."""


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

    def own_partition(self, partition: TopicPartition, owner: Owner) -> Awaitable[Offset | None]:
        """Record a partition's owner in its log; the request is sent when this returns.

        The result is the offset of the record once that is committed; NO_FENCE if the partition is
        deleted (E17) or has a later owner; REFUSED if it takes none of this group; OFFLINE if it
        takes none before the next start, which does what an end asks for; None if it was refused
        for now: retry later.
        """
        ...

    async def own_commits(self, group: str, owners: Mapping[TopicPartition, Owner]) -> bool:
        """Record who commits a group's offsets on these partitions; False: retry later."""
        ...

    async def own_producers(self, key: str, owner: Owner) -> bool:
        """Record whose producers have the ids of a ``producers_key``, and end all others' (O8).

        The transactions of older epochs are ended, markers committed, when the result is true; so
        are those of this one if it is live no more. False: retry later.
        """
        ...

    def sever(self, session: str) -> None:
        """Close every connection of a claim that has ended (O7)."""
        ...


class LocalLeaders:
    """``Leaders`` of a cluster of one: every partition and coordinator is here."""

    def __init__(
        self,
        logs: LogManager,
        transactions: CoordinatorRuntime[TransactionShard],
        versioned: CoordinatorRuntime[VersionedShard],
        groups: CoordinatorRuntime[GroupShard],
        claims: ClaimConnections,
        clock: WallClock,
        markers_wait_s: float,
    ) -> None:
        """``markers_wait_s``: how long a transaction waits for the markers of the one before."""
        self._logs = logs
        self._transactions = transactions
        self._versioned = versioned
        self._groups = groups
        self._claims = claims
        self._clock = clock
        self._markers_wait_s = markers_wait_s
        self._limited_log = LimitedLog(log)

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

    def own_partition(
        self, partition: TopicPartition, owner: Owner
    ) -> "asyncio.Future[Offset | None]":
        """Append the record now; see ``Leaders.own_partition``."""
        result: asyncio.Future[Offset | None] = asyncio.get_running_loop().create_future()
        reason = self._logs.offline().get(partition)
        if isinstance(reason, ExhaustedError):
            self._warn("own_partition", "cannot tell %s its owner now: %s", partition, reason)
            result.set_result(None)
            return result
        found = self._logs.get(*partition)
        reason = reason or (found.failure if found is not None else None)
        if reason is not None:
            result.set_result(self._offline(partition, owner, reason))
            return result
        if found is None:
            result.set_result(NO_FENCE)  # deleted: nothing is left to own (E17)
            return result
        outcome = found.set_owner(owner, now_ms=self._clock.now_ms())
        if not owner.is_live:
            # Each load tells the owners of live claims again, and nobody an end that was recorded.
            found.sync_appended()
        if isinstance(outcome, Rejected):
            self._warn("refused", "%s refused its owner: %s", partition, outcome.message)
            result.set_result(_without_fence(outcome.error, owner))
            return result

        def recorded(error: Exception | None) -> None:
            if result.done():  # the caller was cancelled
                return
            if error is None:
                result.set_result(outcome.base_offset)
            elif isinstance(error, StorageError):
                result.set_result(self._offline(partition, owner, error))
            else:
                result.set_result(NO_FENCE)

        found.when_committed(outcome.end_offset, recorded)
        return result

    async def own_commits(self, group: str, owners: Mapping[TopicPartition, Owner]) -> bool:
        """See ``Leaders.own_commits``."""
        by_owner: dict[Owner, list[TopicPartition]] = {}
        for partition, owner in sorted(owners.items()):
            by_owner.setdefault(owner, []).append(partition)

        def rule(shard: GroupShard, now: Instant) -> Decision[None]:
            del now
            # What a later owner has is left to it.
            decided = [shard.set_owner(group, *each) for each in by_owner.items()]
            records = tuple(record for each in decided for record in each.records)
            return Decision(records, None, must_sync=any(each.must_sync for each in decided))

        try:
            await self._groups.decide(group, rule)
        except NotLeaderError as error:
            self._warn("own_commits", "cannot tell group %.100s its owners now: %s", group, error)
            return False
        return True

    async def own_producers(self, key: str, owner: Owner) -> bool:
        """See ``Leaders.own_producers``."""
        assert owner.transactional_id is not None, owner
        deadline = Instant(asyncio.get_running_loop().time() + self._markers_wait_s)
        try:
            while True:
                loaded = await self._transactions.shard_of(owner.transactional_id)
                seen = loaded.partition.log.log_end_offset
                error = await self._transactions.decide_on(
                    loaded,
                    lambda shard, now: shard.set_owner(key, owner, wall_ms=self._clock.now_ms()),
                )
                if error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    return True  # a later owner's epoch fences this one's producers, too
                if not await _next_step(loaded.partition, seen, deadline):
                    return False
        except NotLeaderError as error:
            self._warn("own_producers", "cannot tell the owner of %.100s now: %s", key, error)
            return False

    def sever(self, session: str) -> None:
        """See ``Leaders.sever``."""
        self._claims.sever(session)

    def _offline(self, partition: TopicPartition, owner: Owner, reason: Exception) -> Offset:
        """Answer for a partition that takes no owner before the next start, nor anything else."""
        self._warn(
            "offline",
            "%s is offline and cannot be told its owner (%s): repair its disk, restart the broker",
            partition,
            reason,
        )
        return OFFLINE if owner.is_live else NO_FENCE

    def _warn(self, kind: str, message: str, *arguments: object) -> None:
        """Log what is tried again until it is done, for each partition of a claim."""
        now = Instant(asyncio.get_running_loop().time())
        self._limited_log.warning(now, kind, message, *arguments)


def _without_fence(error: ErrorCode, owner: Owner) -> Offset | None:
    """What ``own_partition`` answers where a partition has refused the record."""
    if error is ErrorCode.OWNER_FENCED:
        return NO_FENCE
    if error is ErrorCode.POLICY_VIOLATION:
        return REFUSED if owner.is_live else NO_FENCE  # an end of what was never there
    return None


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
