"""Decompresses large batches in threads, so that the loop serves other connections meanwhile.

For two reasons: a compacted topic looks for records without a key (F4), and a topic's
``compression.type`` may name another codec than the batch has (ADR 4). Then records are not
decoded: only the codec, the length and the CRC of the batch change, never offsets or sequences.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencelog.wire.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    BatchHeader,
    Compression,
    read_header,
    seal,
)
from fencelog.wire.compression import compress, decompress
from fencelog.wire.filtering import plain_records

CONCURRENT_MAX = 2
"""Batches decompressed at a time, over all connections: bounds memory."""


class Decompression:
    """A few batches at a time, first come, first served."""

    def __init__(self) -> None:
        """Start idle."""
        self._free = asyncio.Semaphore(CONCURRENT_MAX)

    @asynccontextmanager
    async def records(
        self, header: BatchHeader, batch: memoryview, bytes_max: int
    ) -> AsyncIterator[bytes]:
        """Return ``plain_records``; raises what it raises.

        Their memory counts until the block ends: keep no reference to them.
        """
        async with self._free:
            yield await asyncio.get_running_loop().run_in_executor(
                None, plain_records, header, batch, bytes_max
            )

    async def recompressed(
        self, header: BatchHeader, batch: memoryview, codec: Compression, bytes_max: int
    ) -> tuple[BatchHeader, memoryview]:
        """Return ``recompressed``; raises what it raises."""
        async with self._free:
            return await asyncio.get_running_loop().run_in_executor(
                None, recompressed, header, batch, codec, bytes_max
            )


def recompressed(
    header: BatchHeader, batch: memoryview, codec: Compression, bytes_max: int
) -> tuple[BatchHeader, memoryview]:
    """Return a batch with its records in another codec.

    Raises WireError if the records are malformed, LimitError if they have more than ``bytes_max``
    bytes when decompressed.
    """
    plain = decompress(header.compression, batch[HEADER_BYTES:], bytes_max)
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    sealed = memoryview(seal(header._replace(attributes=attributes), compress(codec, plain)))
    return read_header(sealed), sealed
