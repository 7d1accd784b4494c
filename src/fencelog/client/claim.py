"""A claim of ownership: granted, renewed, claimed again after a lost connection, and lost at last.

The broker ends a claim with the connection that it came on, so that connection carries nothing
else. Producers and readers of the claim have their own, each of which attaches before anything
else is sent on it (O7).

After a lost connection the same claim is made again with the epochs that it held: it is granted
only if nobody else was granted one since (O5). Until that is known, ``check`` waits.
"""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self

from fencelog.client.cluster import OWNERSHIP, Cluster
from fencelog.client.grants import (
    ClaimOptions,
    Grant,
    GrantFacts,
    Lease,
    Waiting,
    own_request,
    read_answer,
)
from fencelog.client.retry import RETRIABLE, STALE_ROUTE, Backoff, again, retrying
from fencelog.errors import (
    ClaimRefusedError,
    ErrorCode,
    FencelogError,
    OwnershipLostError,
    RequestError,
)
from fencelog.rpc.connection import Connection, connect
from fencelog.rpc.deadline import Deadline
from fencelog.rpc.failures import failure
from fencelog.wire.messages.attach_owner import AttachOwnerRequest, AttachOwnerResponse
from fencelog.wire.messages.own import OwnResponse
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.messages.renew_ownership import RenewOwnershipRequest, RenewOwnershipResponse
from fencelog.wire.primitives import error_code

REACH_S_MIN = 0.5
Placed = Callable[[int], None]
"""Is told how many claims are before one that waits."""
Lost = Callable[[OwnershipLostError], None]


class Claim(GrantFacts):
    """One claim and its connections. Belongs to one event loop.

    Attributes:
        connections: those of its producers and readers, attached.
        lost: set when the claim is lost, for good.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ClaimOptions,
        on_waiting: Placed | None = None,
    ) -> None:
        """Nothing is sent before ``open``."""
        self._cluster, self._options, self._on_waiting = cluster, options, on_waiting
        self._on_lost: list[Lost] = []
        self.connections = Cluster(cluster.options, self._attach)
        self.lost = asyncio.Event()
        self._home: Connection | None = None
        # Where a request to claim was sent; it becomes the home of what it is granted.
        self._next: Connection | None = None
        self._grant: Grant | None = None
        self._lease = Lease(0.0, 0.0)
        self._error: OwnershipLostError | None = None
        self._trouble = ""
        self._changed = asyncio.Event()
        self._guards: set[asyncio.Timeout] = set()
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        """Resources and group, the epoch, and whether it is live, lost or released."""
        if self._grant is None:
            return f"<{self._options}, not granted>"
        ended = "lost" if self.lost.is_set() else "released"
        state = "live" if self._error is None else ended
        return f"<{self._options}, epoch {self.epoch}, {state}>"

    @property
    def options(self) -> ClaimOptions:
        """What was asked for."""
        return self._options

    @property
    def group(self) -> str:
        """The group of the claim. Raises FencelogError for a claim of writes."""
        if self._options.group is None:
            raise FencelogError("this claim has no group; name one with own(…, group=NAME)")
        return self._options.group

    @property
    def grant(self) -> Grant:
        """The newest grant; another one, with higher epochs, after a lost connection."""
        assert self._grant is not None, "the claim is opened first"
        return self._grant

    @property
    def lease(self) -> Lease:
        """The lease as the last answered renewal left it."""
        return self._lease

    async def open(self, wait_s: float = 0.0) -> Self:
        """Claim; returns once granted.

        ``wait_s``: how long to wait until the resources are free, without severing anybody;
        infinity: without limit. Raises ClaimRefusedError, and RequestError for all else.
        """
        try:
            grant, sent_s = await self._first_grant(wait_s)
            self._keep_grant(grant, sent_s)
            if asyncio.get_running_loop().time() >= self._lease.renew_at_s:
                # It waited in the broker, or for the end of the transactions of an older owner.
                await self._renew(math.inf)
        except BaseException:
            self._disconnect("the claim was not granted")
            raise
        self._task = asyncio.create_task(self._keep())
        self._watch()
        return self

    def on_lost(self, callback: Lost) -> None:
        """Call this in the event loop when the claim is lost; at once where it is lost already.

        It must not block.
        """
        self._on_lost.append(callback)
        if self.lost.is_set() and self._error is not None:
            asyncio.get_running_loop().call_soon(callback, self._error)

    async def check(self) -> None:
        """Return if this claim owns its resources now; raise OwnershipLostError if not.

        After a lost connection it waits until that is known, at most to the end of the lease.
        """
        while True:
            if self._error is None and asyncio.get_running_loop().time() >= self._lease.over_at_s:
                # The process stood still: the timer has not run yet.
                self._lease_is_over()
            if self._error is not None:
                raise again(self._error) from self._error
            if self._home is not None and not self._home.closed:
                return
            await self._changed.wait()

    def wait_change(self) -> Coroutine[Any, Any, bool]:
        """Wait until the lease is longer, or the claim is granted again or lost.

        Changes count from this call on, also before the first step of what it returns.
        """
        return self._changed.wait()

    @asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        """Run a block as the owner: it is cancelled when the claim is lost, before the lease ends.

        Raises OwnershipLostError then, and where the claim is lost at the beginning or the end.
        """
        await self.check()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._guards.add(limit)
                try:
                    yield
                finally:
                    self._guards.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
        await self.check()

    async def release(self) -> None:
        """End the claim, so that its resources are free at once. Harmless twice, and once lost."""
        task, self._task = self._task, None
        if task is None:
            return
        home, is_held = self._home, self._error is None
        # The connections of producers and readers go first: what they sent is the owner's.
        self.connections.disconnect("the claim is released")
        if is_held:
            self._error = self._loss("it was released")
            self._signal()  # a connection may wait for the claim to be attached to it
        task.cancel()
        try:
            await asyncio.wait([task])
            if is_held and home is not None and not home.closed:
                # Without an answer, closing the connection ends the claim.
                with suppress(RequestError):
                    await self._release(home)
        finally:
            self._disconnect("the claim is released")
        # One iteration of the loop lets the transports close their sockets.
        await asyncio.sleep(0)

    # --- the grant

    async def _first_grant(self, wait_s: float) -> tuple[Grant, float]:
        cluster = self._cluster
        wait = Deadline(wait_s)
        claim_id = os.urandom(16).hex()
        # A lease is counted from the request, also from one that waited: so it waits for a part.
        poll_s = min(self._options.lease_s / 3, cluster.options.request_timeout_s / 2)
        place: int | None = None
        while True:
            wait_ms = 0
            if wait_s:
                # 0 would claim at once, and sever. The first one asks for the place.
                this_s = 0.0 if place is None else min(poll_s, wait.left_s)
                wait_ms = max(int(this_s * 1000), 1)
            # An answer is under way when the wait ends.
            deadline = Deadline(max(wait.left_s, cluster.deadline().left_s))
            attempt = partial(self._own, deadline, claim_id, wait_ms)
            answer, sent_s = await retrying(attempt, deadline, self._stale_coordinator)
            if not isinstance(answer, Waiting):
                return answer, sent_s
            if answer.place != place and self._on_waiting is not None:
                self._on_waiting(answer.place)
            place = answer.place
            if wait.passed:
                what = f"{self._options}: still waiting after {wait}"
                raise ClaimRefusedError(
                    ErrorCode.CLAIM_WAITING, f"{what}, {place} claims before this one"
                )

    async def _own(
        self, deadline: Deadline, claim_id: str = "", wait_ms: int = 0, held: Grant | None = None
    ) -> tuple[Grant | Waiting, float]:
        """Ask once; return the answer and when it was asked for."""
        reach_s = self._cluster.options.request_timeout_s
        if held is not None:
            # A broker that does not answer must not use up the time of another attempt.
            reach_s = max(held.lease_s / 5, REACH_S_MIN)
        broker = await self._reach(deadline.within(reach_s))
        request = own_request(self._options, claim_id=claim_id, wait_ms=wait_ms, held=held)
        sent_s = asyncio.get_running_loop().time()
        answer = await self._cluster.ask(broker, request, OwnResponse, deadline)
        return read_answer(self._options, answer), sent_s

    async def _reach(self, deadline: Deadline) -> Connection:
        """Return a connection of the claim's own to the broker of its shard."""
        if self._next is None or self._next.closed:
            cluster = self._cluster
            address = await cluster.coordinator_address(OWNERSHIP, self._options.key, deadline)
            self._next = await connect(*address, cluster.options.client_id, deadline)
        return self._next

    def _stale_coordinator(self) -> None:
        self._cluster.forget_coordinator(OWNERSHIP, self._options.key)
        for connection in (self._home, self._next):
            if connection is not None:
                connection.close("the ownership shard is looked up again")

    def _keep_grant(self, grant: Grant, sent_s: float) -> None:
        self._grant, self._home, self._next = grant, self._next, None
        # Connections of an earlier grant are not the owner's any more.
        self.connections.disconnect("the claim was granted again")
        self._extend(Lease(sent_s, grant.lease_s))

    def _extend(self, lease: Lease) -> None:
        self._lease = lease
        if self._over is not None:
            self._over.cancel()
        self._over = None
        if self._task is not None:
            self._watch()
        self._signal()

    def _watch(self) -> None:
        """Lose the claim when the lease is over."""
        loop = asyncio.get_running_loop()
        self._over = loop.call_at(self._lease.over_at_s, self._lease_is_over)

    # --- keeping it

    async def _keep(self) -> None:
        """Renew until the claim is lost or released; however it ends, a held claim is lost then."""
        backoff = Backoff()
        why = "the client is closed"
        try:
            while self._error is None:
                try:
                    await self._once()
                    backoff = Backoff()
                except RequestError as error:
                    if error.code not in RETRIABLE:
                        if not isinstance(error, OwnershipLostError):
                            error = self._loss(error.text)
                        self._lose(error)
                        return
                    self._trouble = error.text
                    if error.code in STALE_ROUTE:
                        self._stale_coordinator()
                    await backoff.wait(Deadline(math.inf))
        except Exception as error:
            why = f"nothing renews it after {error!r}"
            raise
        finally:
            if self._error is None:
                self._lose(self._loss(why))

    async def _once(self) -> None:
        """Renew when it is time, or claim again once the connection is lost. Raises RequestError.

        One renewal is sent, and its answer awaited to the end of the lease: a broker that is slow
        is not left for another connection before half of the lease is over.
        """
        home, loop = self._home, asyncio.get_running_loop()
        if home is None or home.closed:
            held = self.grant
            limit = Deadline(self._lease.over_at_s - loop.time())
            answer, sent_s = await self._own(limit, held=held)
            if isinstance(answer, Waiting):
                what = f"claim of the {self._described()} again"
                raise failure(ErrorCode.CLAIM_WAITING, what, "it waits, and asked not to")
            self._keep_grant(answer, sent_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._lease.renew_at_s):
                await home.wait_closed()
                return
        lease = self._lease
        await self._renew(lease.doubt_at_s if loop.time() < lease.doubt_at_s else lease.over_at_s)

    async def _renew(self, until_s: float) -> None:
        """Renew once; a connection without an answer by then is given up."""
        home = self._home
        assert home is not None
        sent_s = asyncio.get_running_loop().time()
        request = RenewOwnershipRequest(
            group=self._options.group, session=self.grant.session, epoch=self.grant.highest.epoch
        )
        limit = Deadline(until_s - sent_s)
        answer = await self._cluster.ask(home, request, RenewOwnershipResponse, limit)
        self._refuse(answer.error_code, "renewal", answer.error_message)
        self._extend(Lease(sent_s, answer.lease_ms / 1000))

    def _refuse(self, code: int, what: str, detail: str | None) -> None:
        """Raise RequestError for an error; OwnershipLostError if the claim has ended."""
        if code:
            raise failure(error_code(code), f"{what} of the {self._described()}", detail)

    async def _attach(self, connection: Connection, deadline: Deadline) -> None:
        """Make a new connection the owner's. Raises OwnershipLostError once the claim is lost."""
        await self.check()
        grant = self.grant
        request = AttachOwnerRequest(
            group=self._options.group, session=grant.session, epoch=grant.highest.epoch
        )
        answer = await self._cluster.ask(connection, request, AttachOwnerResponse, deadline)
        if grant is not self._grant or self._home is None or self._home.closed:
            what = f"attach of a connection to the {self._described()}"
            raise failure(ErrorCode.NETWORK_EXCEPTION, what, "it is claimed again meanwhile")
        try:
            self._refuse(answer.error_code, "attach of a connection", answer.error_message)
        except OwnershipLostError as error:
            self._lose(error)
            raise

    async def _release(self, home: Connection) -> None:
        request = ReleaseOwnershipRequest(group=self._options.group, session=self.grant.session)
        limit = Deadline(min(self._options.lease_s, self._cluster.options.request_timeout_s))
        answer = await self._cluster.ask(home, request, ReleaseOwnershipResponse, limit)
        self._refuse(answer.error_code, "release", answer.error_message)

    # --- its end

    def _lease_is_over(self) -> None:
        why = f"no renewal was answered within its lease of {self._lease.length_s:g} s"
        trouble = f" ({self._trouble})" if self._trouble else ""
        self._lose(self._loss(why + trouble))

    def _loss(self, why: str) -> OwnershipLostError:
        error = failure(ErrorCode.OWNER_FENCED, f"the {self._described()} is lost", why)
        assert isinstance(error, OwnershipLostError)
        return error

    def _described(self) -> str:
        """The claim with generation and epoch."""
        owned = self.grant.highest
        return f"{self._options} (generation {owned.generation}, epoch {owned.epoch})"

    def _lose(self, error: OwnershipLostError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._disconnect("the claim is lost")
        now = asyncio.get_running_loop().time()
        for guard in self._guards:
            guard.reschedule(now)
        self.lost.set()
        self._signal()
        for callback in self._on_lost:
            asyncio.get_running_loop().call_soon(callback, error)

    def _disconnect(self, reason: str) -> None:
        if self._over is not None:
            self._over.cancel()
        self.connections.disconnect(reason)
        for connection in (self._home, self._next):
            if connection is not None:
                connection.close(reason)

    def _signal(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
