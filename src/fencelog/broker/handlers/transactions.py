"""Requests of transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.

Version notes: PRODUCER_FENCED exists from InitProducerId 4 and from version 2 of the others on;
older versions get INVALID_PRODUCER_EPOCH (E2). EndTxn 5 is transaction version 2 (KIP-890): each
end bumps the epoch and returns it; up to 4 the epoch stays (E14).
"""

from fencelog.broker.context import Broker
from fencelog.broker.handlers.connection_fencing import accepted_on, refuse_stale_connection
from fencelog.broker.network.connection import Request
from fencelog.coordination.transaction.ending import EndResult
from fencelog.coordination.transaction.shard import InitResult, for_client
from fencelog.coordination.transaction.state import EPOCH_EXHAUSTED, ClientVersion
from fencelog.errors import ErrorCode, NotLeaderError
from fencelog.types import NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from fencelog.wire.api_versions import END_BUMPS_FROM
from fencelog.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from fencelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from fencelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from fencelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencelog.wire.own import app_of


async def init_producer_id(
    broker: Broker, message: InitProducerIdRequest, request: Request
) -> InitProducerIdResponse:
    """Assign a producer id; with a transactional id, fence its older epochs (E1, E7)."""
    result = await _init(broker, message)
    knows_fenced = request.header.api_version >= 4
    return InitProducerIdResponse(
        error_code=for_client(result.error, knows_fenced=knows_fenced),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )


async def _init(broker: Broker, message: InitProducerIdRequest) -> InitResult:
    transactional_id = message.transactional_id
    if transactional_id is not None and app_of(transactional_id) is not None:
        return InitResult(ErrorCode.INVALID_REQUEST)
    try:
        fresh = await broker.producer_ids.take()
        if transactional_id is None:
            # An idempotent producer that sends its old id and epoch gets a new id, too: the old
            # state on the partitions would refuse its restarted sequences (KIP-360).
            return InitResult(ErrorCode.NONE, fresh, ProducerEpoch(0))
        wall_ms = broker.clock.now_ms()
        return await broker.transactions.decide(
            transactional_id,
            lambda shard, now: shard.init_producer_id(
                transactional_id,
                message.transaction_timeout_ms,
                ProducerId(message.producer_id),
                ProducerEpoch(message.producer_epoch),
                new_producer_id=fresh,
                wall_ms=wall_ms,
            ),
        )
    except NotLeaderError as refused:
        return InitResult(refused.coordinator_error)


async def add_partitions(
    broker: Broker, message: AddPartitionsToTxnRequest, request: Request
) -> AddPartitionsToTxnResponse:
    """Add partitions to the producer's transaction: all of them or none."""
    refuse_stale_connection(
        broker,
        request,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
    )
    partitions = [
        TopicPartition(topic.name, index)
        for topic in message.v3_and_below_topics
        for index in topic.partitions
    ]
    errors = {name: _addable(broker, name) for name in partitions}
    if any(errors.values()):
        # As in Kafka: if one partition is invalid, the others are not attempted.
        results = {
            name: error or ErrorCode.OPERATION_NOT_ATTEMPTED for name, error in errors.items()
        }
    else:
        error = await _add(broker, message, partitions)
        if error is ErrorCode.NONE:
            accepted_on(
                broker,
                request,
                message.v3_and_below_producer_id,
                message.v3_and_below_producer_epoch,
            )
        known = for_client(error, knows_fenced=request.header.api_version >= 2)
        results = dict.fromkeys(partitions, known)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=results[TopicPartition(topic.name, index)],
                    )
                    for index in topic.partitions
                ],
            )
            for topic in message.v3_and_below_topics
        ]
    )


def _addable(broker: Broker, name: TopicPartition) -> ErrorCode:
    topic = broker.catalog.get(name.topic)
    if topic is None or not 0 <= name.partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic.internal else ErrorCode.NONE


async def add_offsets(
    broker: Broker, message: AddOffsetsToTxnRequest, request: Request
) -> AddOffsetsToTxnResponse:
    """Add the partition that holds a group's offsets to the transaction (rule E8)."""
    refuse_stale_connection(broker, request, message.producer_id, message.producer_epoch)
    error = await _add_offsets(broker, message)
    if error is ErrorCode.NONE:
        accepted_on(broker, request, message.producer_id, message.producer_epoch)
    known = for_client(error, knows_fenced=request.header.api_version >= 2)
    return AddOffsetsToTxnResponse(error_code=known)


async def _add_offsets(broker: Broker, message: AddOffsetsToTxnRequest) -> ErrorCode:
    if not message.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if app_of(message.transactional_id) is not None:
        return ErrorCode.INVALID_REQUEST  # a versioned transaction stores no group offsets
    try:
        partition = await broker.leaders.offsets_partition(message.group_id)
        wall_ms = broker.clock.now_ms()
        return await broker.transactions.decide(
            message.transactional_id,
            lambda shard, now: shard.add_partitions(
                message.transactional_id,
                ProducerId(message.producer_id),
                ProducerEpoch(message.producer_epoch),
                [partition],
                wall_ms=wall_ms,
            ),
        )
    except NotLeaderError as refused:
        return refused.coordinator_error


async def _add(
    broker: Broker, message: AddPartitionsToTxnRequest, partitions: list[TopicPartition]
) -> ErrorCode:
    transactional_id = message.v3_and_below_transactional_id
    producer_id = ProducerId(message.v3_and_below_producer_id)
    epoch = ProducerEpoch(message.v3_and_below_producer_epoch)
    try:
        if app_of(transactional_id) is not None:
            return await broker.versioned.decide(
                transactional_id,
                lambda shard, now: shard.add_partitions(producer_id, epoch, *partitions),
            )
        wall_ms = broker.clock.now_ms()
        return await broker.transactions.decide(
            transactional_id,
            lambda shard, now: shard.add_partitions(
                transactional_id, producer_id, epoch, partitions, wall_ms=wall_ms
            ),
        )
    except NotLeaderError as refused:
        return refused.coordinator_error


async def end_transaction(
    broker: Broker, message: EndTxnRequest, request: Request
) -> EndTxnResponse:
    """Commit or abort; answered once the decision is committed, before the markers (E9, E16)."""
    refuse_stale_connection(broker, request, message.producer_id, message.producer_epoch)
    is_version_2 = request.header.api_version >= END_BUMPS_FROM
    result = await _end(broker, message, ClientVersion.V2 if is_version_2 else ClientVersion.V1)
    if result.error is ErrorCode.NONE:
        accepted_on(broker, request, message.producer_id, message.producer_epoch)
    return EndTxnResponse(
        error_code=for_client(result.error, knows_fenced=request.header.api_version >= 2),
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.producer_epoch,
    )


async def _end(broker: Broker, message: EndTxnRequest, client_version: ClientVersion) -> EndResult:
    if app_of(message.transactional_id) is not None:
        return EndResult(ErrorCode.INVALID_REQUEST)
    wall_ms = broker.clock.now_ms()
    is_last = client_version is ClientVersion.V2 and message.producer_epoch >= EPOCH_EXHAUSTED
    try:
        fresh = await broker.producer_ids.take() if is_last else NO_PRODUCER_ID
        return await broker.transactions.decide(
            message.transactional_id,
            lambda shard, now: shard.end_transaction(
                message.transactional_id,
                ProducerId(message.producer_id),
                ProducerEpoch(message.producer_epoch),
                message.committed,
                client_version=client_version,
                new_producer_id=fresh,
                wall_ms=wall_ms,
            ),
        )
    except NotLeaderError as refused:
        return EndResult(refused.coordinator_error)
