"""Record batches to Arrow: the columns of Spark's Kafka connector, no Python object per record.

Buffers are allocated from what the batches' own headers and sizes allow at most, filled by the
kernel, and handed to Arrow without a copy.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fencelog.client import kernel
from fencelog.client.batches import VisibleBatch, payload
from fencelog.errors import WireError
from fencelog.types import TopicPartition
from fencelog.wire.batch import TimestampType
from fencelog.wire.records import RECORD_BYTES_MIN

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Part = tuple[Bytes, list[tuple[int, ...]]]
"""A buffer and the table of the batches in it (see the kernel's SEG columns)."""

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
    """Return the Arrow schema of these columns; ValueError for an unknown column."""
    unknown = columns - {field.name for field in FIELDS}
    if unknown:
        raise ValueError(f"unknown columns: {', '.join(sorted(unknown))}")
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

    Raises WireError, with partition and offset, if a batch is malformed.
    """
    schema = schema_of(columns)
    parts: list[Part] = []
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
    """Buffers for a binary column: offsets, data and a null flag per row."""

    def __init__(self, rows: int, size: int) -> None:
        self.offsets = np.zeros(rows + 1, np.int32)
        self.data = np.empty(size, np.uint8)
        self.null = np.empty(rows, np.uint8)

    def array(self, rows: int, size: int, *, nulls: bool) -> pa.Array:
        """Wrap the first rows and bytes."""
        validity = None
        if nulls:
            validity = pa.py_buffer(np.packbits(self.null[:rows] == 0, bitorder="little"))
        offsets = pa.py_buffer(self.offsets[: rows + 1])
        data = pa.py_buffer(self.data[:size])
        return pa.Array.from_buffers(pa.binary(), rows, [validity, offsets, data])


class _Room:
    """Buffers for the requested columns."""

    def __init__(self, schema: pa.Schema, rows: int, size: int, headers: int) -> None:
        names = frozenset(schema.names)
        self._schema = schema
        self._wants = ("key" in names, "value" in names, "headers" in names)
        self._offsets = np.empty(rows, np.int64)
        self._times = np.empty(rows, np.int64)
        self._kinds = np.empty(rows, np.int32)
        self._key = _Column(*((rows, size) if self._wants[0] else (0, 0)))
        self._value = _Column(*((rows, size) if self._wants[1] else (0, 0)))
        self._row_headers = np.zeros(rows + 1 if self._wants[2] else 1, np.int32)
        self._header_key = _Column(headers, size if self._wants[2] else 0)
        self._header_value = _Column(headers, size if self._wants[2] else 0)
        self._cursors = np.zeros(kernel.CURSORS, np.int64)

    def fill(self, data: Bytes, segments: Int64s, first: int, last: int) -> int:
        """Append the records of these batches; returns the kernel's code."""
        key, value, header_key, header_value = (
            self._key,
            self._value,
            self._header_key,
            self._header_value,
        )
        code: int = kernel.decode(
            data, segments, first, last, *self._wants, self._offsets, self._times, self._kinds,
            key.offsets, key.data, key.null, value.offsets, value.data, value.null,
            self._row_headers, header_key.offsets, header_key.data,
            header_value.offsets, header_value.data, header_value.null, self._cursors,
        )  # fmt: skip
        return code

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._cursor(kernel.ROWS)

    @property
    def error_at(self) -> int:
        """The position in the data at which the kernel stopped."""
        return self._cursor(kernel.ERROR_AT)

    def batch(self, partition: TopicPartition) -> pa.RecordBatch:
        """Wrap what was filled. Raises WireError if a header key is not UTF-8."""
        rows, nulls = self.rows, self._cursor(kernel.NULLS)
        makers: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: self._key.array(
                rows, self._cursor(kernel.KEY_BYTES), nulls=bool(nulls & 1)
            ),
            "value": lambda: self._value.array(
                rows, self._cursor(kernel.VALUE_BYTES), nulls=bool(nulls & 2)
            ),
            "topic": lambda: pa.repeat(pa.scalar(partition.topic, pa.string()), rows),
            "partition": lambda: pa.array(np.full(rows, partition.partition, np.int32)),
            "offset": lambda: pa.array(self._offsets[:rows]),
            "timestamp": lambda: pa.Array.from_buffers(
                self._schema.field("timestamp").type,
                rows,
                [None, pa.py_buffer(self._times[:rows])],
            ),
            "timestampType": lambda: pa.array(self._kinds[:rows]),
            "headers": lambda: self._headers(rows, partition),
        }
        columns = [makers[name]() for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _headers(self, rows: int, partition: TopicPartition) -> pa.Array:
        """Wrap the headers; never null, as in Spark's Kafka connector."""
        count = self._cursor(kernel.HEADERS)
        keys = self._header_key.array(count, self._cursor(kernel.HEADER_KEY_BYTES), nulls=False)
        size = self._cursor(kernel.HEADER_VALUE_BYTES)
        values = self._header_value.array(count, size, nulls=True)
        try:
            texts = keys.cast(pa.string())  # checks that they are UTF-8
        except pa.ArrowInvalid:
            raise WireError(f"a header key in {partition} is not UTF-8") from None
        fields = list(HEADERS_TYPE.value_type)
        entries = pa.StructArray.from_arrays([texts, values], fields=fields)
        ends = self._row_headers[: rows + 1]
        validity = np.packbits(np.diff(ends) > 0, bitorder="little")
        buffers = [pa.py_buffer(validity), pa.py_buffer(ends)]
        return pa.Array.from_buffers(HEADERS_TYPE, rows, buffers, children=[entries])

    def _cursor(self, which: int) -> int:
        return int(self._cursors[which])


def _arrow(
    parts: list[Part],
    size: int,
    partition: TopicPartition,
    schema: pa.Schema,
    first: int,
    last: int,
) -> Iterator[pa.RecordBatch]:
    """Run the kernel over the parts; yield nothing if no row is in range."""
    tables = [(data, np.array(segments, np.int64)) for data, segments in parts]
    rows = sum(int(table[:, kernel.SEG_COUNT].sum()) for _, table in tables)
    headers = 0
    if "headers" in schema.names:
        headers = sum(kernel.count_headers(data, table) for data, table in tables)
    room = _Room(schema, rows, size, headers)
    for data, table in tables:
        code = room.fill(data, table, first, last)
        if code != kernel.OK:
            found = table[table[:, kernel.SEG_START] <= room.error_at]
            base = int((found if len(found) else table)[-1, kernel.SEG_BASE_OFFSET])
            raise _malformed(partition, base, _COMPLAINTS[code])
    if room.rows:
        yield room.batch(partition)
