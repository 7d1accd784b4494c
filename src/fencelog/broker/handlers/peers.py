"""Requests of other brokers, after a proof that both belong to the cluster.

Behaviour: a request on a connection without a proof is refused, whatever it asks for. Requests of
one connection are carried out concurrently and answered in their order; the end of the connection
ends them. What concerns a partition's log names the leader epoch that the sender knows; under any
other one it is refused, because it may have been sent long ago.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.leaders import LocalLeaders
from fencelog.broker.coordinators.outcomes import OpenOn
from fencelog.broker.dispatch import RawHandler, respond
from fencelog.broker.network.connection import Answer, Request
from fencelog.broker.network.replies import Pending
from fencelog.broker.peers.incoming import IncomingPeers
from fencelog.coordination.transaction.state import ClientVersion, ProducerIdAndEpoch
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.log.ownership import Owner
from fencelog.log.values import MarkerToWrite
from fencelog.types import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)
from fencelog.wire.api_versions import BrokerApiKey
from fencelog.wire.message import Message
from fencelog.wire.messages.broker_attach import BrokerAttachRequest, BrokerAttachResponse
from fencelog.wire.messages.broker_hello import BrokerHelloRequest
from fencelog.wire.messages.broker_outcomes import BrokerOutcomesRequest, BrokerOutcomesResponse
from fencelog.wire.messages.broker_own_commits import (
    BrokerOwnCommitsRequest,
    BrokerOwnCommitsResponse,
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
from fencelog.wire.messages.broker_proof import BrokerProofRequest
from fencelog.wire.messages.broker_segment_rate import (
    BrokerSegmentRateRequest,
    BrokerSegmentRateResponse,
)
from fencelog.wire.messages.broker_sever import BrokerSeverRequest, BrokerSeverResponse
from fencelog.wire.messages.broker_verify import (
    BrokerVerifyRequest,
    BrokerVerifyResponse,
    VerifiedResult,
)
from fencelog.wire.messages.broker_write_markers import (
    BrokerMarker,
    BrokerWriteMarkersRequest,
    BrokerWriteMarkersResponse,
    MarkedPartition,
    MarkedResult,
)
from fencelog.wire.primitives import REQUEST_ITEMS_MAX

log = logging.getLogger(__name__)

Q = TypeVar("Q", bound=Message)
R = TypeVar("R")
COMMIT_WAIT_S = 2.0
"""How long an answer waits for commits; the sender asks again for what is not committed then.

Answers come in the order of the requests: where too few replicas of one partition are in sync, what
asks for others waits as long. A repeated request appends nothing again.
"""


def broker_handlers(peers: IncomingPeers, local: LocalLeaders) -> dict[BrokerApiKey, RawHandler]:
    """Return the handlers of the requests of other brokers to leaders, and of the proof."""
    leaders = _Requests(local)
    return {
        BrokerApiKey.BROKER_HELLO: _unproven(
            BrokerHelloRequest, lambda message, on: peers.hello(on.connection, message)
        ),
        BrokerApiKey.BROKER_PROOF: _unproven(
            BrokerProofRequest, lambda message, on: peers.prove(on.connection, message)
        ),
        BrokerApiKey.BROKER_WRITE_MARKERS: from_broker(
            peers, BrokerWriteMarkersRequest, BrokerWriteMarkersResponse, leaders.write_markers
        ),
        BrokerApiKey.BROKER_VERIFY: from_broker(
            peers, BrokerVerifyRequest, BrokerVerifyResponse, leaders.verify
        ),
        BrokerApiKey.BROKER_OUTCOMES: from_broker(
            peers, BrokerOutcomesRequest, BrokerOutcomesResponse, leaders.outcomes
        ),
        BrokerApiKey.BROKER_OWN_PARTITION: from_broker(
            peers, BrokerOwnPartitionRequest, BrokerOwnPartitionResponse, leaders.own_partition
        ),
        BrokerApiKey.BROKER_OWN_COMMITS: from_broker(
            peers, BrokerOwnCommitsRequest, BrokerOwnCommitsResponse, leaders.own_commits
        ),
        BrokerApiKey.BROKER_OWN_PRODUCERS: from_broker(
            peers, BrokerOwnProducersRequest, BrokerOwnProducersResponse, leaders.own_producers
        ),
        BrokerApiKey.BROKER_SEVER: from_broker(
            peers, BrokerSeverRequest, BrokerSeverResponse, leaders.sever
        ),
        BrokerApiKey.BROKER_ATTACH: from_broker(
            peers, BrokerAttachRequest, BrokerAttachResponse, leaders.attach
        ),
        BrokerApiKey.BROKER_SEGMENT_RATE: from_broker(
            peers, BrokerSegmentRateRequest, BrokerSegmentRateResponse, leaders.segment_rate
        ),
    }


def _unproven(kind: type[Q], handle: Callable[[Q, Request], Message]) -> RawHandler:
    """Wrap a step of the proof, which is answered at once."""

    def raw(broker: Broker, request: Request) -> Answer:
        del broker
        message = kind.read(request.body, request.header.api_version, REQUEST_ITEMS_MAX)
        return respond(request, handle(message, request).write(request.header.api_version))

    return raw


def from_broker(
    peers: IncomingPeers,
    kind: type[Q],
    response: Callable[..., Message],
    handle: Callable[[Broker, Q], Awaitable[Message]],
) -> RawHandler:
    """Wrap a handler for proven connections; a NotLeaderError is answered as such."""

    def raw(broker: Broker, request: Request) -> Answer:
        connection, version = request.connection, request.header.api_version
        if peers.peer_of(connection) is None:
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            text = "only a broker that has proven that it belongs to the cluster may ask this"
            return respond(request, response(error_code=error, error_message=text).write(version))
        message = kind.read(request.body, version, REQUEST_ITEMS_MAX)
        pending = Pending()

        async def run() -> None:
            try:
                answer = await handle(broker, message)
            except NotLeaderError as error:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                answer = response(error_code=code, error_message=str(error))
            except Exception:
                log.exception("internal error, please report it with this traceback")
                connection.abort()
                return
            pending.settle(respond(request, answer.write(version)))

        peers.begin(connection, run())
        return pending

    return raw


async def _in_time(answer: Awaitable[R]) -> R:
    """Return a coordinator's answer. Raises NotLeaderError if it takes too long."""
    try:
        async with asyncio.timeout(COMMIT_WAIT_S):
            return await answer
    except TimeoutError:
        raise NotLeaderError(f"nothing was committed for {COMMIT_WAIT_S:g} s") from None


class _Requests:
    """What other brokers ask of the leaders here."""

    def __init__(self, local: LocalLeaders) -> None:
        self._local = local

    async def write_markers(
        self, broker: Broker, message: BrokerWriteMarkersRequest
    ) -> BrokerWriteMarkersResponse:
        """Append the markers in this step; answer once they are committed."""
        results = [self._mark(broker, each) for each in message.partitions]
        waiting = [each for each in results if each is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=COMMIT_WAIT_S)
        return BrokerWriteMarkersResponse(
            results=[
                MarkedResult(
                    partition_error=ErrorCode.NONE
                    if each is not None and each.done() and each.result()
                    else ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
                for each in results
            ]
        )

    def _mark(self, broker: Broker, requested: MarkedPartition) -> "asyncio.Future[bool] | None":
        name = _led(broker, requested.topic_id, requested.partition, requested.leader_epoch)
        if name is None:
            return None
        return self._local.write_markers(name, [_marker(each) for each in requested.markers])

    async def verify(self, broker: Broker, message: BrokerVerifyRequest) -> BrokerVerifyResponse:
        """Answer for the coordinator of a transactional id."""
        names = []
        for each in message.partitions:
            # A transaction names partitions by name: later, what the catalog does not have is gone.
            topic = broker.catalog.get(each.topic)
            if topic is None or topic.topic_id != each.topic_id:
                raise NotLeaderError(f"topic {each.topic} is another one here")
            names.append(TopicPartition(each.topic, each.partition))
        producer = ProducerIdAndEpoch(
            ProducerId(message.producer_id), ProducerEpoch(message.producer_epoch)
        )
        version = ClientVersion.V2 if message.is_version2 else ClientVersion.V1
        verified = await _in_time(
            self._local.verify(message.transactional_id, producer, names, version)
        )
        return BrokerVerifyResponse(
            coordinator_epoch=verified.coordinator_epoch,
            results=[VerifiedResult(partition_error=verified.errors[name]) for name in names],
        )

    async def outcomes(
        self, broker: Broker, message: BrokerOutcomesRequest
    ) -> BrokerOutcomesResponse:
        """Answer for one shard."""
        del broker
        asked = [
            OpenOn(
                ProducerIdAndEpoch(
                    ProducerId(each.producer_id), ProducerEpoch(each.producer_epoch)
                ),
                TopicPartition(each.topic, each.partition),
            )
            for each in message.transactions
        ]
        leader_epoch, outcomes = await _in_time(
            self._local.shard_outcomes(message.coordinator, message.shard, asked)
        )
        return BrokerOutcomesResponse(
            leader_epoch=leader_epoch, outcomes=[each.value for each in outcomes]
        )

    async def own_partition(
        self, broker: Broker, message: BrokerOwnPartitionRequest
    ) -> BrokerOwnPartitionResponse:
        """Append the owner in this step; answer once it is committed."""
        name = _led(broker, message.topic_id, message.partition, message.leader_epoch)
        if name is None:
            raise NotLeaderError("the partition is not led here in this epoch")
        result = self._local.own_partition(name, _owner(message.owner))
        await asyncio.wait([result], timeout=COMMIT_WAIT_S)
        fence = result.result() if result.done() else None
        if fence is None:
            raise NotLeaderError(f"{name} takes no owner now")
        return BrokerOwnPartitionResponse(fence_offset=fence)

    async def own_commits(
        self, broker: Broker, message: BrokerOwnCommitsRequest
    ) -> BrokerOwnCommitsResponse:
        """Answer for a group."""
        del broker
        owners = {
            TopicPartition(each.topic, each.partition): _owner(each.owner)
            for each in message.partitions
        }
        if not await _in_time(self._local.own_commits(message.group, owners)):
            raise NotLeaderError("the group is not available")
        return BrokerOwnCommitsResponse()

    async def own_producers(
        self, broker: Broker, message: BrokerOwnProducersRequest
    ) -> BrokerOwnProducersResponse:
        """Answer for the coordinator of a transactional id."""
        del broker
        if message.owner.transactional_id is None:
            raise NotLeaderError("the owner has no transactional id")
        if not await _in_time(self._local.own_producers(message.key, _owner(message.owner))):
            raise NotLeaderError("the producers have no owner yet")
        return BrokerOwnProducersResponse()

    async def sever(self, broker: Broker, message: BrokerSeverRequest) -> BrokerSeverResponse:
        """Close the connections of a claim that has ended."""
        del broker
        self._local.sever(message.session)
        return BrokerSeverResponse()

    async def attach(self, broker: Broker, message: BrokerAttachRequest) -> BrokerAttachResponse:
        """Answer for the shard of a claim."""
        del broker
        answer = await _in_time(self._local.attach(message.group, message.session, message.epoch))
        return BrokerAttachResponse(claim_error=answer.error, lease_ms=answer.lease_ms)

    async def segment_rate(
        self, broker: Broker, message: BrokerSegmentRateRequest
    ) -> BrokerSegmentRateResponse:
        """Answer what was measured of a segment that is led here."""
        rate = broker.stream_policy.rate(TopicId(message.topic_id), message.segment)
        if rate is None:
            return BrokerSegmentRateResponse(is_known=False)
        return BrokerSegmentRateResponse(
            is_known=True, events_per_s=rate.events_per_s, kbytes_per_s=rate.kbytes_per_s
        )


def _led(broker: Broker, topic_id: bytes, index: int, leader_epoch: int) -> TopicPartition | None:
    """Return the partition if this broker leads it in exactly this epoch."""
    topic = broker.catalog.by_id(TopicId(topic_id))
    if topic is None:
        return None
    partition = broker.logs.get(topic.name, index)
    if partition is None or partition.log.leader_epoch != LeaderEpoch(leader_epoch):
        return None
    return partition.name


def _marker(marker: BrokerMarker) -> MarkerToWrite:
    return MarkerToWrite(
        producer_id=ProducerId(marker.producer_id),
        producer_epoch=ProducerEpoch(marker.producer_epoch),
        commit=marker.committed,
        coordinator_epoch=CoordinatorEpoch(marker.coordinator_epoch),
        is_bumped=marker.is_bumped,
        drop_state=marker.drop_state,
    )


def _owner(owner: OwnerOfPartition | OwnerOfCommits | OwnerOfProducers) -> Owner:
    return Owner(
        group=owner.group,
        epoch=owner.epoch,
        session=owner.session,
        transactional_id=owner.transactional_id,
        holder=owner.holder,
        is_live=owner.is_live,
    )
