"""WriteTxnMarkers: an operator ends a hanging transaction (ADR 10).

Version notes: 1 is what Kafka's Admin sends (``abortTransaction``, ``kafka-transactions.sh
abort``); Kafka 4 has removed 0.
"""

import logging

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.outcomes import OpenOn, Outcomes
from fencelog.broker.handlers.brokers import missing
from fencelog.broker.network.connection import Request
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.operator_markers import validate_operator_marker
from fencelog.coordination.transaction.state import ProducerIdAndEpoch
from fencelog.errors import ErrorCode, NotLeaderError, StorageError
from fencelog.log.values import MarkerToWrite, Rejected
from fencelog.types import CoordinatorEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition
from fencelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = logging.getLogger(__name__)


async def write_markers(
    broker: Broker, message: WriteTxnMarkersRequest, request: Request
) -> WriteTxnMarkersResponse:
    """End transactions that no coordinator lists; answered once the markers are committed."""
    del request
    results = []
    async for requested in broker.time_slices.each(message.markers):
        marker = MarkerToWrite(
            producer_id=ProducerId(requested.producer_id),
            producer_epoch=ProducerEpoch(requested.producer_epoch),
            commit=requested.transaction_result,
            coordinator_epoch=CoordinatorEpoch(requested.coordinator_epoch),
        )
        results.append(await _write(broker, marker, requested))
    return WriteTxnMarkersResponse(markers=results)


async def _write(
    broker: Broker, marker: MarkerToWrite, requested: WritableTxnMarker
) -> WritableTxnMarkerResult:
    topics = []
    async for topic in broker.time_slices.each(requested.topics):
        partitions = [
            WritableTxnMarkerPartitionResult(
                partition_index=index,
                error_code=await _write_one(broker, marker, TopicPartition(topic.name, index)),
            )
            async for index in broker.time_slices.each(topic.partition_indexes)
        ]
        topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
    return WritableTxnMarkerResult(producer_id=requested.producer_id, topics=topics)


async def _write_one(broker: Broker, marker: MarkerToWrite, name: TopicPartition) -> ErrorCode:
    await broker.time_slices.next()  # each reads every transactional id
    partition = broker.logs.get(*name)
    if partition is None or partition.read_error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return missing(broker, *name) if partition is None else partition.read_error
    producer = ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch)
    opened = _opened(partition, marker)
    try:
        outcomes = await broker.leaders.outcomes([OpenOn(producer, name)])
        if broker.logs.find(name) is not partition or _opened(partition, marker) != opened:
            return ErrorCode.CONCURRENT_TRANSACTIONS  # the answer was about another transaction
        end_offset = _append(broker, outcomes, partition, marker)
        if isinstance(end_offset, ErrorCode):
            return end_offset
        await partition.committed(end_offset)
    except NotLeaderError as refused:
        is_gone = broker.logs.get(*name) is None
        return missing(broker, *name) if is_gone else refused.coordinator_error
    except StorageError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE


def _opened(partition: Partition, marker: MarkerToWrite) -> Offset | None:
    """Where the producer's open transaction begins; None if none is open."""
    state = partition.log.producer(marker.producer_id)
    return None if state is None else state.open_offset


def _append(
    broker: Broker, outcomes: Outcomes, partition: Partition, marker: MarkerToWrite
) -> Offset | ErrorCode:
    """Validate and append in one step; return the offset to commit before the response.

    Raises NotLeaderError if a coordinator was unloaded since ``outcomes`` was read.
    """
    producer = ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch)
    outcome = outcomes.of(producer, partition.name)
    valid = validate_operator_marker(marker, outcome, partition.log.producer(marker.producer_id))
    if isinstance(valid, ErrorCode):
        return valid
    if valid is None:
        return partition.log.log_end_offset  # the marker that it repeats may not be committed yet
    appended = partition.append_markers([valid], now_ms=broker.clock.now_ms())
    if isinstance(appended, Rejected):
        return appended.error
    log.warning(
        "%s: WriteTxnMarkers ended the transaction of producer %d, %s",
        partition.name,
        valid.producer_id,
        "committed as decided" if valid.commit else "aborted",
    )
    return appended.end_offset
