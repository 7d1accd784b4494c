"""What the codec's tests share: batches made by ``fencelog.wire``, buffers that show overruns."""

import ctypes
import mmap
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from fencelog.client.arrow import FIELDS, decode
from fencelog.client.batches import EncodedBatch, scan
from fencelog.types import TopicPartition
from fencelog.wire.batch import assign, read_header
from fencelog.wire.records import RecordToWrite, build_batch

PLACE = TopicPartition("t", 3)
EVERY_COLUMN = frozenset(field.name for field in FIELDS)
FOR_EVER = 1 << 62
GUARD = 64
NO_ACCESS = 0  # PROT_NONE


def record(value: bytes | None = b"v", key: bytes | None = b"k", **more: object) -> RecordToWrite:
    """A record with what the test does not care about filled in."""
    headers = more.get("headers", ())
    timestamp_ms = more.get("timestamp_ms", 1_000)
    return RecordToWrite(key, value, timestamp_ms, headers)  # type: ignore[arg-type]


def batch(records: Sequence[RecordToWrite], **fields: object) -> bytes:
    """A batch as a log holds it."""
    return bytes(build_batch(records, **fields))  # type: ignore[arg-type]


def log_of(batches: Sequence[EncodedBatch]) -> bytes:
    """The bytes of a partition that these batches were appended to."""
    log = bytearray()
    offset = 0
    for each in batches:
        each.finish(-1, -1, -1, transactional=False)
        copy = memoryview(bytearray(each.buffer))
        assign(copy, offset, 0)  # type: ignore[arg-type]
        offset = read_header(copy).next_offset
        log += copy
    return bytes(log)


def with_crc(data: bytearray) -> bytes:
    """The batch with the checksum that its bytes ask for."""
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def decoded(
    data: bytes | memoryview,
    *,
    columns: frozenset[str] = EVERY_COLUMN,
    start: int = 0,
    end: int = FOR_EVER,
    aborted: Sequence[tuple[int, int]] = (),
    transactional: bool = True,
) -> list[dict[str, object]]:
    """The rows that a reader of these bytes gets; timestamps, which may be any, in microseconds."""
    view = memoryview(data)
    found = scan(view, aborted, transactional=transactional)
    batches = list(decode(view, found.batches, PLACE, columns=columns, start=start, end=end))
    for each in batches:
        each.validate(full=True)
    return [row for each in batches for row in _in_numbers(each).to_pylist()]


def _in_numbers(rows: pa.RecordBatch) -> pa.RecordBatch:
    if "timestamp" not in rows.schema.names:
        return rows
    place = rows.schema.get_field_index("timestamp")
    return rows.set_column(place, "timestamp", rows.column(place).cast(pa.int64()))


def values(rows: Sequence[dict[str, object]]) -> list[object]:
    """Their values only."""
    return [row["value"] for row in rows]


def table(rows: Sequence[dict[str, object]], **types: pa.DataType) -> pa.RecordBatch:
    """An Arrow batch of rows, with these columns' types."""
    schema = pa.schema(list(types.items()))
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def before_a_wall(data: bytes) -> memoryview:
    """The bytes, followed by a page whose reading kills the process."""
    page = mmap.PAGESIZE
    pages = (len(data) + page - 1) // page
    area = mmap.mmap(-1, (pages + 1) * page)
    start = pages * page - len(data)
    area[start : pages * page] = data
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + pages * page), page, NO_ACCESS) == 0
    return memoryview(area)[start : pages * page]


class Fenced:
    """Stands in for ``numpy.empty`` and ``numpy.zeros``; knows whether a fence was trodden on."""

    def __init__(self) -> None:
        self._made: list[np.ndarray] = []

    def empty(self, count: object, kind: type) -> np.ndarray:
        """A buffer between two guards."""
        assert isinstance(count, int)
        whole = np.full(count * np.dtype(kind).itemsize + 2 * GUARD, 0xA5, np.uint8)
        self._made.append(whole)
        return whole[GUARD : len(whole) - GUARD].view(kind)

    def zeros(self, count: object, kind: type) -> np.ndarray:
        """The same, cleared."""
        buffer = self.empty(count, kind)
        buffer[:] = 0
        return buffer

    @property
    def intact(self) -> bool:
        """Whether nothing was written outside the buffer."""
        return all((m[:GUARD] == 0xA5).all() and (m[-GUARD:] == 0xA5).all() for m in self._made)
