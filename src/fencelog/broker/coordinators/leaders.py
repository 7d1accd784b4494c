"""Requests of a broker to partition leaders and transaction coordinators, wherever they are.

Callers use this interface only, and keep no reference to the shard or the partition that answers.
What a leader on this broker does for a request is begun in the step of the call, with no await
before it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from fencelog.broker.coordinators.claims import ClaimConnections
from fencelog.broker.coordinators.loaded import Loaded
from fencelog.broker.coordinators.outcomes import OpenOn, Outcomes, committed_outcomes
from fencelog.broker.coordinators.runtime import CoordinatorRuntime
from fencelog.broker.metadata.catalog import Catalog
from fencelog.broker.network.limited_log import LimitedLog
from fencelog.broker.partitions.log_manager import LogManager
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.ownership.model import NO_FENCE, OwnAnswer
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
from fencelog.log.partition_log import PartitionLog
from fencelog.log.values import MarkerToWrite, Rejected
from fencelog.ports import WallClock
from fencelog.types import (
    CoordinatorEpoch,
    Instant,
    LeaderEpoch,
    Offset,
    ProducerId,
    TopicPartition,
)
from fencelog.wire.own import app_of

log = logging.getLogger(__name__)

REFUSED = Offset(-2)
"""Instead of a fence offset: the partition takes no owner of this group, now or later."""
OFFLINE = Offset(-3)
"""The same, of any group: the partition is offline until the next start."""


class Verified(NamedTuple):
    """A coordinator's answer to ``Leaders.verify``."""

    errors: dict[TopicPartition, ErrorCode]
    """Why the producer may not write to a partition; NONE if it may."""
    coordinator_epoch: CoordinatorEpoch

    def is_stale(self, partition_log: PartitionLog, producer_id: ProducerId) -> bool:
        """Whether a later coordinator has ended a transaction of this producer here (E17).

        The answer is then of a deposed one, and may be about that transaction. Checked in the step
        of the append.
        """
        known = partition_log.producer(producer_id)
        return known is not None and known.coordinator_epoch > self.coordinator_epoch


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
    ) -> Verified:
        """Ask the coordinator whether a producer may write to these partitions in a transaction.

        The answer is valid with a guard that was taken before this call (E14). A producer of
        version 1 has added its partitions before; for one of version 2, and for an attempt of a
        versioned transaction, the request adds them, durably, before it is answered (KIP-890, V5).
        Raises NotLeaderError while the coordinator is not available.
        """
        ...

    async def offsets_partition(self, group: str) -> TopicPartition:
        """Return the partition of a group's offsets, which exists: its markers must find it.

        Raises NotLeaderError while it cannot be created.
        """
        ...

    async def outcomes(self, transactions: Collection[OpenOn]) -> Outcomes:
        """Ask all coordinators of the cluster for the outcomes of these open transactions (E17).

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

    async def attach(self, group: str | None, session: str, epoch: int) -> OwnAnswer:
        """Ask the shard of a claim whether a connection to this broker may act for it (O7).

        The connection is among the claim's already, so an end that is told meanwhile closes it.
        Raises NotLeaderError while the shard is not available.
        """
        ...

    def sever(self, session: str) -> None:
        """Close every connection of a claim that has ended (O7)."""
        ...


class LocalLeaders:
    """``Leaders`` of a cluster of one: every partition and coordinator is here."""

    def __init__(
        self,
        catalog: Catalog,
        logs: LogManager,
        transactions: CoordinatorRuntime[TransactionShard],
        versioned: CoordinatorRuntime[VersionedShard],
        groups: CoordinatorRuntime[GroupShard],
        claims: ClaimConnections,
        clock: WallClock,
        markers_wait_s: float,
    ) -> None:
        """``markers_wait_s``: how long a transaction waits for the markers of the one before."""
        self._catalog = catalog
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
        if not self._catalog.has(partition):
            result.set_result(True)  # deleted: nothing is left to mark (E17)
            return result
        try:
            found = self._logs.find(partition)
        except NotLeaderError as error:
            log.warning("cannot write markers to %s now, retrying: %s", partition, error)
            result.set_result(False)
            return result
        outcome = found.append_markers(markers, now_ms=self._clock.now_ms())
        if isinstance(outcome, Rejected):
            log.error("%s refused a marker: %s", partition, outcome.message)
            result.set_result(False)
            return result

        def committed(error: Exception | None) -> None:
            if not result.done():  # else the caller was cancelled
                # Deleted counts as done; a leadership that has ended does not.
                result.set_result(error is None or not self._catalog.has(partition))

        found.when_committed(outcome.end_offset, committed)
        return result

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        client_version: ClientVersion,
    ) -> Verified:
        """See ``Leaders.verify``."""
        if app_of(transactional_id) is not None:
            app = await self._versioned.shard_of(transactional_id)
            error = await self._versioned.decide_on(
                app, lambda shard, now: shard.add_partitions(*producer, *partitions)
            )
            return Verified(dict.fromkeys(partitions, error), app.shard.coordinator_epoch)
        loaded = await self._transactions.shard_of(transactional_id)
        if client_version is ClientVersion.V2:
            error = await self._add_partitions(loaded, transactional_id, producer, partitions)
            return Verified(dict.fromkeys(partitions, error), loaded.shard.coordinator_epoch)
        errors = await self._transactions.read_on(
            loaded,
            lambda shard: [shard.verify(transactional_id, *producer, each) for each in partitions],
        )
        found = dict(zip(partitions, errors, strict=True))
        return Verified(found, loaded.shard.coordinator_epoch)

    async def _add_partitions(
        self,
        loaded: Loaded[TransactionShard],
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> ErrorCode:
        deadline = Instant(asyncio.get_running_loop().time() + self._markers_wait_s)
        while True:
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

    async def offsets_partition(self, group: str) -> TopicPartition:
        """See ``Leaders.offsets_partition``."""
        return (await self._groups.shard_of(group)).partition.name

    async def outcomes(self, transactions: Collection[OpenOn]) -> Outcomes:
        """See ``Leaders.outcomes``; all coordinators are here, and are asked by ``of``."""
        del transactions
        return await committed_outcomes(self._transactions, self._versioned, self._logs)

    async def shard_outcomes(
        self, coordinator: str, index: int, transactions: Sequence[OpenOn]
    ) -> tuple[LeaderEpoch, list[TransactionOutcome]]:
        """Return what one shard knows of open transactions, and the leadership it is loaded in.

        Raises NotLeaderError if it is not here.
        """
        if coordinator == self._transactions.topic:
            loaded = await self._transactions.load(index)
            outcomes = await self._transactions.read_on(
                loaded, lambda shard: [shard.outcome(*each) for each in transactions]
            )
            return loaded.partition.log.leader_epoch, outcomes
        if coordinator == self._versioned.topic:
            app = await self._versioned.load(index)
            outcomes = await self._versioned.read_on(
                app,
                lambda shard: [
                    shard.outcome(producer.producer_id, name) for producer, name in transactions
                ],
            )
            return app.partition.log.leader_epoch, outcomes
        raise NotLeaderError(f"{coordinator} has no transactions")

    def own_partition(
        self, partition: TopicPartition, owner: Owner
    ) -> "asyncio.Future[Offset | None]":
        """Append the record now; see ``Leaders.own_partition``."""
        result: asyncio.Future[Offset | None] = asyncio.get_running_loop().create_future()
        found = self._logs.get(*partition)
        if found is None or found.failure is not None:
            result.set_result(self._not_served(partition, owner, found))
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
                result.set_result(None if self._catalog.has(partition) else NO_FENCE)

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
            self.untold("own_commits", f"group {group:.100}", error)
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
            self.untold("own_producers", f"producers of {key:.100}", error)
            return False

    async def attach(self, group: str | None, session: str, epoch: int) -> OwnAnswer:
        """See ``Leaders.attach``."""
        return await self._claims.may_attach(group, session, epoch)

    def sever(self, session: str) -> None:
        """See ``Leaders.sever``."""
        self._claims.sever(session)

    def has_connections(self, session: str) -> bool:
        """Whether connections to this broker act for a claim, or are about to."""
        return self._claims.has_connections(session)

    def _not_served(
        self, partition: TopicPartition, owner: Owner, found: Partition | None
    ) -> Offset | None:
        """Answer for a partition that records no owner now."""
        if not self._catalog.has(partition):
            return NO_FENCE  # deleted: nothing is left to own (E17)
        reason = self._logs.offline().get(partition) if found is None else found.failure
        if reason is None or isinstance(reason, ExhaustedError | NotLeaderError):
            why = reason or "it is not here"
            self.untold("own_partition", partition, why)
            return None
        return self._offline(partition, owner, reason)

    def _offline(self, partition: TopicPartition, owner: Owner, reason: Exception) -> Offset:
        """Answer for a partition that takes no owner before the next start, nor anything else."""
        self._warn(
            "offline",
            "%s is offline and cannot be told its owner (%s): repair its disk, restart the broker",
            partition,
            reason,
        )
        return OFFLINE if owner.is_live else NO_FENCE

    def untold(self, kind: str, whom: object, why: object) -> None:
        """Log that somebody is told an owner later; one line of a kind, a constant, at a time."""
        self._warn(kind, "cannot tell %s its owner now: %s", whom, why)

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
