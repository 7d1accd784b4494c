"""WriteTxnMarkers: an operator ends a transaction that hangs (ADR 10).

Version notes: 1 is what Kafka's Admin sends (``abortTransaction``, ``kafka-transactions.sh
abort``); 0 is gone from Kafka 4.
"""

import logging

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.outcomes import all_shards, transaction_outcome
from fencelog.broker.coordinators.runtime import Loaded
from fencelog.broker.network.connection import Request
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.operator_markers import validate_operator_marker
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.transaction.state import ProducerIdAndEpoch
from fencelog.coordination.versioned.shard import VersionedShard
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

_AnyShard = Loaded[TransactionShard] | Loaded[VersionedShard]


async def write_markers(
    broker: Broker, message: WriteTxnMarkersRequest, request: Request
) -> WriteTxnMarkersResponse:
    """End what no coordinator lists; answered once the markers are committed."""
    del request
    results = []
    async for asked in broker.time_slices.each(message.markers):
        marker = MarkerToWrite(
            producer_id=ProducerId(asked.producer_id),
            producer_epoch=ProducerEpoch(asked.producer_epoch),
            commit=asked.transaction_result,
            coordinator_epoch=CoordinatorEpoch(asked.coordinator_epoch),
        )
        results.append(await _write(broker, marker, asked))
    return WriteTxnMarkersResponse(markers=results)


async def _write(
    broker: Broker, marker: MarkerToWrite, asked: WritableTxnMarker
) -> WritableTxnMarkerResult:
    topics = []
    async for topic in broker.time_slices.each(asked.topics):
        partitions = [
            WritableTxnMarkerPartitionResult(
                partition_index=index,
                error_code=await _write_one(broker, marker, TopicPartition(topic.name, index)),
            )
            async for index in broker.time_slices.each(topic.partition_indexes)
        ]
        topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
    return WritableTxnMarkerResult(producer_id=asked.producer_id, topics=topics)


async def _write_one(broker: Broker, marker: MarkerToWrite, name: TopicPartition) -> ErrorCode:
    await broker.time_slices.next()  # each looks at every transactional id
    try:
        shards = await _committed_shards(broker)
        partition = broker.logs.find(name)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        outcome = _end(broker, shards, partition, marker)
        if isinstance(outcome, ErrorCode):
            return outcome
        await partition.purgatory.committed(outcome)
    except NotLeaderError:
        offline = broker.logs.missing(*name) is ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.COORDINATOR_NOT_AVAILABLE
    except StorageError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE


async def _committed_shards(broker: Broker) -> list[_AnyShard]:
    """Every shard of both coordinators, all that it has decided committed (E16)."""
    shards: list[_AnyShard] = [
        *await all_shards(broker.transactions, broker.logs),
        *await all_shards(broker.versioned, broker.logs),
    ]
    for loaded in shards:
        await loaded.partition.purgatory.committed(loaded.partition.log.log_end_offset)
    return shards


def _end(
    broker: Broker, shards: list[_AnyShard], partition: Partition, marker: MarkerToWrite
) -> Offset | ErrorCode:
    """Judge and append in one step; returns what has to be committed before the answer."""
    if any(loaded.dropped for loaded in shards):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    outcome = transaction_outcome(
        broker.transactions.loaded(),
        broker.versioned.loaded(),
        ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
        partition.name,
    )
    valid = validate_operator_marker(marker, outcome, partition.log.producer(marker.producer_id))
    if isinstance(valid, ErrorCode):
        return valid
    if valid is None:
        return partition.log.log_end_offset  # what it repeats may not be committed yet
    appended = partition.append_markers([valid], now_ms=broker.clock.now_ms())
    if isinstance(appended, Rejected):
        return appended.error
    broker.flusher.dirty(partition)
    log.warning(
        "%s: the transaction of producer %d was ended from outside, %s",
        partition.name,
        valid.producer_id,
        "committed as decided" if valid.commit else "aborted",
    )
    return appended.end_offset
