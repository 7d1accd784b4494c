"""Headers of requests and responses.

A request's header has its API key and version; a response's only the correlation id, so both sides
must know from the request whether the response is flexible.
"""

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from fencelog.errors import WireError
from fencelog.types import Buffer
from fencelog.wire.api_versions import ApiKey, is_flexible
from fencelog.wire.primitives import REQUEST_ITEMS_MAX, Reader, write_string

_REQUEST = Struct(">hhi")
_REQUEST_AND_LENGTH = Struct(">hhih")
"""Also has the length of the client id, which is not compact even in flexible versions."""
_CORRELATION_ID = Struct(">i")


class RequestHeader(NamedTuple):
    """The fields of a request header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def read_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """Split a frame (without its size prefix) into header and body.

    Raises WireError if the header is malformed. For an unknown API key the body begins right after
    the client id.
    """
    data = frame if type(frame) is memoryview else memoryview(frame)
    try:
        api_key, api_version, correlation_id, length = _REQUEST_AND_LENGTH.unpack_from(data)
    except struct_error:
        raise WireError(f"{len(data)} bytes are too few for a request header") from None
    position = _REQUEST_AND_LENGTH.size
    client_id = None
    if length != -1:
        end = position + length
        if not position <= end <= len(data):
            raise WireError(f"client id of {length} bytes in a request of {len(data)}")
        try:
            client_id = str(data[position:end], "utf-8")
        except UnicodeDecodeError:
            raise WireError("the client id is not UTF-8") from None
        position = end
    if is_flexible(api_key, api_version):
        if position < len(data) and data[position] == 0:
            position += 1
        else:
            reader = Reader(data, position, REQUEST_ITEMS_MAX)
            reader.skip_tags()
            position = reader.position
    # ``_make`` takes half the time of a call.
    header = RequestHeader._make((api_key, api_version, correlation_id, client_id))
    return header, data[position:]


def request_header(header: RequestHeader) -> bytes:
    """Return the bytes before a request's body."""
    out = bytearray(_REQUEST.pack(header.api_key, header.api_version, header.correlation_id))
    write_string(out, header.client_id, flexible=False)
    if is_flexible(header.api_key, header.api_version):
        out.append(0)
    return bytes(out)


def response_is_flexible(api_key: int, api_version: int) -> bool:
    """Tell whether the response's header has tagged fields.

    ApiVersions responses have the oldest header in every version, so that a client that sent an
    unknown version can read the error (KIP-511).
    """
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version)


def response_header(correlation_id: int, flexible: bool) -> bytes:
    """Return the bytes before a response's body."""
    header = _CORRELATION_ID.pack(correlation_id)
    return header + b"\0" if flexible else header


def read_response_header(frame: Buffer, flexible: bool) -> tuple[int, memoryview]:
    """Split a response frame into correlation id and body; raises WireError when it is short."""
    reader = Reader(frame)
    correlation_id = reader.int32()
    if flexible:
        reader.skip_tags()
    return correlation_id, reader.data[reader.position :]
