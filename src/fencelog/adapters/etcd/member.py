"""One member of an etcd: its channel, and whether a request can be sent to it."""

from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from fencelog.adapters.etcd import messages

CONNECT_S = 2.0
"""For a new connection to one member, until it has answered a first request."""
RESPONSE_BYTES_MAX = 64 << 20

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # etcd is in the broker's own network
    ("grpc.enable_retries", 0),  # what may be sent again is decided here
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_S * 1000)),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A member that is cut off does not close its connection. etcd bears a ping every 5 seconds.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
)
_METHODS: dict[type[Message], tuple[str, type[Message]]] = {
    messages.AuthenticateRequest: ("Auth/Authenticate", messages.AuthenticateResponse),
    messages.LeaseGrantRequest: ("Lease/LeaseGrant", messages.LeaseGrantResponse),
    messages.LeaseRevokeRequest: ("Lease/LeaseRevoke", messages.LeaseRevokeResponse),
    # A stream by its definition: this client's ends after one request, and etcd's after its answer.
    messages.LeaseKeepAliveRequest: ("Lease/LeaseKeepAlive", messages.LeaseKeepAliveResponse),
    messages.RangeRequest: ("KV/Range", messages.RangeResponse),
    messages.StatusRequest: ("Maintenance/Status", messages.StatusResponse),
    messages.TxnRequest: ("KV/Txn", messages.TxnResponse),
}
_Response = TypeVar("_Response", bound=Message)
CallMetadata = tuple[tuple[str, str], ...]


class Member:
    """One member of an etcd. Requests raise ``grpc.aio.AioRpcError``."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        """A channel that connects with the first request; in plain text without credentials."""
        self.address = address
        self._channel = (
            grpc.aio.insecure_channel(address, _OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, _OPTIONS)
        )
        self._calls: dict[type[Message], Any] = {}

    async def connect(self, timeout_s: float) -> None:
        """Return when there is a connection to etcd: so that a request that cannot be sent is none.

        Raises AioRpcError, whose details say what is there instead.
        """
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            timeout_s = min(timeout_s, CONNECT_S)
            await self.send(messages.StatusRequest(), messages.StatusResponse, timeout_s, ())

    async def send(
        self,
        request: Message,
        response: type[_Response],
        timeout_s: float,
        metadata: CallMetadata,
    ) -> _Response:
        """Send a request and return its answer."""
        kind = type(request)
        call = self._calls.get(kind)
        if call is None:
            method, answer = _METHODS[kind]
            assert answer is response, (kind, response)
            call = self._calls[kind] = self._channel.unary_unary(
                f"/etcdserverpb.{method}", kind.SerializeToString, response.FromString
            )
        return cast(_Response, await call(request, timeout=timeout_s, metadata=metadata))

    def watch(
        self, request: messages.WatchRequest, metadata: CallMetadata
    ) -> "grpc.aio.UnaryStreamCall[messages.WatchRequest, messages.WatchResponse]":
        """Begin a watch: a stream of answers to this one request."""
        watch: grpc.aio.UnaryStreamMultiCallable[messages.WatchRequest, messages.WatchResponse]
        watch = self._channel.unary_stream(
            "/etcdserverpb.Watch/Watch",
            messages.WatchRequest.SerializeToString,
            messages.WatchResponse.FromString,
        )
        return watch(request, metadata=metadata)

    async def close(self) -> None:
        """Close the channel; what is being asked raises CancelledError."""
        await self._channel.close()
