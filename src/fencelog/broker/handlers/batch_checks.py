"""Checks of produced batches that only some topics ask for: in-sync replicas, keys, the codec.

``Partition.checks_batches`` says whether a topic asks for any, so that all others pay nothing.
"""

from fencelog.broker.context import Broker
from fencelog.broker.handlers.record_keys import BYTES_MAX, find_keyless, find_keyless_in_slices
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode, LimitError, WireError
from fencelog.wire.batch import BatchHeader, Compression
from fencelog.wire.hot import PartitionResult

ACKS_ALL = -1

Batch = tuple[Partition, BatchHeader, memoryview]
"""A batch whose form and CRC are checked: its partition, its header, all of its bytes."""


def lacks_replicas(partition: Partition, acks: int) -> PartitionResult | None:
    """Return why nothing is appended that waits for replicas, if there are too few.

    If they become too few after the append, the high watermark stays, and the request waits for
    it until its timeout (REQUEST_TIMED_OUT), as in Kafka since KIP-966. Kafka's
    NOT_ENOUGH_REPLICAS_AFTER_APPEND is for records that were committed meanwhile: a request is
    answered in the step that commits them here, so there are none.
    """
    if acks != ACKS_ALL or partition.has_enough_replicas:
        return None
    return PartitionResult(
        partition.name.partition,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        error_message=f"{partition.name} has fewer in-sync replicas than "
        f"it needs: min.insync.replicas is {partition.log.config.min_insync_replicas}",
    )


def check_at_once(batch: Batch, acks: int) -> PartitionResult | None:
    """Return why a batch is refused, None if it is not.

    Raises LimitError for a batch that only ``check_in_slices`` may pass: one that is large, or
    whose codec changes.
    """
    partition, header, records = batch
    if (refused := lacks_replicas(partition, acks)) is not None:
        return refused
    if _has_other_codec(partition, header):
        raise LimitError("decompressed off the loop")
    return find_keyless(partition, header, records) if partition.is_compacted else None


async def check_in_slices(broker: Broker, batch: Batch) -> Batch | PartitionResult:
    """Return the batch as it is to be stored, in the codec of its topic, or why it is refused."""
    partition, header, records = batch
    if partition.is_compacted:
        refused = await find_keyless_in_slices(broker, partition, header, records)
        if refused is not None:
            return refused
    codec = partition.codec
    if codec is None or not _has_other_codec(partition, header):
        return batch
    message_bytes_max = partition.log.config.max_message_bytes
    is_plain = codec is Compression.NONE
    bytes_max = message_bytes_max if is_plain else max(BYTES_MAX, message_bytes_max)
    index = partition.name.partition
    try:
        changed = await broker.decompression.recompressed(header, records, codec, bytes_max)
    except LimitError as error:
        return PartitionResult(index, ErrorCode.MESSAGE_TOO_LARGE, error_message=str(error))
    except WireError as error:
        return PartitionResult(index, ErrorCode.INVALID_RECORD, error_message=str(error))
    return partition, *changed


def _has_other_codec(partition: Partition, header: BatchHeader) -> bool:
    """Whether a batch must be re-compressed; one above the size limit is refused as it is."""
    return (
        partition.codec is not None
        and partition.codec is not header.compression
        and header.size <= partition.log.config.max_message_bytes
    )
