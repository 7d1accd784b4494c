"""One connection to one broker: ``Requester`` on a socket of the running loop."""

import asyncio
from collections.abc import Sequence
from struct import Struct
from typing import cast

from fencelog.errors import ErrorCode, RequestError, WireError, error_text
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.rpc.requester import Requester
from fencelog.types import Buffer
from fencelog.version import __version__
from fencelog.wire.api_versions import ApiKey
from fencelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

API_VERSIONS_VERSION = 3

_ERROR = Struct(">h")


class Connection(asyncio.BufferedProtocol):
    """An open connection. Made by ``connect``."""

    def __init__(self, address: str, client_id: str) -> None:
        """Prepare for ``connection_made``."""
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self._requester: Requester[asyncio.Future[memoryview]] = Requester(client_id)
        self._transport: asyncio.Transport | None = None
        self._closed: str | None = None
        self._ended = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def closed(self) -> bool:
        """Whether requests can no longer be sent."""
        return self._closed is not None

    def close(self, reason: str = "closed by the client") -> None:
        """Close now; requests in flight fail with NETWORK_EXCEPTION. Harmless twice."""
        if self._closed is None:
            self._closed = reason
        if self._transport is not None:
            self._transport.abort()
        self._ended.set()
        self._writable.set()
        for answer in self._requester.close():
            if not answer.done():
                answer.set_exception(self._lost())

    async def wait_closed(self) -> None:
        """Wait until requests can no longer be sent."""
        await self._ended.wait()

    def start(
        self, api_key: int, version: int, body: Sequence[Buffer]
    ) -> asyncio.Future[memoryview]:
        """Send a request now; the future answers with the response's body.

        Raises RequestError (NETWORK_EXCEPTION) when the connection is gone.
        """
        if self._transport is None or self._closed is not None:
            raise self._lost()
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        head: list[Buffer] = []
        for buffer in self._requester.request(api_key, version, body, answer):
            # Small pieces travel together; records go to the socket as they lie.
            if len(buffer) < 4096:
                head.append(buffer)
                continue
            if head:
                self._transport.write(b"".join(head))
                head = []
            self._transport.write(buffer)
        if head:
            self._transport.write(b"".join(head))
        return answer

    async def call(
        self, api_key: int, version: int, body: Sequence[Buffer], deadline: Deadline
    ) -> memoryview:
        """Send a request and wait for its answer; a late answer closes the connection.

        The connection is given up because whether the broker acted on the request is not known
        until it is asked again, on a connection that has nothing older in flight.
        """
        try:
            async with asyncio.timeout(deadline.left_s):
                await self._writable.wait()
        except TimeoutError:
            self.close(f"the broker read nothing within {deadline}")
        return await self.answer(self.start(api_key, version, body), deadline)

    async def answer(self, future: asyncio.Future[memoryview], deadline: Deadline) -> memoryview:
        """Wait for the answer of a request that ``start`` sent."""
        try:
            async with asyncio.timeout(deadline.left_s):
                return await future
        except TimeoutError:
            self.close(f"no response within {deadline}")
            raise self._lost() from None

    def _lost(self) -> RequestError:
        return failure(
            ErrorCode.NETWORK_EXCEPTION,
            f"connection to broker {self.address}",
            self._closed or "not connected",
        )

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not asserted: a transport of uvloop is one in all but its class.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        self.close(f"lost: {exc}" if exc else "closed by the broker")

    def pause_writing(self) -> None:
        """Let senders wait: the socket's buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let senders go on."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._requester.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Give a whole response to the request that waits for it."""
        try:
            response = self._requester.received(nbytes)
        except WireError as error:
            self.close(f"malformed response: {error}")
            return
        if response is not None and not response.sender.done():
            response.sender.set_result(response.body)


async def connect(host: str, port: int, client_id: str, deadline: Deadline) -> Connection:
    """Open a connection and ask what the broker speaks.

    Raises RequestError (NETWORK_EXCEPTION) when nobody listens, or nobody answers in time.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(f"{host}:{port}", client_id)
    try:
        try:
            async with asyncio.timeout(deadline.left_s):
                await loop.create_connection(lambda: connection, host, port)
        except OSError as error:
            raise failure(
                ErrorCode.NETWORK_EXCEPTION,
                f"cannot connect to broker {host}:{port}",
                _why(error) or f"no response within {deadline}",
            ) from error
        connection.versions = await _versions(connection, deadline)
    except BaseException:
        connection.close()
        raise
    return connection


def _why(error: OSError) -> str:
    """Why there is no connection; nothing for the end of our own wait."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error_text(error) if error.args else ""


async def _versions(connection: Connection, deadline: Deadline) -> dict[int, tuple[int, int]]:
    answer = await _ask_versions(connection, API_VERSIONS_VERSION, deadline)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        # What it lists is at most the versions of this request (KIP-511), and nothing before
        # Kafka 2.4.
        answer = await _ask_versions(connection, 0, deadline)
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}


async def _ask_versions(
    connection: Connection, version: int, deadline: Deadline
) -> ApiVersionsResponse:
    request = ApiVersionsRequest(
        client_software_name="fencelog", client_software_version=__version__
    )
    body = await connection.call(ApiKey.API_VERSIONS, version, [request.write(version)], deadline)
    # A broker that does not know this version says so in the oldest form of the answer.
    (error,) = _ERROR.unpack_from(body) if len(body) >= 2 else (0,)
    try:
        return ApiVersionsResponse.read(
            body, 0 if error == ErrorCode.UNSUPPORTED_VERSION else version
        )
    except WireError as wrong:
        connection.close(f"malformed response: {wrong}")
        raise failure(
            ErrorCode.NETWORK_EXCEPTION, f"{connection.address} is not a Kafka broker", str(wrong)
        ) from wrong
