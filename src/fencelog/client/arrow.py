"""Record batches to Arrow: the columns of Spark's Kafka connector, without a Python object a record.

Buffers are allocated from what the batches' own headers and sizes allow at most, filled by the
kernel, and handed to Arrow without a copy.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fencelog.client import kernel
from fencelog.client.batches import RECORD_BYTES_MIN, VisibleBatch, payload
from fencelog.errors import WireError
from fencelog.types import TopicPartition
from fencelog.wire.batch import TimestampType

Bytes = npt.NDArray[np.uint8]

ARROW_BYTES_MAX = 64 << 20
"""Encoded bytes that go into one Arrow batch, unless a single record batch has more."""

HEADERS_TYPE = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
FIELDS = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("headers", HEADERS_TYPE),
)
"""All columns, in the order in which they appear."""

_COMPLAINTS = {
    kernel.TRUNCATED: "a number runs past the end of its record",
    kernel.BAD_LENGTH: "a length does not fit into what contains it",
    kernel.BAD_OFFSET: "offsets do not ascend within the batch",
    kernel.TRAILING: "bytes are left over behind a record",
    kernel.TOO_MANY: "more is in the batch than its header allows",
}


def schema_of(columns: frozenset[str]) -> pa.Schema:
    """Return the Arrow schema of these columns; ValueError names one that does not exist."""
    unknown = columns - {field.name for field in FIELDS}
    if unknown:
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    return pa.schema([field for field in FIELDS if field.name in columns])


def decode(
    records: memoryview,
    batches: Sequence[VisibleBatch],
    partition: TopicPartition,
    *,
    columns: frozenset[str],
    start: int,
    end: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the records with start ≤ offset < end; never an empty Arrow batch.

    Raises WireError naming partition and offset where a batch is malformed.
    """
    schema = schema_of(columns)
    parts: list[tuple[Bytes, list[tuple[int, ...]]]] = []
    plain: list[tuple[int, ...]] | None = None
    size = 0
    for batch in batches:
        if batch.header.base_offset >= end or batch.header.last_offset < start:
            continue
        if size >= ARROW_BYTES_MAX:
            yield from _arrow(parts, size, partition, schema, start, end)
            parts, plain, size = [], None, 0
        if batch.header.compression:
            try:
                body = payload(records, batch)
            except WireError as error:
                raise _malformed(partition, batch.header.base_offset, str(error)) from error
            parts.append(
                (np.frombuffer(body, np.uint8), [_segment(batch, 0, len(body), partition)])
            )
            plain = None
            size += len(body)
        else:
            if plain is None:
                plain = []
                parts.append((np.frombuffer(records, np.uint8), plain))
            plain.append(_segment(batch, batch.start, batch.end, partition))
            size += batch.end - batch.start
    if parts:
        yield from _arrow(parts, size, partition, schema, start, end)


def _segment(
    batch: VisibleBatch, start: int, end: int, partition: TopicPartition
) -> tuple[int, ...]:
    header = batch.header
    if header.record_count * RECORD_BYTES_MIN > end - start:
        raise _malformed(partition, header.base_offset, _COMPLAINTS[kernel.TOO_MANY])
    log_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return (
        start,
        end,
        header.base_offset,
        header.base_timestamp,
        max(header.max_timestamp, 0) if log_time else -1,
        header.record_count,
        header.last_offset_delta,
    )


def _malformed(partition: TopicPartition, offset: int, what: str) -> WireError:
    return WireError(f"malformed record batch in {partition} at offset {offset}: {what}")


class _Column:
    """Room for a binary column: offsets, data and a byte per row that says null."""

    def __init__(self, rows: int, size: int) -> None:
        self.offsets = np.zeros(rows + 1, np.int32) if rows else np.zeros(1, np.int32)
        self.data = np.empty(size, np.uint8)
        self.null = np.empty(rows, np.uint8)

    def array(self, rows: int, size: int, kind: pa.DataType, *, nulls: bool) -> pa.Array:
        validity = None
        if nulls:
            validity = pa.py_buffer(np.packbits(self.null[:rows] == 0, bitorder="little"))
        offsets = pa.py_buffer(self.offsets[: rows + 1])
        return pa.Array.from_buffers(
            kind, rows, [validity, offsets, pa.py_buffer(self.data[:size])]
        )


def _arrow(
    parts: list[tuple[Bytes, list[tuple[int, ...]]]],
    size: int,
    partition: TopicPartition,
    schema: pa.Schema,
    first: int,
    last: int,
) -> Iterator[pa.RecordBatch]:
    """Run the kernel over the parts and wrap what it filled; nothing where no row was in range."""
    names = frozenset(schema.names)
    tables = [(data, np.array(segments, np.int64)) for data, segments in parts]
    rows = sum(int(table[:, kernel.SEG_COUNT].sum()) for _, table in tables)
    want_headers = "headers" in names
    headers = (
        sum(kernel.count_headers(data, table) for data, table in tables) if want_headers else 0
    )
    offsets, times, kinds = (
        np.empty(rows, np.int64),
        np.empty(rows, np.int64),
        np.empty(rows, np.int32),
    )
    key = _Column(*((rows, size) if "key" in names else (0, 0)))
    value = _Column(*((rows, size) if "value" in names else (0, 0)))
    row_headers = np.zeros(rows + 1 if want_headers else 1, np.int32)
    header_key = _Column(headers, size if want_headers else 0)
    header_value = _Column(headers, size if want_headers else 0)
    cursors = np.zeros(kernel.CURSORS, np.int64)
    for data, table in tables:
        error = kernel.decode(
            data, table, first, last, "key" in names, "value" in names, want_headers,
            offsets, times, kinds, key.offsets, key.data, key.null,
            value.offsets, value.data, value.null, row_headers, header_key.offsets,
            header_key.data, header_value.offsets, header_value.data, header_value.null, cursors,
        )  # fmt: skip
        if error != kernel.OK:
            at = int(cursors[kernel.ERROR_AT])
            found = table[table[:, kernel.SEG_START] <= at]
            base = int((found if len(found) else table)[-1, kernel.SEG_BASE_OFFSET])
            raise _malformed(partition, base, _COMPLAINTS[error])
    rows, nulls = int(cursors[kernel.ROWS]), int(cursors[kernel.NULLS])
    if not rows:
        return

    def column(name: str) -> Any:
        match name:
            case "key":
                return key.array(
                    rows, int(cursors[kernel.KEY_BYTES]), pa.binary(), nulls=bool(nulls & 1)
                )
            case "value":
                return value.array(
                    rows, int(cursors[kernel.VALUE_BYTES]), pa.binary(), nulls=bool(nulls & 2)
                )
            case "topic":
                return pa.repeat(pa.scalar(partition.topic, pa.string()), rows)
            case "partition":
                return pa.array(np.full(rows, partition.partition, np.int32))
            case "offset":
                return pa.array(offsets[:rows])
            case "timestamp":
                return pa.Array.from_buffers(
                    schema.field("timestamp").type, rows, [None, pa.py_buffer(times[:rows])]
                )
            case "timestampType":
                return pa.array(kinds[:rows])
            case _:
                return _headers_array(row_headers, header_key, header_value, cursors, partition)

    yield pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)


def _headers_array(
    row_headers: npt.NDArray[np.int32],
    key: _Column,
    value: _Column,
    cursors: npt.NDArray[np.int64],
    partition: TopicPartition,
) -> pa.Array:
    rows, count = int(cursors[kernel.ROWS]), int(cursors[kernel.HEADERS])
    keys = key.array(count, int(cursors[kernel.HEADER_KEY_BYTES]), pa.binary(), nulls=False)
    values = value.array(count, int(cursors[kernel.HEADER_VALUE_BYTES]), pa.binary(), nulls=True)
    try:
        texts = keys.cast(pa.string())  # checks that they are UTF-8
    except pa.ArrowInvalid:
        raise WireError(f"a header key in {partition} is not UTF-8") from None
    entries = pa.StructArray.from_arrays([texts, values], fields=list(HEADERS_TYPE.value_type))
    return pa.Array.from_buffers(
        HEADERS_TYPE, rows, [None, pa.py_buffer(row_headers[: rows + 1])], children=[entries]
    )
