"""Requests to an etcd of several members: the next one is asked where that cannot do harm.

A request that may have had its effect is never sent again, unless its effect is the same twice.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from grpc.aio import AioRpcError, UnaryStreamCall

from fencelog.adapters.etcd import messages
from fencelog.adapters.etcd.member import CallMetadata, Member
from fencelog.adapters.etcd.refusals import (
    NO_AUTHENTICATION,
    NO_USER,
    Meaning,
    RefusedError,
    meaning,
    reason,
    told,
)
from fencelog.errors import StorageError, UnknownOutcomeError

ATTEMPT_S = 2.0
"""For one request to one member, where another one can be asked after it."""
PAUSE_S = 0.1
"""Between two rounds over all members."""
_HAS_LEADER = ("hasleader", "true")
"""A member that has lost the leader says so at once."""
_Response = TypeVar("_Response", bound=Message)
WatchCall: TypeAlias = "UnaryStreamCall[messages.WatchRequest, messages.WatchResponse]"


class Tls(NamedTuple):
    """PEM files: whom to trust, and who we are."""

    ca_file: Path
    cert_file: Path | None = None
    key_file: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return them as gRPC takes them. Raises StorageError if a file cannot be read."""
        try:
            ca, key, cert = (
                None if path is None else path.read_bytes()
                for path in (self.ca_file, self.key_file, self.cert_file)
            )
        except OSError as error:
            raise StorageError(f"etcd: TLS file {error.filename}: {error.strerror}") from error
        return grpc.ssl_channel_credentials(ca, key, cert)


class User(NamedTuple):
    """Who asks, where etcd's authentication is enabled."""

    name: str
    password: str


class _ElsewhereError(Exception):
    """Nothing was sent to this member; another one, or the same one later, may be asked."""


class Members:
    """The members of one etcd, of which the first is asked until it fails."""

    def __init__(
        self, endpoints: Iterable[str], tls: Tls | None, user: User | None, deadline_s: float
    ) -> None:
        """``deadline_s``: of each request, over all members. Raises StorageError: TLS's files."""
        credentials = None if tls is None else tls.credentials()
        self._members = [Member(each, credentials) for each in endpoints]
        self._user = user
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self._deadline_s = deadline_s
        self._watches: dict[WatchCall, Member] = {}
        self._in_flight = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._is_closed = False

    async def ask(self, request: Message, response: type[_Response]) -> _Response:
        """Send a request whose effect is the same twice. Raises StorageError after the deadline."""
        return await self._tracked(request, response, repeatable=True)

    async def change(self, request: Message, response: type[_Response]) -> _Response:
        """Send a request that takes effect once at most.

        Raises StorageError if it has none, UnknownOutcomeError if it may have.
        """
        return await self._tracked(request, response, repeatable=False)

    async def begin_watch(self, request: messages.WatchRequest) -> "WatchCall | None":
        """Return a stream of answers from some member, however long that takes; None once closed.

        Raises RefusedError.
        """
        failures = 0
        while not self._is_closed:
            member = self._members[0]
            try:
                metadata = await self._prepared(member, self._deadline_s)
            except _ElsewhereError:
                failures += 1
                await self._next(member, failures)
                continue
            call = member.watch(request, metadata)
            self._watches[call] = member
            return call
        return None

    def end_watch(self, call: WatchCall) -> Member:
        """Give a stream up; return the member that it was from."""
        call.cancel()
        return self._watches.pop(call)

    async def lost_watch(self, member: Member, error: AioRpcError | None) -> None:
        """Go on to another member, after a pause; ``error``: what the stream died of.

        Raises RefusedError.
        """
        if error is not None:
            self._note(member, error)
            self._leave(member)
        await asyncio.sleep(PAUSE_S)

    async def close(self) -> None:
        """Close all channels after the requests in flight, each of which has its deadline."""
        self._is_closed = True
        for call in self._watches:
            call.cancel()
        await self._drained.wait()
        for member in self._members:
            await member.close()

    async def _tracked(
        self, request: Message, response: type[_Response], *, repeatable: bool
    ) -> _Response:
        if self._is_closed:
            raise StorageError("etcd: the store is closed")
        self._in_flight += 1
        self._drained.clear()
        try:
            return await self._send(request, response, repeatable=repeatable)
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._drained.set()

    async def _send(
        self, request: Message, response: type[_Response], *, repeatable: bool
    ) -> _Response:
        clock = asyncio.get_running_loop().time
        end = clock() + self._deadline_s
        said: dict[str, str] = {}
        failures = 0
        while (left := end - clock()) > 0:
            member = self._members[0]
            try:
                metadata = await self._prepared(member, left)
            except _ElsewhereError as error:
                said[member.address] = str(error)
            else:
                left = end - clock()
                attempt_s = min(left, ATTEMPT_S) if repeatable else left
                try:
                    return await member.send(request, response, attempt_s, metadata)
                except AioRpcError as error:
                    said[member.address] = told(member.address, error.details())
                    if self._note(member, error) is Meaning.UNKNOWN and not repeatable:
                        self._leave(member)
                        raise UnknownOutcomeError(
                            f"{said[member.address]}: the write may be stored, or be stored later"
                        ) from error
            failures += 1
            await self._next(member, failures)
        raise StorageError("; ".join(said.values()) or f"etcd: no answer in {self._deadline_s} s")

    async def _prepared(self, member: Member, left_s: float) -> CallMetadata:
        """Return what a request to this member carries, once there is a connection and a token."""
        try:
            await member.connect(left_s)
            return await self._authenticated(member, left_s)
        except AioRpcError as error:
            raise _ElsewhereError(told(member.address, error.details())) from error

    async def _authenticated(self, member: Member, left_s: float) -> CallMetadata:
        if self._user is None:
            return (_HAS_LEADER,)
        async with self._authenticating:
            if self._token is None:
                request = messages.AuthenticateRequest(
                    name=self._user.name, password=self._user.password
                )
                timeout_s = min(left_s, ATTEMPT_S)
                try:
                    answer = await member.send(
                        request, messages.AuthenticateResponse, timeout_s, (_HAS_LEADER,)
                    )
                    self._token = answer.token
                except AioRpcError as error:
                    if reason(error.details()) == NO_AUTHENTICATION:
                        self._token = ""
                    elif meaning(error.code(), error.details()) is Meaning.REFUSED:
                        raise RefusedError(member.address, error.details()) from error
                    else:
                        raise
            return (_HAS_LEADER, ("token", self._token)) if self._token else (_HAS_LEADER,)

    def _note(self, member: Member, error: AioRpcError) -> Meaning:
        """Take in what an answer says; raises RefusedError."""
        means = meaning(error.code(), error.details())
        if self._token == "" and reason(error.details()) == NO_USER:
            means = Meaning.TOKEN  # authentication was enabled since
        if means is Meaning.REFUSED:
            raise RefusedError(member.address, error.details()) from error
        if means is Meaning.TOKEN:
            self._token = None
        return means

    async def _next(self, member: Member, failures: int) -> None:
        """Let the next member be the first one; wait when all of them have failed."""
        self._leave(member)
        if failures % len(self._members) == 0:
            await asyncio.sleep(PAUSE_S)

    def _leave(self, member: Member) -> None:
        """Ask another member first, and end this one's watches, which then begin there, too."""
        if self._members[0] is member and len(self._members) > 1:
            self._members = [*self._members[1:], member]
            for call, where in self._watches.items():
                if where is member:
                    call.cancel()
