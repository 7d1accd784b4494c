"""Finds records without a key, which a compacted topic refuses (F4).

To find them a batch must be decompressed, and one that fits a frame may hold millions of records. A
small batch is checked at once. A larger one is decompressed in a thread and looked through in time
slices; one above the limits is refused.
"""

from fencelog.broker.context import Broker
from fencelog.broker.partitions.partition import Partition
from fencelog.errors import ErrorCode, LimitError, WireError
from fencelog.wire.batch import BatchHeader
from fencelog.wire.filtering import plain_records, walk
from fencelog.wire.hot import PartitionResult

RECORD_ERRORS_MAX = 100
"""Records named in one response."""
RECORDS_AT_ONCE, BYTES_AT_ONCE = 5_000, 2 * 1024 * 1024
"""Checked without yielding to the loop."""
RECORDS_MAX, BYTES_MAX = 250_000, 32 * 1024 * 1024
"""Limits of one batch, decompressed: about thirty times what clients send."""


class _Seen:
    """The keyless records of a batch, of which the first are named."""

    def __init__(self) -> None:
        self.named: list[int] = []
        self.count = 0

    def add(self, position: int) -> None:
        self.count += 1
        if self.count <= RECORD_ERRORS_MAX:
            self.named.append(position)


def find_keyless(
    partition: Partition, header: BatchHeader, batch: memoryview
) -> PartitionResult | None:
    """Return why a batch is refused, None if it is not.

    Raises LimitError for a batch that only ``find_keyless_in_slices`` may check.
    """
    if header.size > partition.log.config.max_message_bytes:
        return None  # refused later for its size, without decompressing it
    if header.record_count > RECORDS_AT_ONCE:
        raise LimitError(f"{header.record_count} records")
    seen = _Seen()
    try:
        plain = plain_records(header, batch, BYTES_AT_ONCE)
        for position, record in enumerate(walk(header, plain)):
            if record.key is None:
                seen.add(position)
    except LimitError:
        raise
    except WireError as error:
        return _malformed(partition, error)
    return _result(partition, header, seen)


async def find_keyless_in_slices(
    broker: Broker, partition: Partition, header: BatchHeader, batch: memoryview
) -> PartitionResult | None:
    """Return why a large batch is refused, None if it is not."""
    index = partition.name.partition
    limit = max(BYTES_MAX, partition.log.config.max_message_bytes)
    if header.record_count > RECORDS_MAX:
        text = f"the batch has {header.record_count} records, the limit is {RECORDS_MAX}"
        return PartitionResult(index, ErrorCode.MESSAGE_TOO_LARGE, error_message=text)
    seen = _Seen()
    try:
        async with broker.decompression.records(header, batch, limit) as plain:
            await broker.time_slices.next()
            async for position, record in broker.time_slices.each(enumerate(walk(header, plain))):
                if record.key is None:
                    seen.add(position)
    except LimitError as error:
        return PartitionResult(index, ErrorCode.MESSAGE_TOO_LARGE, error_message=str(error))
    except WireError as error:
        return _malformed(partition, error)
    return _result(partition, header, seen)


def _malformed(partition: Partition, error: WireError) -> PartitionResult:
    index = partition.name.partition
    return PartitionResult(index, ErrorCode.INVALID_RECORD, error_message=str(error))


def _result(partition: Partition, header: BatchHeader, seen: _Seen) -> PartitionResult | None:
    if not seen.count:
        return None
    topic, index = partition.name
    reason = f"topic {topic} is compacted: every record needs a key"
    return PartitionResult(
        index,
        ErrorCode.INVALID_RECORD,
        error_message=f"{reason}, and {seen.count} of {header.record_count} have none",
        record_errors=tuple((position, reason) for position in seen.named),
    )
