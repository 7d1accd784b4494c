"""The requests of one connection, without its socket: correlation ids, frames and their answers.

Bytes are received straight into a buffer of the frame's own size, so record bytes are not copied
between the socket and whoever decodes them. The owner of the socket asks ``get_buffer`` where the
next bytes go and tells ``received`` how many came.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from fencelog.errors import WireError
from fencelog.types import Buffer
from fencelog.wire.framing import SIZE_BYTES, frame, frame_size
from fencelog.wire.headers import (
    RequestHeader,
    read_response_header,
    request_header,
    response_is_flexible,
)

T = TypeVar("T")

FRAME_BYTES_MAX = 512 << 20
"""A response is as large as what was requested; this only stops malformed sizes."""
CORRELATION_MAX = 0x7FFFFFFF


class Response(NamedTuple, Generic[T]):
    """A response's body, and who sent its request."""

    sender: T
    body: memoryview


class Requester(Generic[T]):
    """Frames requests, and finds the request of each response. ``T`` is whoever waits for one."""

    def __init__(self, client_id: str) -> None:
        """Nothing was sent yet."""
        self._client_id = client_id
        self._waiting: dict[int, tuple[bool, T]] = {}
        self._correlation_id = 0
        self._size = bytearray(SIZE_BYTES)
        self._target = memoryview(self._size)
        self._filled = 0

    def request(
        self, api_key: int, version: int, body: Sequence[Buffer], sender: T
    ) -> list[Buffer]:
        """Return the buffers of a request's frame; ``sender`` comes back with its response."""
        self._correlation_id = (self._correlation_id + 1) & CORRELATION_MAX
        header = RequestHeader(api_key, version, self._correlation_id, self._client_id)
        self._waiting[self._correlation_id] = (response_is_flexible(api_key, version), sender)
        return frame([request_header(header), *body])

    def close(self) -> list[T]:
        """Return who waits for a response that will not come."""
        waiting, self._waiting = self._waiting, {}
        return [sender for _, sender in waiting.values()]

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go: the rest of a size prefix, or of a frame."""
        return self._target[self._filled :]

    def received(self, count: int) -> Response[T] | None:
        """Take ``count`` bytes that were put into the buffer; return the response they complete.

        Raises WireError for a size out of range, a malformed header and a response that nobody
        waits for: the stream can no longer be trusted.
        """
        self._filled += count
        if self._filled < len(self._target):
            return None
        complete, self._filled = self._target, 0
        if complete.obj is not self._size:
            self._target = memoryview(self._size)
            return self._response(complete)
        size = frame_size(complete, FRAME_BYTES_MAX)
        if not size:
            return self._response(memoryview(b""))
        self._target = memoryview(bytearray(size))
        return None

    def _response(self, response: memoryview) -> Response[T]:
        correlation_id, _ = read_response_header(response, flexible=False)
        if correlation_id not in self._waiting:
            raise WireError(f"response to request {correlation_id}, which was not sent")
        flexible, sender = self._waiting[correlation_id]
        # A malformed header leaves its sender waiting: ``close`` returns it with the others.
        _, body = read_response_header(response, flexible)
        del self._waiting[correlation_id]
        return Response(sender, body)
