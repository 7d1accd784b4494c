"""The compiled loops from Arrow columns to record batches v2: partition, order, encode.

As in ``fencelog.client.kernel``, every Arrow offset is checked against its data before it is used
and every record against the space that is left.
"""

# ruff: noqa: ANN401, C901, PLR0911, PLR0912, PLR0913, PLR0915, PLR0917 - as in the other kernel.

from typing import Any

import numba
from numba.core import types

from fencelog.client.kernel import (
    BATCH_HEADER_BYTES,
    BYTES,
    BYTES_IN,
    HEADER_OVERHEAD_MAX,
    I64,
    INT32,
    INT32_IN,
    INT64,
    INT64_IN,
    OUT_BASE_TIMESTAMP,
    OUT_COUNT,
    OUT_END,
    OUT_GROUP,
    OUT_MAX_TIMESTAMP,
    OUT_START,
    RECORD_OVERHEAD_MAX,
    TABLE,
    address,
    compiled,
    copy_bytes,
    load_byte,
    load_int32,
    store_byte,
)

BUCKETS = 1 << 10
BUCKET_SHIFT = 31 - 10
"""A hash without its sign bit, shifted so, is the bucket that it is in."""
BAD_ROW = -1
NO_ROOM = -2
"""Negative results of `encode` and `partition`; BAD_ROW: an Arrow offset is outside its data."""


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _field(offsets: int, limit: int, valid: int, row: int) -> tuple[int, int]:
    """Start and length of a row's bytes; -1 for null, -2 for invalid offsets.

    Takes addresses: ``offsets`` 0 stands for an absent column, ``valid`` 0 for one without nulls.
    """
    if offsets == 0 or (valid != 0 and load_byte(valid + row) == 0):
        return 0, -1
    start = load_int32(offsets + 4 * row)
    end = load_int32(offsets + 4 * row + 4)
    if start < 0 or end < start or end > limit:
        return 0, -2
    return start, end - start


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _murmur2(at: int, size: int) -> Any:
    """Kafka's murmur2 (org.apache.kafka.common.utils.Utils) of the bytes at an address."""
    m = numba.uint32(0x5BD1E995)
    h = numba.uint32(numba.uint32(0x9747B28C) ^ numba.uint32(size))
    for _ in range(size >> 2):
        k = numba.uint32(numba.uint32(load_int32(at)) * m)
        k = numba.uint32(k ^ (k >> numba.uint32(24)))
        k = numba.uint32(k * m)
        h = numba.uint32(numba.uint32(h * m) ^ k)
        at += 4
    left = size & 3
    if left == 3:
        h = numba.uint32(h ^ (numba.uint32(load_byte(at + 2)) << numba.uint32(16)))
    if left >= 2:
        h = numba.uint32(h ^ (numba.uint32(load_byte(at + 1)) << numba.uint32(8)))
    if left >= 1:
        h = numba.uint32(h ^ numba.uint32(load_byte(at)))
        h = numba.uint32(h * m)
    h = numba.uint32(h ^ (h >> numba.uint32(13)))
    h = numba.uint32(h * m)
    return numba.int64(numba.uint32(h ^ (h >> numba.uint32(15))))


@compiled(
    I64(
        I64, types.boolean, INT32_IN, BYTES_IN, BYTES_IN, INT32_IN, INT32_IN, INT32_IN,
        INT32_IN, BYTES_IN, INT32_IN, INT32_IN, INT32_IN, INT32, INT32,
    )
)  # fmt: skip
def partition(
    rows: int,
    has_keys: bool,
    key_offsets: Any,
    key_data: Any,
    key_valid: Any,
    topic_of: Any,
    partition_counts: Any,
    group_bases: Any,
    explicit: Any,
    explicit_valid: Any,
    sticky: Any,
    lows: Any,
    firsts: Any,
    hashes: Any,
    groups: Any,
) -> int:
    """Write each row's group: its topic's base plus its partition.

    The partition is the explicit one where valid, else by the key's hash, else the topic's sticky
    one. Empty arrays stand for: one topic (``topic_of``), no partition column (``explicit``), no
    nulls (``…_valid``). Returns rows, or -1 - the row whose topic, partition or key is impossible.

    ``lows``: for each group the first hash of its range, if its topic is a stream, else -1; then
    a row may not name its partition, and its hash, or -1 without a key, goes to ``hashes``.
    ``firsts``: for each topic where the range with the first hash of each of BUCKETS equal parts
    is among its ranges, so that few are compared. All three are empty where no topic is a stream.
    """
    keys = address(key_offsets) if has_keys else 0
    keys_valid = address(key_valid) if key_valid.size else 0
    key_from = address(key_data)
    for row in range(rows):
        topic = topic_of[row] if topic_of.size else 0
        if topic < 0 or topic >= partition_counts.size:
            return -1 - row
        count = partition_counts[topic]
        is_stream = lows.size != 0 and lows[group_bases[topic]] >= 0
        if is_stream:
            hashes[row] = -1
        if explicit.size and (explicit_valid.size == 0 or explicit_valid[row]):
            chosen = numba.int64(explicit[row])
            if is_stream:
                return -1 - row
        elif keys != 0 and (keys_valid == 0 or load_byte(keys_valid + row) != 0):
            start, size = _field(keys, key_data.size, keys_valid, row)
            if size < 0:
                return -1 - row
            key_hash = _murmur2(key_from + start, size) & 0x7FFFFFFF
            if is_stream:
                hashes[row] = key_hash
                base = group_bases[topic]
                chosen = numba.int64(firsts[topic * BUCKETS + (key_hash >> BUCKET_SHIFT)])
                while chosen + 1 < count and lows[base + chosen + 1] <= key_hash:
                    chosen += 1
            else:
                chosen = key_hash % count
        else:
            chosen = numba.int64(sticky[topic])
        if chosen < 0 or chosen >= count:
            return -1 - row
        groups[row] = group_bases[topic] + chosen
    return rows


@compiled(types.void(INT32_IN, INT64, INT32))
def order_by_group(groups: Any, starts: Any, order: Any) -> None:
    """Sort rows by group, stably: ``starts[g]`` to ``starts[g + 1]`` of ``order`` are group g's."""
    for g in range(starts.size):
        starts[g] = 0
    for row in range(groups.size):
        starts[groups[row] + 1] += 1
    for g in range(1, starts.size):
        starts[g] += starts[g - 1]
    for row in range(groups.size):
        group = groups[row]
        order[starts[group]] = row
        starts[group] += 1
    for g in range(starts.size - 1, 0, -1):
        starts[g] = starts[g - 1]
    starts[0] = 0


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _varint_size(value: int) -> int:
    raw = numba.uint64((value << 1) ^ (value >> 63))
    size = 1
    while raw >= numba.uint64(0x80):
        raw >>= numba.uint64(7)
        size += 1
    return size


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _put_varint(to: int, value: int) -> int:
    """Write a zigzag varint to an address; returns the address after it."""
    raw = numba.uint64((value << 1) ^ (value >> 63))
    while raw >= numba.uint64(0x80):
        store_byte(to, numba.int64((raw & numba.uint64(0x7F)) | numba.uint64(0x80)))
        raw >>= numba.uint64(7)
        to += 1
    store_byte(to, numba.int64(raw))
    return to + 1


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _headers_size(
    first: int,
    last: int,
    key_offsets: int,
    key_limit: int,
    value_offsets: int,
    value_limit: int,
    value_valid: int,
) -> int:
    """Bytes of headers after their count; -2 for invalid offsets."""
    total = 0
    for h in range(first, last):
        _, key_size = _field(key_offsets, key_limit, 0, h)
        _, value_size = _field(value_offsets, value_limit, value_valid, h)
        if key_size < 0 or value_size < -1:
            return -2
        total += _varint_size(key_size) + key_size + _varint_size(value_size) + max(value_size, 0)
    return total


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _put_field(to: int, source: int, size: int) -> int:
    to = _put_varint(to, size)
    if size > 0:
        copy_bytes(to, source, size)
        to += size
    return to


@compiled(
    I64(
        INT32_IN, INT64_IN, types.boolean, INT32_IN, BYTES_IN, BYTES_IN, types.boolean, INT32_IN,
        BYTES_IN, BYTES_IN, INT64_IN, I64, INT32_IN, INT32_IN, BYTES_IN, INT32_IN, BYTES_IN,
        BYTES_IN, I64, BYTES, TABLE,
    )
)  # fmt: skip
def encode(
    order: Any,
    starts: Any,
    has_keys: bool,
    key_offsets: Any,
    key_data: Any,
    key_valid: Any,
    has_values: bool,
    value_offsets: Any,
    value_data: Any,
    value_valid: Any,
    timestamps: Any,
    now_ms: int,
    row_headers: Any,
    header_key_offsets: Any,
    header_key_data: Any,
    header_value_offsets: Any,
    header_value_data: Any,
    header_value_valid: Any,
    batch_bytes: int,
    out: Any,
    table: Any,
) -> int:
    """Write batches group by group; each begins with 61 bytes reserved for its header.

    A batch is closed when the next record could take it past ``batch_bytes``. ``order`` empty
    stands for rows as they are. Returns the number of batches in ``table``, or a negative code.
    """
    rows = starts[starts.size - 1]
    if (has_keys and key_offsets.size <= rows) or (has_values and value_offsets.size <= rows):
        return BAD_ROW
    if (timestamps.size and timestamps.size < rows) or (order.size and order.size < rows):
        return BAD_ROW
    if row_headers.size and row_headers.size <= rows:
        return BAD_ROW
    out_at = address(out)
    key_from = address(key_data)
    value_from = address(value_data)
    header_key_from = address(header_key_data)
    header_value_from = address(header_value_data)
    keys = address(key_offsets) if has_keys else 0
    keys_valid = address(key_valid) if key_valid.size else 0
    values = address(value_offsets) if has_values else 0
    values_valid = address(value_valid) if value_valid.size else 0
    header_keys = address(header_key_offsets)
    header_values = address(header_value_offsets)
    header_values_valid = address(header_value_valid) if header_value_valid.size else 0
    headers_limit = min(header_key_offsets.size, header_value_offsets.size) - 1
    if header_value_valid.size:
        headers_limit = min(headers_limit, header_value_valid.size)
    at = 0
    batch = 0
    for group in range(starts.size - 1):
        count = 0
        batch_start = at
        base_time = max_time = numba.int64(0)
        for index in range(starts[group], starts[group + 1]):
            row = numba.int64(order[index]) if order.size else index
            key_at, key_size = _field(keys, key_data.size, keys_valid, row)
            value_at, value_size = _field(values, value_data.size, values_valid, row)
            if key_size < -1 or value_size < -1:
                return BAD_ROW
            first = last = headers_size = numba.int64(0)
            if row_headers.size:
                first = numba.int64(row_headers[row])
                last = numba.int64(row_headers[row + 1])
                if first < 0 or last < first or last > headers_limit:
                    return BAD_ROW
                headers_size = _headers_size(
                    first, last, header_keys, header_key_data.size, header_values,
                    header_value_data.size, header_values_valid,
                )  # fmt: skip
                if headers_size < 0:
                    return BAD_ROW
            time = timestamps[row] if timestamps.size else now_ms
            most = RECORD_OVERHEAD_MAX + max(key_size, 0) + max(value_size, 0) + headers_size
            if count and at + most - batch_start > batch_bytes:
                table[batch, OUT_END] = at
                table[batch, OUT_COUNT] = count
                table[batch, OUT_MAX_TIMESTAMP] = max_time
                batch += 1
                count = 0
            if count == 0:
                if batch >= table.shape[0] or out.size - at < BATCH_HEADER_BYTES:
                    return NO_ROOM
                batch_start = at
                table[batch, OUT_GROUP] = group
                table[batch, OUT_START] = at
                table[batch, OUT_BASE_TIMESTAMP] = time
                base_time = max_time = time
                at += BATCH_HEADER_BYTES
            if out.size - at < most:
                return NO_ROOM
            delta = time - base_time
            length = (
                1 + _varint_size(delta) + _varint_size(count) + _varint_size(key_size)
                + max(key_size, 0) + _varint_size(value_size) + max(value_size, 0)
                + _varint_size(last - first) + headers_size
            )  # fmt: skip
            to = _put_varint(out_at + at, length)
            store_byte(to, 0)
            to = _put_varint(to + 1, delta)
            to = _put_varint(to, count)
            to = _put_field(to, key_from + key_at, key_size)
            to = _put_field(to, value_from + value_at, value_size)
            to = _put_varint(to, last - first)
            for h in range(first, last):
                start, size = _field(header_keys, header_key_data.size, 0, h)
                to = _put_field(to, header_key_from + start, size)
                start, size = _field(header_values, header_value_data.size, header_values_valid, h)
                to = _put_field(to, header_value_from + start, size)
            at = to - out_at
            max_time = max(max_time, time)
            count += 1
        if count:
            table[batch, OUT_END] = at
            table[batch, OUT_COUNT] = count
            table[batch, OUT_MAX_TIMESTAMP] = max_time
            batch += 1
    return batch


def room(
    data_bytes: int, rows: int, headers: int, groups: int, batch_bytes: int
) -> tuple[int, int]:
    """Bytes and batches that `encode` may need at most.

    Two neighbouring batches of a group exceed ``batch_bytes`` together with a record's overhead,
    so their number is bounded by twice the records' bytes.
    """
    records = data_bytes + rows * RECORD_OVERHEAD_MAX + headers * HEADER_OVERHEAD_MAX
    batches = min(rows, groups + 1 + 2 * (records + rows * BATCH_HEADER_BYTES) // batch_bytes)
    return records + batches * BATCH_HEADER_BYTES, batches
