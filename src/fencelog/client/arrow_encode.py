"""Arrow to record batches: checks the columns, assigns partitions, encodes, compresses.

This module knows no producer ids or sequences: the sender writes a batch's header when it is
sent.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fencelog.client import kernel, kernel_encode
from fencelog.client.batches import EncodedBatch, with_room
from fencelog.client.model import Compression
from fencelog.client.records_buffer import TIMESTAMP_MS_MIN
from fencelog.client.streams.known import ExplicitPartitionError, Places
from fencelog.client.streams.ranges import NO_KEYS, Ranges
from fencelog.types import TopicPartition
from fencelog.wire.batch import HEADER_BYTES
from fencelog.wire.batch import Compression as Codec
from fencelog.wire.compression import compress

ENCODE_BYTES_MAX = 512 << 20
"""A larger Arrow batch is halved, so that every column fits 32-bit offsets."""

HASHES_MAX = 256
"""Of a larger batch the median of this many hashes is taken, of rows at equal distances."""

COLUMNS = frozenset(("key", "value", "topic", "partition", "headers", "timestamp"))
_NO_BYTES = np.empty(0, np.uint8)
_NO_INT32 = np.empty(0, np.int32)
_NO_INT64 = np.empty(0, np.int64)
_BUCKETS = np.arange(kernel_encode.BUCKETS, dtype=np.int64) << kernel_encode.BUCKET_SHIFT
"""The first hash of each."""
Int32 = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Binary:
    """An Arrow binary column for the kernel; an empty ``valid`` means no nulls."""

    present: bool
    offsets: Int32
    data: Bytes
    valid: Bytes

    @property
    def size(self) -> int:
        return int(self.offsets[-1] - self.offsets[0]) if self.present else 0


_ABSENT = _Binary(False, _NO_INT32, _NO_BYTES, _NO_BYTES)


@dataclass(frozen=True)
class _Plan:
    """Where rows may go. A topic's places, its partitions or ranges, are consecutive groups."""

    topics: list[str]
    places: list[Places]

    @cached_property
    def sizes(self) -> Int32:
        """How many places each topic has."""
        counts = [each if isinstance(each, int) else len(each.covering) for each in self.places]
        return np.array(counts, np.int32)

    @cached_property
    def bases(self) -> Int32:
        """The first group of each topic, and the number of all groups."""
        bases = np.zeros(len(self.topics) + 1, np.int32)
        np.cumsum(self.sizes, out=bases[1:])
        return bases

    @cached_property
    def lows(self) -> Int32:
        """The first hash of each group of a stream, -1 of others; empty without a stream."""
        if not any(isinstance(each, Ranges) for each in self.places):
            return _NO_INT32
        lows = np.full(int(self.bases[-1]), -1, np.int32)
        for base, each in zip(self.bases, self.places, strict=False):
            if isinstance(each, Ranges):
                lows[base : base + len(each.lows)] = each.lows
        return lows

    @cached_property
    def firsts(self) -> Int32:
        """For each topic, of a stream, the range with the first hash of each bucket."""
        if not self.lows.size:
            return _NO_INT32
        firsts = np.zeros((len(self.places), kernel_encode.BUCKETS), np.int32)
        for row, each in zip(firsts, self.places, strict=True):
            if isinstance(each, Ranges):
                row[:] = np.searchsorted(each.lows, _BUCKETS, side="right") - 1
        return firsts.ravel()

    def at(self, group: int) -> tuple[TopicPartition, Ranges | None]:
        """Return a group's partition, and the ranges of its stream."""
        topic = int(np.searchsorted(self.bases, group, side="right")) - 1
        places, place = self.places[topic], group - int(self.bases[topic])
        if isinstance(places, int):
            return TopicPartition(self.topics[topic], place), None
        return TopicPartition(self.topics[topic], places.covering[place].segment), places


class Encoder:
    """Encodes Arrow batches for the topics that they name."""

    def __init__(
        self, *, topic: str | None, batch_bytes: int, compression: Compression = "none"
    ) -> None:
        """``topic`` overrides a topic column, as in Spark's Kafka connector."""
        if batch_bytes < 1:
            raise ValueError(f"batch_bytes is {batch_bytes}: expected at least 1")
        self._topic = topic
        self._batch_bytes = batch_bytes
        self._codec = Codec[compression.upper()]
        # Different starts, so that not all tasks write keyless rows to the same partition.
        self._turn = os.getpid()

    def check(self, schema: pa.Schema) -> None:
        """Raise ValueError if the columns cannot be written."""
        names = set(schema.names)
        if "value" not in names:
            raise ValueError("a column named value (binary or string) is required")
        if self._topic is None and "topic" not in names:
            raise ValueError("set the option topic, or add a column named topic")
        if unknown := names - COLUMNS:
            raise ValueError(
                f"unknown columns: {', '.join(sorted(unknown))}; "
                f"known: {', '.join(sorted(COLUMNS))}"
            )
        for name in ("key", "value"):
            if name in names and not _is_bytes(schema.field(name).type):
                kind = schema.field(name).type
                raise ValueError(f"column {name} is {kind}; cast it to binary or string")
        for name, (is_right, right) in _TYPES.items():
            if name in names and not is_right(kind := schema.field(name).type):
                raise ValueError(f"column {name} is {kind}; cast it to {right}")

    def topics(self, batches: Sequence[pa.RecordBatch]) -> list[str]:
        """Return the topics that these rows go to. Raises ValueError if one is null."""
        if self._topic is not None:
            return [self._topic]
        found: set[str] = set()
        for batch in batches:
            column = batch.column("topic")
            if column.null_count:
                raise ValueError("a row has a null topic; fill the column, or set the option topic")
            found.update(pc.unique(column.cast(pa.string())).to_pylist())
        return sorted(found)

    def highest_partition(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Return the highest partition that a row asks for, or -1."""
        asked = [
            pc.max(batch.column("partition")).as_py()
            for batch in batches
            if "partition" in batch.schema.names
        ]
        return max((each for each in asked if each is not None), default=-1)

    def encode(
        self, batches: Sequence[pa.RecordBatch], places: Mapping[str, Places]
    ) -> Iterator[list[EncodedBatch]]:
        """Yield the rows' batches; rows of one partition stay in order.

        Raises ValueError for a partition that a topic does not have, ExplicitPartitionError for
        one of a stream.
        """
        table = pa.Table.from_batches(list(batches)).combine_chunks()
        for batch in table.to_batches():
            yield from self._bounded(batch, places)

    def _bounded(
        self, batch: pa.RecordBatch, places: Mapping[str, Places]
    ) -> Iterator[list[EncodedBatch]]:
        if batch.nbytes > ENCODE_BYTES_MAX and batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self._bounded(batch.slice(0, half), places)
            yield from self._bounded(batch.slice(half), places)
        elif batch.num_rows:
            yield self._encode(batch, places)

    def _encode(self, batch: pa.RecordBatch, places: Mapping[str, Places]) -> list[EncodedBatch]:
        rows = batch.num_rows
        names = set(batch.schema.names)
        key = _binary(batch.column("key")) if "key" in names else _ABSENT
        value = _binary(batch.column("value"))
        topics, topic_of = self._topics_of(batch)
        plan = _Plan(topics, [places[topic] for topic in topics])
        hashes = np.empty(rows if plan.lows.size else 0, np.int32)
        groups = self._groups(batch, key, plan, topic_of, hashes)
        starts = np.zeros(int(plan.bases[-1]) + 1, np.int64)
        order = np.empty(rows, np.int32)
        kernel_encode.order_by_group(groups, starts, order)
        headers = _headers(batch.column("headers")) if "headers" in names else None
        times = _times(batch.column("timestamp")) if "timestamp" in names else _NO_INT64
        out, table, made = self._run(order, starts, key, value, times, headers)
        batches, row = [], 0
        for each in table[:made].tolist():
            end = row + each[kernel.OUT_COUNT]
            batches.append(self._batch(out, each, plan, hashes, order[row:end]))
            row = end
        return batches

    def _groups(
        self, batch: pa.RecordBatch, key: _Binary, plan: _Plan, topic_of: Int32, hashes: Int32
    ) -> Int32:
        explicit, explicit_valid = _NO_INT32, _NO_BYTES
        if "partition" in batch.schema.names:
            column = batch.column("partition").cast(pa.int32())
            explicit_valid = _valid(column)
            explicit = np.ascontiguousarray(column.fill_null(0).to_numpy(), np.int32)
        groups = np.empty(batch.num_rows, np.int32)
        self._turn += 1
        sticky = (self._turn % plan.sizes).astype(np.int32)
        done = kernel_encode.partition(
            batch.num_rows, key.present, key.offsets, key.data, key.valid, topic_of, plan.sizes,
            plan.bases, explicit, explicit_valid, sticky, plan.lows, plan.firsts,
            hashes, groups,
        )  # fmt: skip
        if done < 0:
            row = -1 - done
            topic = topic_of[row] if topic_of.size else 0
            asked = explicit[row] if explicit.size else "by its key"
            if isinstance(plan.places[topic], Ranges) and explicit.size:
                raise ExplicitPartitionError(plan.topics[topic], int(explicit[row]))
            raise ValueError(
                f"a row has partition {asked}, but topic {plan.topics[topic]} has "
                f"{plan.sizes[topic]} partitions, counted from 0"
            )
        return groups

    def _topics_of(self, batch: pa.RecordBatch) -> tuple[list[str], Int32]:
        if self._topic is not None:
            return [self._topic], _NO_INT32
        coded = batch.column("topic").cast(pa.string()).dictionary_encode()
        return coded.dictionary.to_pylist(), np.ascontiguousarray(
            coded.indices.to_numpy(), np.int32
        )

    def _run(
        self,
        order: Int32,
        starts: npt.NDArray[np.int64],
        key: _Binary,
        value: _Binary,
        times: npt.NDArray[np.int64],
        headers: "_Headers | None",
    ) -> tuple[Bytes, npt.NDArray[np.int64], int]:
        rows, groups = order.size, starts.size - 1
        used = headers or _NO_HEADERS
        size = key.size + value.size + used.key.size + used.value.size
        count = used.key.offsets.size
        room, most = kernel_encode.room(size, rows, count, groups, self._batch_bytes)
        out = np.empty(room, np.uint8)
        table = np.empty((most, kernel.OUT_COLUMNS), np.int64)
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        made = kernel_encode.encode(
            order if groups > 1 else _NO_INT32, starts, key.present, key.offsets, key.data,
            key.valid, value.present, value.offsets, value.data, value.valid, times, now_ms,
            used.rows, used.key.offsets, used.key.data, used.value.offsets, used.value.data,
            used.value.valid, self._batch_bytes, out, table,
        )  # fmt: skip
        if made == kernel_encode.BAD_ROW:
            raise ValueError("an Arrow column has offsets outside its data")
        assert made >= 0, (made, room, most)
        return out, table, made

    def _batch(
        self, out: Bytes, row: list[int], plan: _Plan, hashes: Int32, rows: Int32
    ) -> EncodedBatch:
        """Return one batch; ``rows`` are those of the Arrow batch that it has."""
        group, start, end, count, base_timestamp, max_timestamp = row
        buffer = out.data[start:end]
        if self._codec:
            buffer = with_room(compress(self._codec, buffer[HEADER_BYTES:]))
        partition, ranges = plan.at(group)
        return EncodedBatch(
            partition=partition,
            buffer=buffer,
            count=count,
            compression=self._codec,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            topic_id=None if ranges is None else ranges.topic_id,
            median_hash=NO_KEYS if ranges is None else _median(hashes, rows),
        )


@dataclass(frozen=True, slots=True)
class _Headers:
    """A headers column: the range of each row, and all keys and values."""

    rows: Int32
    key: _Binary
    value: _Binary


_NO_HEADERS = _Headers(_NO_INT32, _ABSENT, _ABSENT)


def _median(hashes: Int32, rows: Int32) -> int:
    """Return the median hash of these rows that have a key, or NO_KEYS."""
    chosen = hashes[rows[:: 1 + rows.size // HASHES_MAX]]
    keyed = chosen[chosen >= 0]
    if not keyed.size:
        return NO_KEYS
    middle = (keyed.size - 1) // 2
    return int(np.partition(keyed, middle)[middle])


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_null(kind)
    )


def _is_headers(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_struct(kind.value_type))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or _is_number(kind))


_TYPES: Mapping[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "partition": (_is_number, "int32"),
    "headers": (_is_headers, "list<struct<key, value>>"),
    "timestamp": (_is_time, "timestamp, or to int64 with milliseconds"),
}
"""The types of the other columns, and what an error says of them."""


def _valid(column: pa.Array) -> Bytes:
    if not column.null_count:
        return _NO_BYTES
    return np.ascontiguousarray(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)


def _int32s(buffer: pa.Buffer | None, offset: int, count: int) -> Int32:
    if buffer is None or buffer.size < 4 * (offset + count):
        return np.zeros(count, np.int32)
    return np.frombuffer(buffer, np.int32, count, 4 * offset)


def _binary(column: pa.Array) -> _Binary:
    column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    return _Binary(
        True,
        _int32s(offsets, column.offset, len(column) + 1),
        np.frombuffer(data, np.uint8) if data is not None and data.size else _NO_BYTES,
        _valid(column),
    )


def _headers(column: pa.Array) -> _Headers:
    """Split list<struct<key, value>> into columns; a null list counts as empty."""
    # A concatenation has no offset, and a filled null is a list of its own that is empty.
    column = pc.fill_null(column, pa.scalar([], column.type)) if column.null_count else column
    column = pa.concat_arrays([column.slice(0, 0), column])
    entries = column.values
    if entries.null_count or entries.field("key").null_count:
        raise ValueError("a header has a null key")
    return _Headers(
        _int32s(column.buffers()[1], column.offset, len(column) + 1),
        _binary(entries.field("key")),
        _binary(entries.field("value")),
    )


def _times(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return milliseconds; a null timestamp is now. Raises ValueError for what Kafka has not."""
    now = datetime.now(UTC)
    if pa.types.is_timestamp(column.type):
        column = column.fill_null(pa.scalar(now, column.type)) if column.null_count else column
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        column = column.cast(pa.int64())
    else:
        column = column.cast(pa.int64()).fill_null(int(now.timestamp() * 1000))
    times = np.ascontiguousarray(column.to_numpy(), np.int64)
    if times.size and (earliest := int(times.min())) < TIMESTAMP_MS_MIN:
        raise ValueError(
            f"column timestamp has {earliest} ms: expected 1970 or later, or -1 ms for no timestamp"
        )
    return times
