"""One segment file: walking its batches, and reading a range of them.

The file is not trusted: a walk checks each batch as rule D3 requires, and ends at the first bad
one.
"""

from collections.abc import Awaitable, Callable
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from fencelog.errors import CorruptionError, LimitError, WireError
from fencelog.log.values import ReadPlan
from fencelog.ports import DiskFile
from fencelog.types import Buffer, Offset, TimestampMs
from fencelog.wire.batch import (
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    TimestampType,
    check_crc,
    read_header,
)
from fencelog.wire.filtering import plain_records, timestamp_of
from fencelog.wire.filtering import walk as records_of

_CHUNK_BYTES = 4 << 20
_SKIP_BYTES = 8 << 10
_OPENED_BYTES_MAX, _OPENED_RECORDS_MAX = 16 << 20, 250_000
"""Limits of one batch, decompressed, that is searched for a timestamp: above what clients send."""
_RECORDS_PER_SLICE = 2_000
_HEADERS_PER_SLICE = 500
_MAGIC_AT = 16
_OFFSET_DISTANCE_MAX = 1 << 31
_EXTENT = Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta

Pause = Callable[[], Awaitable[None]]

Passed = Callable[[int, memoryview], Awaitable[None]]
"""Takes the good batches of a chunk, and where they begin in the file."""

Visit = Callable[[BatchHeader, memoryview, int], str | None]
"""Handles a batch at a position; returns why it is bad, or None."""


class WalkEnd(NamedTuple):
    """The end of a segment's good batches, and the problem there; None at the end of the file."""

    position: int
    problem: str | None


async def walk(
    file: DiskFile,
    visit: Visit,
    chunk_bytes: int = _CHUNK_BYTES,
    *,
    start: int = 0,
    passed: Passed | None = None,
) -> WalkEnd:
    """Check each batch from ``start`` and pass it to ``visit``, up to the first bad one.

    ``passed`` is awaited after each chunk; the chunk's memory is not used afterwards.
    """
    position = start
    wanted = chunk_bytes
    while position < file.size:
        data = memoryview(await file.read(position, wanted))
        end, size, problem = _walk_chunk(data, position, file.size, visit)
        wanted = max(size, chunk_bytes)
        if passed is not None:
            await passed(position, data[:end])
        position += end
        if problem is not None:
            return WalkEnd(position, problem)
    return WalkEnd(position, None)


def _walk_chunk(
    data: memoryview, start: int, file_size: int, visit: Visit
) -> tuple[int, int, str | None]:
    """Return the end of the good batches that are whole in ``data``, and the next one's size.

    The size is 0 if it is not known.
    """
    at = 0
    while at < len(data):
        left = file_size - start - at
        if len(data) - at < HEADER_BYTES <= left:
            break
        try:
            header = read_header(data, at)
        except WireError as error:
            return at, 0, str(error)
        size = header.size
        if size > left:
            return at, 0, f"the batch has {size} bytes, but only {left} are left in the file"
        if size > len(data) - at:
            return at, size, None
        batch = data[at : at + size]
        problem = visit(header, batch, start + at) if check_crc(batch) else "wrong CRC"
        if problem is not None:
            return at, 0, problem
        at += size
    return at, 0, None


async def find_batch(file: DiskFile, position: int, above: Offset) -> int | None:
    """Return where the first sound batch at or after ``position`` begins, with an offset > above.

    Checks every byte, because the batch at ``position`` is damaged and its length may be wrong.
    """
    while position + HEADER_BYTES <= file.size:
        data = await file.read(position, _CHUNK_BYTES)
        at = data.find(MAGIC, _MAGIC_AT)
        while at >= 0 and at - _MAGIC_AT + HEADER_BYTES <= len(data):
            start = at - _MAGIC_AT
            if await _is_batch(file, position + start, data, start, above):
                return position + start
            at = data.find(MAGIC, at + 1)
        position += max(len(data) - HEADER_BYTES + 1, 1)
    return None


async def _is_batch(file: DiskFile, position: int, data: bytes, start: int, above: Offset) -> bool:
    try:
        header = read_header(data, start)
    except WireError:
        return False
    if not above < header.base_offset < above + _OFFSET_DISTANCE_MAX:
        return False
    if header.size > file.size - position:
        return False
    return check_crc(await file.read(position, header.size))


class Batches(NamedTuple):
    """Whole batches of a segment, and the offset at which the next ones begin."""

    data: memoryview
    end_offset: Offset


async def read_batches(
    file: DiskFile, path: str, plan: ReadPlan, *, to_send: bool = False
) -> Batches:
    """Return the whole batches that a plan asks for, from the first that holds its offset.

    ``to_send``: the bytes are only sent, so they may stay in the page cache (``DiskFile.map``).
    Raises CorruptionError if there are no batches at the plan's position.
    """
    found = None
    headers = _Headers(file, path)
    if not plan.is_empty:
        _check_position(path, plan)
        found = await _find_range(headers, plan)
    if found is None:
        return Batches(memoryview(b""), plan.offset)
    start, end, end_offset = found
    data: Buffer | None = headers.bytes_between(start, end)
    if data is None and to_send:
        data = await file.map(start, end - start)
    elif data is None:
        data = await file.read(start, end - start)
    return Batches(memoryview(data), end_offset)


class _Headers:
    """Batch headers of a file, read a few KiB at once."""

    def __init__(self, file: DiskFile, path: str) -> None:
        self.path = path
        self._file = file
        self._data = b""
        self._position = 0

    async def load(self, position: int, end_position: int) -> memoryview:
        """Return bytes from a position: at least a header, if there is one below the end."""
        at = position - self._position
        if at < 0 or len(self._data) - at < HEADER_BYTES:
            wanted = min(_SKIP_BYTES, end_position - position)
            self._data, self._position, at = await self._file.read(position, wanted), position, 0
        return memoryview(self._data)[at:]

    def bytes_between(self, start: int, end: int) -> memoryview | None:
        """Return these bytes if they are here."""
        first, last = start - self._position, end - self._position
        return memoryview(self._data)[first:last] if 0 <= first <= last <= len(self._data) else None


async def _find_range(headers: _Headers, plan: ReadPlan) -> tuple[int, int, Offset] | None:
    """Return start and end of the batches to return, and the offset of what follows them.

    Only the headers at both ends are read: the index leads near the last one.
    """
    start = plan.position
    data = memoryview(b"")
    while start < plan.end_position:
        data = await headers.load(start, plan.end_position)
        skipped = _start(data, headers.path, start, plan)
        start, data = start + skipped, data[skipped:]
        if len(data) >= HEADER_BYTES:
            break
    else:
        return None
    size, _, next_offset = _extent(data, 0, headers.path, start)
    if next_offset > plan.upper_offset:
        return None
    max_bytes = max(plan.max_bytes, HEADER_BYTES)
    if size > max_bytes:
        return start, start + size, next_offset  # the first batch is returned whole
    at = max(plan.skip_to, start)
    limit = min(start + max_bytes, plan.end_position)
    while at < plan.end_position:
        data = await headers.load(at, plan.end_position)
        size, base_offset, next_offset = _extent(data, 0, headers.path, at)
        if at + size > limit or next_offset > plan.upper_offset:
            return start, at, base_offset
        at += size
    return start, at, next_offset


async def find_offset(file: DiskFile, path: str, plan: ReadPlan) -> int:
    """Return where the batch begins that holds the plan's offset, or a position past its end."""
    _check_position(path, plan)
    position = plan.position
    while position < plan.end_position:
        data = await file.read(position, min(_SKIP_BYTES, plan.end_position - position))
        start = _start(data, path, position, plan)
        position += start
        if len(data) - start >= HEADER_BYTES:
            break
    return position


def _check_position(path: str, plan: ReadPlan) -> None:
    if plan.position >= plan.end_position > 0:
        raise CorruptionError(
            f"{path}: the index has position {plan.position} for offset {plan.offset}, "
            f"which lies before position {plan.end_position}"
        )


def _start(data: Buffer, path: str, position: int, plan: ReadPlan) -> int:
    """Return where in ``data`` the batch that holds the offset begins, or how much to skip."""
    at = 0
    while at == 0 or len(data) - at >= HEADER_BYTES:
        size, _, next_offset = _extent(data, at, path, position + at)
        if next_offset > plan.offset:
            # An index entry has a batch that ends at the offset or before it. If it does not,
            # records between would be skipped silently.
            if 0 < position + at == plan.position and next_offset > plan.offset + 1:
                raise CorruptionError(
                    f"{path}: the index has position {position} for offset {plan.offset}, "
                    f"which lies before the batch that ends at {next_offset - 1}"
                )
            break
        at += size
    return at


def _extent(data: Buffer, at: int, path: str, position: int) -> tuple[int, Offset, Offset]:
    """Return the size of the batch at ``at``, its offset and the one that follows it."""
    try:
        base_offset, length, magic, last_offset_delta = _EXTENT.unpack_from(data, at)
    except struct_error:
        base_offset = length = magic = last_offset_delta = -1
    if magic != MAGIC or length < HEADER_BYTES - LENGTH_END:
        raise CorruptionError(f"{path}: no record batch at position {position}")
    return LENGTH_END + length, base_offset, Offset(base_offset + last_offset_delta + 1)


async def read_first_header(file: DiskFile) -> BatchHeader | None:
    """Return the header of a segment's first batch, None in an empty file.

    Raises CorruptionError if the file does not begin with a batch.
    """
    if file.size == 0:
        return None
    try:
        return read_header(await file.read(0, HEADER_BYTES))
    except WireError as error:
        raise CorruptionError(f"the segment does not begin with a batch: {error}") from error


async def find_timestamp(
    file: DiskFile, path: str, plan: ReadPlan, timestamp: TimestampMs, pause: Pause
) -> tuple[Offset, TimestampMs] | None:
    """Return the first record of a plan's range that is not older than ``timestamp``, if any.

    Opens the first batch whose header has the timestamp, and one more only if the range begins
    inside of the first. ``pause`` is awaited between short pieces of work.
    """
    position = await find_offset(file, path, plan)
    passed = 0
    while position < plan.end_position:
        try:
            header = read_header(await file.read(position, HEADER_BYTES))
        except WireError as error:
            raise CorruptionError(f"{path}: no batch at position {position}: {error}") from error
        if header.next_offset > plan.upper_offset:
            return None
        if header.max_timestamp >= timestamp and not header.is_undated:
            batch = await file.read(position, header.size)
            if not check_crc(batch):
                raise CorruptionError(f"{path}: wrong CRC of the batch at position {position}")
            found = await _find_in_batch(header, batch, plan, timestamp, pause)
            if found is not None:
                return found
        position += header.size
        passed += 1
        if passed % _HEADERS_PER_SLICE == 0:
            await pause()
    return None


async def _find_in_batch(
    header: BatchHeader, batch: Buffer, plan: ReadPlan, timestamp: TimestampMs, pause: Pause
) -> tuple[Offset, TimestampMs] | None:
    """Return the first record of a batch that is in range and not older, if any.

    A batch above the limits is not opened: its first offset in range is returned, and so it is if
    no record has the timestamp that the header has. Raises WireError if its records are malformed.
    """
    by_header = max(header.base_offset, plan.offset), header.max_timestamp
    if header.record_count > _OPENED_RECORDS_MAX:
        return by_header
    await pause()
    stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    try:
        plain = plain_records(header, batch, _OPENED_BYTES_MAX)
    except LimitError:
        return by_header
    for number, record in enumerate(records_of(header, plain), 1):
        offset = Offset(header.base_offset + record.offset_delta)
        found = header.max_timestamp if stamped else timestamp_of(header, record)
        if found >= timestamp and offset >= plan.offset:
            return offset, TimestampMs(found)
        if number % _RECORDS_PER_SLICE == 0:
            await pause()
    is_whole = header.record_count > 0 and header.base_offset >= plan.offset
    return by_header if is_whole else None
