"""Passes a frame to its handler: reads the header, checks the version, decodes and encodes."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from fencelog.broker.context import Broker
from fencelog.broker.network.connection import Answer, Connection, Request
from fencelog.broker.network.replies import Reply
from fencelog.broker.network.response_budget import SMALL_BYTES
from fencelog.errors import WireError
from fencelog.types import Buffer
from fencelog.wire.api_versions import ApiKey, BrokerApiKey
from fencelog.wire.headers import read_request_header, response_header, response_is_flexible
from fencelog.wire.message import Message
from fencelog.wire.primitives import REQUEST_ITEMS_MAX

Q = TypeVar("Q", bound=Message)
PLAIN_FRAME_BYTES_MAX = 1024 * 1024
"""For requests without records; enough for tens of thousands of partition names."""
LONG_BODY_BYTES = 16 * 1024
"""Above this, decoding, handling and encoding each get a time slice of their own."""
FRAME_BYTES_MAX: Mapping[int, int] = {ApiKey.OWN: 8 * 1024 * 1024}
"""A claim of far too many resources is told so (``handlers/ownership``), and is not decoded."""
RawHandler = Callable[[Broker, Request], Answer]


def respond(request: Request, *body: Buffer) -> list[Buffer]:
    """Return the reply: the request's response header, then these body buffers."""
    header = request.header
    flexible = response_is_flexible(header.api_key, header.api_version)
    return [response_header(header.correlation_id, flexible), *body]


def message_handler(
    kind: type[Q],
    handle: Callable[[Broker, Q, Request], Awaitable[Message]],
    response_bytes: Callable[[Broker, Q], int] | None = None,
) -> RawHandler:
    """Wrap a handler of decoded messages; while it waits, so does the connection's next request.

    It waits at first until the budget for responses has ``response_bytes``, where that is given; so
    large a response is encoded in a time slice of its own.
    """

    async def granted(broker: Broker, request: Request, decoded: Q) -> Message:
        if response_bytes is None:
            return await handle(broker, decoded, request)
        wanted = response_bytes(broker, decoded)
        await request.connection.responses.grant(wanted, least=wanted)
        response = await handle(broker, decoded, request)
        if wanted > SMALL_BYTES:
            await broker.time_slices.next()
        return response

    async def run(broker: Broker, request: Request, decoded: Q) -> Reply:
        response = await granted(broker, request, decoded)
        return respond(request, response.write(request.header.api_version))

    async def run_long(broker: Broker, request: Request) -> Reply:
        await broker.time_slices.next()
        decoded = read(request)
        await broker.time_slices.next()
        response = await granted(broker, request, decoded)
        await broker.time_slices.next()
        return respond(request, response.write(request.header.api_version))

    def read(request: Request) -> Q:
        return kind.read(request.body, request.header.api_version, REQUEST_ITEMS_MAX)

    def raw(broker: Broker, request: Request) -> Answer:
        if len(request.body) > LONG_BODY_BYTES:
            return run_long(broker, request)
        return run(broker, request, read(request))

    return raw


class Dispatcher:
    """Finds the handler of a request."""

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[ApiKey, RawHandler],
        of_brokers: Mapping[BrokerApiKey, RawHandler] | None = None,
    ) -> None:
        """Take exactly one handler for each API key; in a cluster also for those of brokers."""
        assert handlers.keys() == set(ApiKey), handlers.keys() ^ set(ApiKey)
        self._broker = broker
        self._handlers: dict[int, tuple[RawHandler, int, int]] = {
            int(key): (handler, *key.versions)
            for key, handler in (*handlers.items(), *(of_brokers or {}).items())
        }

    def __call__(self, frame: bytearray, connection: Connection) -> Answer:
        """Answer one frame. Raises WireError where Kafka, too, closes the connection."""
        header, body = read_request_header(memoryview(frame))
        entry = self._handlers.get(header.api_key)
        if entry is None:
            raise WireError(f"unknown api key {header.api_key}")
        handler, minimum, maximum = entry
        if not minimum <= header.api_version <= maximum and header.api_key != ApiKey.API_VERSIONS:
            raise WireError(
                f"{_name(header.api_key)} version {header.api_version} is not supported: "
                f"use {minimum} to {maximum}"
            )
        if len(frame) > PLAIN_FRAME_BYTES_MAX and header.api_key != ApiKey.PRODUCE:
            # Only records are large; any other request of this size would decode to many objects.
            bytes_max = FRAME_BYTES_MAX.get(header.api_key, PLAIN_FRAME_BYTES_MAX)
            if len(frame) > bytes_max:
                name = _name(header.api_key)
                raise WireError(f"{name} request of {len(frame)} bytes; the limit is {bytes_max}")
        connection.client_id = header.client_id
        return handler(self._broker, Request(header, body, connection))


def _name(api_key: int) -> str:
    return (BrokerApiKey if api_key in set(BrokerApiKey) else ApiKey)(api_key).name
