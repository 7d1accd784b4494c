"""The compiled loops between record batches v2 and Arrow columns; no Python object per record.

Every length read from a batch is checked against the bytes that remain before it is used, every
write against the space that is left: a malformed batch gives an error code and no access outside a
buffer. Machine code is cached on disk; if that is impossible, each process compiles it.
"""

# ruff: noqa: ANN401, C901, PLR0911, PLR0912, PLR0913, PLR0915, PLR0917 - numba types the arguments
# by signature, and a call per record would cost more than the loop body.

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from fencelog.client.kernel_cache import private_folder

BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
BYTES = types.uint8[::1]
INT32_IN = types.Array(types.int32, 1, "C", readonly=True)
INT32 = types.int32[::1]
INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
INT64 = types.int64[::1]
TABLE = types.int64[:, ::1]
I64 = types.int64

# Error codes; fencelog.client.arrow has their texts.
OK = 0
TRUNCATED = 1
BAD_LENGTH = 2
BAD_OFFSET = 3
TRAILING = 4
TOO_MANY = 5

# Columns of a row of the segment table that `decode` reads.
SEG_START, SEG_END, SEG_BASE_OFFSET, SEG_TIMESTAMP, SEG_LOG_TIME, SEG_COUNT, SEG_LAST_DELTA = range(
    7
)
SEG_COLUMNS = 7

# Cursors of `decode`, carried over calls.
ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, NULLS, ERROR_AT = (
    range(8)
)
CURSORS = 8

# Columns of a row of the batch table that `encode` writes.
OUT_GROUP, OUT_START, OUT_END, OUT_COUNT, OUT_BASE_TIMESTAMP, OUT_MAX_TIMESTAMP = range(6)
OUT_COLUMNS = 6

BATCH_HEADER_BYTES = 61
RECORD_OVERHEAD_MAX = 36
"""Length 5, attributes 1, timestamp 10, offset 5, key length 5, value length 5, header count 5."""
HEADER_OVERHEAD_MAX = 10
TIMESTAMP_MS_MAX = 9_223_372_036_854_775
"""The last millisecond that fits into 64 bits in microseconds."""


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile now, for one signature.

    The machine code is cached beside the package, else in a private folder, else nowhere.
    """

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        for attempt in ("package", "private"):
            if attempt == "private":
                folder = private_folder()
                if folder is None:
                    break
                numba.config.CACHE_DIR = str(folder)
            try:
                made: Callable[..., Any] = numba.njit(
                    signature, cache=True, nogil=True, error_model="numpy"
                )(function)
            except (RuntimeError, OSError):  # "no locator available": nothing is writable here
                continue
            return made
        plain: Callable[..., Any] = numba.njit(signature, nogil=True, error_model="numpy")(function)
        return plain

    return compile_it


@intrinsic  # type: ignore[untyped-decorator]
def address(typing_context: Any, array: Any) -> Any:
    """Return the address of an array's data; helpers that use it change no reference count."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(made.data, context.get_value_type(I64))

    return I64(array), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_byte(typing_context: Any, at: Any) -> Any:
    """Read a byte at an address that the caller has checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return I64(I64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_int32(typing_context: Any, at: Any) -> Any:
    """Read an int32 at an address that the caller has checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.sext(builder.load(pointer, align=1), ir.IntType(64))

    return I64(I64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_byte(typing_context: Any, at: Any, value: Any) -> Any:
    """Write the lowest byte of a number to an address that the caller has checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        builder.store(builder.trunc(arguments[1], ir.IntType(8)), pointer)
        return context.get_dummy_value()

    return types.void(I64, I64), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(typing_context: Any, to: Any, source: Any, size: Any) -> Any:
    """Call memcpy; the caller has checked both ranges."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target = builder.inttoptr(arguments[0], byte)
        origin = builder.inttoptr(arguments[1], byte)
        cgutils.raw_memcpy(builder, target, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(I64, I64, I64), generate


@numba.njit(inline="never", error_model="numpy")  # type: ignore[untyped-decorator]
def _varint_slow(data: Any, at: int, end: int) -> Any:
    raw = numba.uint64(0)
    shift = numba.uint64(0)
    while at < end and shift < 64:
        byte = numba.uint64(data[at])
        at += 1
        raw |= (byte & numba.uint64(0x7F)) << shift
        if byte < 0x80:
            return numba.int64(raw >> numba.uint64(1)) ^ -numba.int64(raw & numba.uint64(1)), at
        shift += numba.uint64(7)
    return 0, -1


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _varint(data: Any, at: int, end: int) -> Any:
    """Zigzag varint and its end position; -1 if it exceeds ``end`` or ten bytes."""
    if at >= end:
        return 0, -1
    byte = numba.int64(data[at])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _varint_slow(data, at, end)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _headers(
    data: Any,
    at: int,
    end: int,
    keep: bool,
    key_offsets: Any,
    key_data: Any,
    value_offsets: Any,
    value_data: Any,
    value_null: Any,
    cursors: Any,
) -> Any:
    """Parse a record's headers and optionally store them; return error code and end position."""
    count, at = _varint(data, at, end)
    if at < 0:
        return TRUNCATED, at
    if count < 0 or count > (end - at) // 2:
        return BAD_LENGTH, at
    index = cursors[HEADERS]
    key_to = cursors[HEADER_KEY_BYTES]
    value_to = cursors[HEADER_VALUE_BYTES]
    data_at = address(data)
    keys_at = address(key_data)
    values_at = address(value_data)
    if keep and (index + count > value_null.size):
        return TOO_MANY, at
    for _ in range(count):
        size, at = _varint(data, at, end)
        if at < 0:
            return TRUNCATED, at
        if size < 0 or size > end - at:
            return BAD_LENGTH, at
        if keep:
            copy_bytes(keys_at + key_to, data_at + at, size)
            key_to += size
            key_offsets[index + 1] = key_to
        at += size
        size, at = _varint(data, at, end)
        if at < 0:
            return TRUNCATED, at
        if size < -1 or size > end - at:
            return BAD_LENGTH, at
        if keep:
            value_null[index] = size < 0
        if size > 0:
            if keep:
                copy_bytes(values_at + value_to, data_at + at, size)
                value_to += size
            at += size
        if keep:
            value_offsets[index + 1] = value_to
        index += 1
    if keep:
        cursors[HEADERS] = index
        cursors[HEADER_KEY_BYTES] = key_to
        cursors[HEADER_VALUE_BYTES] = value_to
    return OK, at


@compiled(I64(BYTES_IN, TABLE))
def count_headers(data: Any, segments: Any) -> Any:
    """Return an upper bound of the number of headers in these batches."""
    total = 0
    for s in range(segments.shape[0]):
        at = segments[s, SEG_START]
        stop = segments[s, SEG_END]
        if at < 0 or stop > data.size:
            return total
        for _ in range(segments[s, SEG_COUNT]):
            length, at = _varint(data, at, stop)
            if at < 0 or length < 0 or length > stop - at:
                return total
            end = at + length
            at += 1
            _, at = _varint(data, at, end)
            if at >= 0:
                _, at = _varint(data, at, end)
            for _field in range(2):
                if at < 0:
                    return total
                size, at = _varint(data, at, end)
                if at < 0 or size > end - at:
                    return total
                at += max(size, 0)
            count, at = _varint(data, at, end)
            if at < 0 or count < 0 or count > (end - at) // 2:
                return total
            total += count
            at = end
    return total


@compiled(
    I64(
        BYTES_IN, TABLE, I64, I64, types.boolean, types.boolean, types.boolean,
        INT64, INT64, INT32, INT32, BYTES, BYTES, INT32, BYTES, BYTES,
        INT32, INT32, BYTES, INT32, BYTES, BYTES, INT64,
    )
)  # fmt: skip
def decode(
    data: Any,
    segments: Any,
    first: int,
    last: int,
    want_key: bool,
    want_value: bool,
    want_headers: bool,
    offsets: Any,
    timestamps: Any,
    timestamp_types: Any,
    key_offsets: Any,
    key_data: Any,
    key_null: Any,
    value_offsets: Any,
    value_data: Any,
    value_null: Any,
    row_headers: Any,
    header_key_offsets: Any,
    header_key_data: Any,
    header_value_offsets: Any,
    header_value_data: Any,
    header_value_null: Any,
    cursors: Any,
) -> Any:
    """Append the records of these batches with first ≤ offset < last; returns an error code."""
    data_at = address(data)
    keys_at = address(key_data)
    values_at = address(value_data)
    row = cursors[ROWS]
    key_to = cursors[KEY_BYTES]
    value_to = cursors[VALUE_BYTES]
    nulls = cursors[NULLS]
    for s in range(segments.shape[0]):
        at = segments[s, SEG_START]
        stop = segments[s, SEG_END]
        base = segments[s, SEG_BASE_OFFSET]
        base_time = segments[s, SEG_TIMESTAMP]
        log_time = segments[s, SEG_LOG_TIME]
        last_delta = segments[s, SEG_LAST_DELTA]
        count = segments[s, SEG_COUNT]
        previous = -1
        room = stop - at
        if at < 0 or room < 0 or stop > data.size or row + count > offsets.size:
            return TOO_MANY
        if want_key and key_to + room > key_data.size:
            return TOO_MANY
        if want_value and value_to + room > value_data.size:
            return TOO_MANY
        if want_headers and cursors[HEADER_KEY_BYTES] + room > header_key_data.size:
            return TOO_MANY
        if want_headers and cursors[HEADER_VALUE_BYTES] + room > header_value_data.size:
            return TOO_MANY
        for _ in range(count):
            cursors[ERROR_AT] = at
            length, at = _varint(data, at, stop)
            if at < 0:
                return TRUNCATED
            if length < 6 or length > stop - at:
                return BAD_LENGTH
            end = at + length
            time, at = _varint(data, at + 1, end)
            if at < 0:
                return TRUNCATED
            delta, at = _varint(data, at, end)
            if at < 0:
                return TRUNCATED
            if delta <= previous or delta > last_delta:
                return BAD_OFFSET
            previous = delta
            keep = first <= base + delta < last
            size, at = _varint(data, at, end)
            if at < 0:
                return TRUNCATED
            if size < -1 or size > end - at:
                return BAD_LENGTH
            if want_key and keep:
                if size > 0:
                    copy_bytes(keys_at + key_to, data_at + at, size)
                    key_to += size
                key_null[row] = size < 0
                nulls |= numba.int64(size < 0)
                key_offsets[row + 1] = key_to
            at += max(size, 0)
            size, at = _varint(data, at, end)
            if at < 0:
                return TRUNCATED
            if size < -1 or size > end - at:
                return BAD_LENGTH
            if want_value and keep:
                if size > 0:
                    copy_bytes(values_at + value_to, data_at + at, size)
                    value_to += size
                value_null[row] = size < 0
                nulls |= numba.int64(size < 0) << 1
                value_offsets[row + 1] = value_to
            at += max(size, 0)
            if at + 1 == end and data[at] == 0:
                at = end
            else:
                error, at = _headers(
                    data, at, end, want_headers and keep, header_key_offsets, header_key_data,
                    header_value_offsets, header_value_data, header_value_null, cursors,
                )  # fmt: skip
                if error != OK:
                    return error
                if at != end:
                    return TRAILING
            if keep:
                if want_headers:
                    row_headers[row + 1] = cursors[HEADERS]
                offsets[row] = base + delta
                milliseconds = base_time + time if log_time < 0 else log_time
                milliseconds = min(max(milliseconds, -TIMESTAMP_MS_MAX), TIMESTAMP_MS_MAX)
                timestamps[row] = milliseconds * 1000
                timestamp_types[row] = log_time >= 0
                row += 1
        if at != stop:
            cursors[ERROR_AT] = at
            return TRAILING
    cursors[ROWS] = row
    cursors[KEY_BYTES] = key_to
    cursors[VALUE_BYTES] = value_to
    cursors[NULLS] = nulls
    return OK
