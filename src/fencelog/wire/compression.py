"""The four codecs of record batches, with a limit on the decompressed size.

A few kilobytes can decompress to gigabytes, so every codec stops at the limit instead of checking
the result. The libraries are imported when a codec is first used.
"""

from collections.abc import Iterator
from struct import Struct

from fencelog.errors import LimitError, WireError
from fencelog.types import Buffer
from fencelog.wire.batch import Compression
from fencelog.wire.primitives import Reader

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_VERSIONS = Struct(">ii")
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_SIZE = Struct(">i")
_GZIP_WINDOW_BITS = 31
_FIRST_GUESS = 4
_PIECE_BYTES_MIN = 64 * 1024
_SNAPPY_RATIO_MAX = 22
"""A copy of 64 bytes takes 3 bytes: a higher ratio cannot be true."""


def compress(codec: Compression, data: Buffer) -> Buffer:
    """Return the bytes as Kafka's clients write them with this codec."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            import zlib

            return zlib.compress(data, wbits=_GZIP_WINDOW_BITS)
        case Compression.SNAPPY:
            return _compress_snappy(data)
        case Compression.LZ4:
            from lz4.frame import compress as compress_lz4

            # Kafka's Java reader refuses linked blocks.
            return bytes(compress_lz4(bytes(data), block_linked=False, store_size=False))
        case Compression.ZSTD:
            import cramjam

            return bytes(cramjam.zstd.compress(data))


def decompress(codec: Compression, data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Return the decompressed bytes.

    Raises WireError if the bytes are not a complete stream of this codec; LimitError if the result
    would have more than ``bytes_max`` bytes.
    """
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _decompress_gzip(data, bytes_max)
        case Compression.SNAPPY:
            return _decompress_snappy(data, bytes_max)
        case Compression.LZ4:
            return _decompress_lz4(data, bytes_max)
        case Compression.ZSTD:
            return _decompress_zstd(data, bytes_max)


def _decompress_gzip(data: Buffer, bytes_max: int) -> bytes:
    import zlib

    stream = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
    try:
        plain = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise WireError(f"gzip: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large(bytes_max)
    if not stream.eof:
        raise WireError("gzip: the stream ends too early")
    return plain


def _decompress_lz4(data: Buffer, bytes_max: int) -> bytearray:
    from lz4.frame import LZ4FrameDecompressor

    stream = LZ4FrameDecompressor()
    plain = bytearray()
    pending = bytes(data)
    # The library allocates the limit that it gets, so it gets a small one for each piece.
    piece = max(_PIECE_BYTES_MIN, _FIRST_GUESS * len(pending))
    while not stream.eof:
        try:
            out = stream.decompress(pending, max_length=min(piece, bytes_max + 1 - len(plain)))
        except (RuntimeError, EOFError) as error:
            raise WireError(f"lz4: {error}") from None
        plain += out
        pending = b""
        if len(plain) > bytes_max:
            raise _too_large(bytes_max)
        if not out and stream.needs_input and not stream.eof:
            raise WireError("lz4: the frame ends too early")
    return plain


def _decompress_zstd(data: Buffer, bytes_max: int) -> memoryview:
    import cramjam

    # The frame's content size is optional and may be false: the output buffer grows until all
    # fits, so no more than twice the true size is ever allocated.
    size = min(max(_PIECE_BYTES_MIN, _FIRST_GUESS * len(data)), bytes_max)
    while True:
        plain = bytearray(size)
        try:
            written = cramjam.zstd.decompress_into(data, plain)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise WireError(f"zstd: {error}") from None
        else:
            return memoryview(plain)[:written]
        if size >= bytes_max:
            raise _too_large(bytes_max)
        size = min(2 * size, bytes_max)


def _compress_snappy(data: Buffer) -> bytes:
    """Return the blocks of snappy-java's stream, which is what Kafka's Java clients write."""
    import cramjam

    out = bytearray(_XERIAL_MAGIC)
    out += _XERIAL_VERSIONS.pack(1, 1)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += _BLOCK_SIZE.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: Buffer, bytes_max: int) -> bytearray:
    """Read both forms in use: snappy-java's blocks, and the one raw block of librdkafka."""
    import cramjam

    plain = bytearray()
    for block in _snappy_blocks(data):
        try:
            size = cramjam.snappy.decompress_raw_len(block)
            if len(plain) + size > bytes_max:
                raise _too_large(bytes_max)
            if size > _SNAPPY_RATIO_MAX * len(block):
                raise WireError(
                    f"snappy: a block of {len(block)} bytes cannot decompress to {size} bytes"
                )
            plain += bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise WireError(f"snappy: {error}") from None
    return plain


def _snappy_blocks(data: Buffer) -> Iterator[memoryview]:
    reader = Reader(data)
    if reader.data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield reader.data
        return
    reader.view(len(_XERIAL_MAGIC) + _XERIAL_VERSIONS.size)
    while reader.remaining:
        yield reader.view(reader.int32())


def _too_large(bytes_max: int) -> LimitError:
    return LimitError(f"the batch decompresses to more than {bytes_max} bytes")
