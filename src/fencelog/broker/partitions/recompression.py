"""Re-compresses batches of topics whose ``compression.type`` names another codec (ADR 4).

Both steps run in a thread, so that the loop serves other connections meanwhile. Records are not
decoded: only the codec, the length and the CRC of the batch change, never offsets or sequences.
"""

import asyncio

from fencelog.wire.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    BatchHeader,
    Compression,
    read_header,
    seal,
)
from fencelog.wire.compression import compress, decompress

CONCURRENT_MAX = 2
"""Batches decompressed at a time, over all connections: bounds memory."""


class Recompression:
    """Runs in threads, a few batches at a time, first come, first served."""

    def __init__(self) -> None:
        """Start idle."""
        self._free = asyncio.Semaphore(CONCURRENT_MAX)

    async def run(
        self, header: BatchHeader, batch: memoryview, codec: Compression, bytes_max: int
    ) -> tuple[BatchHeader, memoryview]:
        """Return ``recompressed``, without blocking the loop; raises what it raises."""
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
