"""``Leaders`` of a cluster: a direct call where this broker leads, else a request to who does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from fencelog.broker.background import Background
from fencelog.broker.coordinators.attached_claims import AttachedClaims
from fencelog.broker.coordinators.leaders import LocalLeaders, Verified
from fencelog.broker.coordinators.outcomes import OpenOn, Outcomes
from fencelog.broker.metadata.catalog import (
    GROUP_TOPIC,
    OWNERSHIP_TOPIC,
    TOPIC_PREFIX,
    TRANSACTION_TOPIC,
    VERSIONED_TOPIC,
    Catalog,
    Topic,
)
from fencelog.broker.metadata.cluster_state import PartitionKey
from fencelog.broker.metadata.placement import Placement
from fencelog.coordination.controller.model import NO_LEADER, PartitionState
from fencelog.coordination.outcome import TransactionOutcome
from fencelog.coordination.ownership.model import NO_FENCE, OwnAnswer
from fencelog.coordination.shard import partition_for
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log.ownership import Owner
from fencelog.log.values import MarkerToWrite
from fencelog.ports import MetadataStore
from fencelog.types import (
    NO_TOPIC_ID,
    CoordinatorEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    TopicId,
    TopicPartition,
)
from fencelog.wire.message import Message
from fencelog.wire.messages.broker_attach import BrokerAttachRequest, BrokerAttachResponse
from fencelog.wire.messages.broker_outcomes import (
    AskedTransaction,
    BrokerOutcomesRequest,
    BrokerOutcomesResponse,
)
from fencelog.wire.messages.broker_own_commits import (
    BrokerOwnCommitsRequest,
    BrokerOwnCommitsResponse,
    OwnedCommits,
    OwnerOfCommits,
)
from fencelog.wire.messages.broker_own_partition import (
    BrokerOwnPartitionRequest,
    BrokerOwnPartitionResponse,
    OwnerOfPartition,
)
from fencelog.wire.messages.broker_own_producers import (
    BrokerOwnProducersRequest,
    BrokerOwnProducersResponse,
    OwnerOfProducers,
)
from fencelog.wire.messages.broker_sever import BrokerSeverRequest, BrokerSeverResponse
from fencelog.wire.messages.broker_verify import (
    BrokerVerifyRequest,
    BrokerVerifyResponse,
    VerifiedPartition,
)
from fencelog.wire.messages.broker_write_markers import (
    BrokerMarker,
    BrokerWriteMarkersRequest,
    BrokerWriteMarkersResponse,
    MarkedPartition,
)
from fencelog.wire.own import app_of, coordinated_by
from fencelog.wire.primitives import error_code

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)
T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
"""Twice what a leader waits for the commit of what was asked of it, and more: an answer that takes
longer was lost with its connection, and clients wait for what is asked next."""
MARKED_MAX = 500
"""Partitions whose markers are in one request."""


class Peers(Protocol):
    """Requests to other brokers."""

    async def ask(self, target: NodeId, request: Message, response: type[R], timeout_s: float) -> R:
        """Send a request; raises NotLeaderError without an answer, or for one with an error."""
        ...


OpenInternal: TypeAlias = Callable[[str, int], Awaitable[object]]


async def not_opened(topic_name: str, index: int) -> object:
    """Create no topic. Raises NotLeaderError."""
    raise NotLeaderError(f"nobody creates {topic_name}-{index} here")


class _Leader(NamedTuple):
    """Who leads a partition, by what this broker has heard."""

    node_id: NodeId
    topic_id: TopicId
    leader_epoch: LeaderEpoch


class _Marking(NamedTuple):
    """Markers on their way to another broker."""

    partition: TopicPartition
    leader: _Leader
    markers: Sequence[MarkerToWrite]
    result: "asyncio.Future[bool]"


class ClusterLeaders:
    """Finds the leader of each request.

    What this broker has not heard of yet may have been created, and not only deleted: so what its
    catalog does not have is looked for in the store.
    """

    def __init__(
        self,
        local: LocalLeaders,
        peers: Peers,
        catalog: Catalog,
        placement: Placement,
        store: MetadataStore,
    ) -> None:
        """``local`` answers what this broker leads."""
        self._local = local
        self._peers = peers
        self._catalog = catalog
        self._placement = placement
        self._store = store
        self._queued: dict[NodeId, list[_Marking]] = {}
        self._background = Background()
        self._attached = AttachedClaims(self._may_attach, local.has_connections, local.sever)
        self.open_internal: OpenInternal = not_opened
        """Creates an internal topic that nobody has used yet; raises NotLeaderError."""

    # -- partitions ----------------------------------------------------------------------------

    def write_markers(
        self, partition: TopicPartition, markers: Sequence[MarkerToWrite]
    ) -> Awaitable[bool]:
        """See ``Leaders.write_markers``; what goes to one broker in one step is one request."""
        leader = self._leader(partition)
        if leader is None:
            return self._is_deleted(partition)
        if leader.node_id == self._placement.node_id:
            return self._local.write_markers(partition, markers)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[bool] = loop.create_future()
        if leader.node_id == NO_LEADER:
            result.set_result(False)
            return result
        if leader.node_id not in self._queued:
            loop.call_soon(self._send_markers, leader.node_id)
        queued = self._queued.setdefault(leader.node_id, [])
        queued.append(_Marking(partition, leader, markers, result))
        return result

    def _send_markers(self, target: NodeId) -> None:
        queued = self._queued.pop(target)
        for start in range(0, len(queued), MARKED_MAX):
            self._background.begin(self._write_markers(target, queued[start : start + MARKED_MAX]))

    async def _write_markers(self, target: NodeId, markings: Sequence[_Marking]) -> None:
        request = BrokerWriteMarkersRequest(
            partitions=[
                MarkedPartition(
                    topic_id=each.leader.topic_id,
                    partition=each.partition.partition,
                    leader_epoch=each.leader.leader_epoch,
                    markers=[_marker(marker) for marker in each.markers],
                )
                for each in markings
            ]
        )
        written = [False] * len(markings)
        try:
            answer = await self._ask(target, request, BrokerWriteMarkersResponse)
            if len(answer.results) == len(markings):
                written = [each.partition_error == ErrorCode.NONE for each in answer.results]
        except NotLeaderError as error:
            log.warning("cannot write markers at broker %d now, retrying: %s", target, error)
        finally:
            for each, is_written in zip(markings, written, strict=True):
                if not each.result.done():
                    each.result.set_result(is_written)

    def own_partition(self, partition: TopicPartition, owner: Owner) -> Awaitable[Offset | None]:
        """See ``Leaders.own_partition``."""
        leader = self._leader(partition)
        if leader is None:
            return self._fence_of_deleted(partition)
        if leader.node_id == self._placement.node_id:
            return self._local.own_partition(partition, owner)
        result: asyncio.Future[Offset | None] = asyncio.get_running_loop().create_future()
        self._background.begin(self._own_partition(partition, leader, owner, result))
        return result

    async def _own_partition(
        self,
        partition: TopicPartition,
        leader: _Leader,
        owner: Owner,
        result: "asyncio.Future[Offset | None]",
    ) -> None:
        request = BrokerOwnPartitionRequest(
            topic_id=leader.topic_id,
            partition=partition.partition,
            leader_epoch=leader.leader_epoch,
            owner=OwnerOfPartition(**owner._asdict()),
        )
        fence: Offset | None = None
        try:
            answer = await self._ask(leader.node_id, request, BrokerOwnPartitionResponse)
            fence = Offset(answer.fence_offset)
        except NotLeaderError as error:
            self._local.untold("own_partition", partition, error)
        finally:
            if not result.done():
                result.set_result(fence)

    async def _fence_of_deleted(self, partition: TopicPartition) -> Offset | None:
        return NO_FENCE if await self._is_deleted(partition) else None

    async def _is_deleted(self, partition: TopicPartition) -> bool:
        """Whether a partition that the catalog does not have is deleted; False: not for certain."""
        try:
            cell = await self._store.get(TOPIC_PREFIX + partition.topic)
        except StorageError:
            return False
        if cell is None:
            return True
        return partition.partition >= Topic.decode(partition.topic, cell[0]).partitions

    # -- coordinators --------------------------------------------------------------------------

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        client_version: ClientVersion,
    ) -> Verified:
        """See ``Leaders.verify``."""
        is_versioned = app_of(transactional_id) is not None
        coordinator = VERSIONED_TOPIC if is_versioned else TRANSACTION_TOPIC
        key = transactional_id if is_versioned else coordinated_by(transactional_id)
        target = self._coordinator(coordinator, key)
        if target == self._placement.node_id:
            return await self._local.verify(transactional_id, producer, partitions, client_version)
        request = BrokerVerifyRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            is_version2=client_version is ClientVersion.V2,
            partitions=[
                VerifiedPartition(
                    topic=each.topic, topic_id=self._topic_id(each), partition=each.partition
                )
                for each in partitions
            ],
        )
        answer = await self._ask(target, request, BrokerVerifyResponse)
        if len(answer.results) != len(partitions):
            raise NotLeaderError(f"broker {target} has verified other partitions")
        errors = [error_code(each.partition_error) for each in answer.results]
        return Verified(
            dict(zip(partitions, errors, strict=True)), CoordinatorEpoch(answer.coordinator_epoch)
        )

    async def offsets_partition(self, group: str) -> TopicPartition:
        """See ``Leaders.offsets_partition``."""
        topic = self._catalog.get(GROUP_TOPIC)
        if topic is None:
            raise NotLeaderError(f"there is no topic {GROUP_TOPIC} yet")
        return TopicPartition(GROUP_TOPIC, partition_for(group, topic.partitions))

    async def outcomes(self, transactions: Collection[OpenOn]) -> Outcomes:
        """See ``Leaders.outcomes``.

        Every shard answers for the leadership in which it was loaded. The store is asked only then
        who leads: an answer counts if it is from the leader of a time after the question.
        """
        asked = list(transactions)
        found = dict[OpenOn, set[TransactionOutcome]]()
        for name in (TRANSACTION_TOPIC, VERSIONED_TOPIC):
            topic = await self._stored(name)
            if topic is None:
                continue
            answers = [
                await self._outcomes(topic, index, asked) for index in range(topic.partitions)
            ]
            for index, (leader_epoch, outcomes) in enumerate(answers):
                key = PartitionKey(topic.topic_id, index).text
                cell = await self._store.get(key)
                if cell is None or PartitionState.decode(key, cell[0]).leader_epoch != leader_epoch:
                    raise NotLeaderError(f"the coordinator {name}-{index} has moved")
                for each, outcome in zip(asked, outcomes, strict=True):
                    found.setdefault(each, set()).add(outcome)
        return _ClusterOutcomes(found)

    async def _outcomes(
        self, coordinator: Topic, index: int, asked: Sequence[OpenOn]
    ) -> tuple[LeaderEpoch, Sequence[TransactionOutcome]]:
        state = self._placement.partition(coordinator.topic_id, index)
        if state is None or state.leader == NO_LEADER:
            raise NotLeaderError(f"the coordinator {coordinator.name}-{index} has no leader")
        if state.leader == self._placement.node_id:
            return await self._local.shard_outcomes(coordinator.name, index, asked)
        request = BrokerOutcomesRequest(
            coordinator=coordinator.name,
            shard=index,
            transactions=[
                AskedTransaction(
                    producer_id=each.producer.producer_id,
                    producer_epoch=each.producer.producer_epoch,
                    topic=each.partition.topic,
                    partition=each.partition.partition,
                )
                for each in asked
            ],
        )
        answer = await self._ask(state.leader, request, BrokerOutcomesResponse)
        try:
            outcomes = [TransactionOutcome(each) for each in answer.outcomes]
        except ValueError as error:
            raise NotLeaderError(f"broker {state.leader} gives no outcome: {error}") from error
        if len(outcomes) != len(asked):
            raise NotLeaderError(f"broker {state.leader} gives outcomes of other transactions")
        return LeaderEpoch(answer.leader_epoch), outcomes

    async def _stored(self, name: str) -> Topic | None:
        """Return a topic as it is stored: this broker's copy may be older than the topic."""
        try:
            cell = await self._store.get(TOPIC_PREFIX + name)
        except StorageError as error:
            raise NotLeaderError(f"the metadata store does not answer: {error}") from error
        return None if cell is None else Topic.decode(name, cell[0])

    async def own_commits(self, group: str, owners: Mapping[TopicPartition, Owner]) -> bool:
        """See ``Leaders.own_commits``."""
        request = BrokerOwnCommitsRequest(
            group=group,
            partitions=[
                OwnedCommits(
                    topic=name.topic,
                    partition=name.partition,
                    owner=OwnerOfCommits(**owner._asdict()),
                )
                for name, owner in sorted(owners.items())
            ],
        )
        try:
            target = await self._first_coordinator(GROUP_TOPIC, group)
            if target == self._placement.node_id:
                return await self._local.own_commits(group, owners)
            await self._ask(target, request, BrokerOwnCommitsResponse)
        except NotLeaderError as error:
            self._local.untold("own_commits", f"group {group:.100}", error)
            return False
        return True

    async def own_producers(self, key: str, owner: Owner) -> bool:
        """See ``Leaders.own_producers``."""
        assert owner.transactional_id is not None, owner
        request = BrokerOwnProducersRequest(key=key, owner=OwnerOfProducers(**owner._asdict()))
        try:
            coordinated = coordinated_by(owner.transactional_id)
            target = await self._first_coordinator(TRANSACTION_TOPIC, coordinated)
            if target == self._placement.node_id:
                return await self._local.own_producers(key, owner)
            await self._ask(target, request, BrokerOwnProducersResponse)
        except NotLeaderError as error:
            self._local.untold("own_producers", f"producers of {key:.100}", error)
            return False
        return True

    async def attach(self, group: str | None, session: str, epoch: int) -> OwnAnswer:
        """See ``Leaders.attach``; the answer is asked for again while connections are attached."""
        return await self._attached.attach(group, session, epoch)

    async def _may_attach(self, group: str | None, session: str, epoch: int) -> OwnAnswer:
        target = self._coordinator(OWNERSHIP_TOPIC, group or "")
        if target == self._placement.node_id:
            return await self._local.attach(group, session, epoch)
        request = BrokerAttachRequest(group=group, session=session, epoch=epoch)
        answer = await self._ask(target, request, BrokerAttachResponse)
        return OwnAnswer(
            error=error_code(answer.claim_error), session=session, lease_ms=answer.lease_ms
        )

    def sever(self, session: str) -> None:
        """See ``Leaders.sever``: here in this step, at the other brokers as soon as they hear."""
        self._local.sever(session)
        for broker in self._placement.brokers():
            if broker.node_id != self._placement.node_id:
                self._background.begin(self._sever(broker.node_id, session))

    async def _sever(self, target: NodeId, session: str) -> None:
        try:
            await self._ask(target, BrokerSeverRequest(session=session), BrokerSeverResponse)
        except NotLeaderError as error:
            # What it owned refuses it all the same, by its epoch.
            log.warning("connections of an ended claim stay open at broker %d: %s", target, error)

    async def stop(self) -> None:
        """Cancel what is under way."""
        await self._attached.stop()
        await self._background.stop()

    # -- inside --------------------------------------------------------------------------------

    def _leader(self, name: TopicPartition) -> _Leader | None:
        """Return who leads a partition; None if the catalog does not have it."""
        topic = self._catalog.get(name.topic)
        if topic is None or name.partition >= topic.partitions:
            return None
        state = self._placement.partition(topic.topic_id, name.partition)
        if state is None:
            return _Leader(NO_LEADER, topic.topic_id, LeaderEpoch(-1))
        return _Leader(state.leader, topic.topic_id, state.leader_epoch)

    async def _first_coordinator(self, topic_name: str, key: str) -> NodeId:
        """Return the broker that has a shard; creates its topic, which a claim may be first to use.

        Raises NotLeaderError.
        """
        if self._catalog.get(topic_name) is None:
            # Led elsewhere or not known yet: what matters is that it is created.
            with suppress(NotLeaderError):
                await self.open_internal(topic_name, 0)
        return self._coordinator(topic_name, key)

    def _coordinator(self, topic_name: str, key: str) -> NodeId:
        """Return the broker that has a shard. Raises NotLeaderError if it is not known."""
        topic = self._catalog.get(topic_name)
        if topic is None:
            raise NotLeaderError(f"there is no topic {topic_name} yet")
        index = partition_for(key, topic.partitions)
        state = self._placement.partition(topic.topic_id, index)
        if state is None or state.leader == NO_LEADER:
            raise NotLeaderError(f"the coordinator {topic_name}-{index} has no leader")
        return state.leader

    def _topic_id(self, name: TopicPartition) -> TopicId:
        topic = self._catalog.get(name.topic)
        return NO_TOPIC_ID if topic is None else topic.topic_id

    async def _ask(self, target: NodeId, request: Message, response: type[R]) -> R:
        return await self._peers.ask(target, request, response, REQUEST_TIMEOUT_S)


class _ClusterOutcomes:
    """What all shards have answered about the transactions that they were asked for."""

    def __init__(self, found: Mapping[OpenOn, Iterable[TransactionOutcome]]) -> None:
        self._found = found

    def of(self, producer: ProducerIdAndEpoch, partition: TopicPartition) -> TransactionOutcome:
        """See ``Outcomes.of``."""
        outcomes = set(self._found.get(OpenOn(producer, partition), ()))
        for outcome in (TransactionOutcome.LISTED, TransactionOutcome.COMMIT):
            if outcome in outcomes:
                return outcome
        return TransactionOutcome.ABORT


def _marker(marker: MarkerToWrite) -> BrokerMarker:
    return BrokerMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        committed=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        is_bumped=marker.is_bumped,
        drop_state=marker.drop_state,
    )
