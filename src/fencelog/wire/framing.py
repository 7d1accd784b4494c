"""Frames: each request and response is sent after a four-byte size."""

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error

from fencelog.errors import WireError
from fencelog.types import Buffer

SIZE_BYTES = 4

_SIZE = Struct(">i")


def frame_size(prefix: Buffer, frame_bytes_max: int) -> int:
    """Return how many bytes follow the prefix.

    Raises WireError if the size is negative or above the limit: the stream cannot be read further.
    """
    try:
        (size,) = _SIZE.unpack_from(prefix)
    except struct_error:
        raise WireError(
            f"{len(prefix)} bytes are too few for a frame size of {SIZE_BYTES}"
        ) from None
    if not 0 <= size <= frame_bytes_max:
        raise WireError(f"frame of {size} bytes, limit {frame_bytes_max}")
    return int(size)


def frame(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers of one frame, the size prefix first; nothing is copied."""
    return [_SIZE.pack(sum(map(len, buffers))), *buffers]
