"""Requests about ownership over a peer's connection, and what is answered."""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from fencelog.errors import ErrorCode
from fencelog.wire.messages.attach_owner import AttachOwnerRequest, AttachOwnerResponse
from fencelog.wire.messages.describe_ownership import (
    DescribeOwnershipRequest,
    DescribeOwnershipResponse,
    OwnershipState,
)
from fencelog.wire.messages.own import OwnRequest, OwnResource, OwnResponse
from fencelog.wire.messages.release_ownership import (
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.messages.renew_ownership import RenewOwnershipRequest, RenewOwnershipResponse
from fencelog.wire.messages.watch_ownership import WatchOwnershipRequest, WatchOwnershipResponse
from tests.support.node import Peer

LEASE_MS = 30_000
T = TypeVar("T")


@dataclass
class Claimant:
    """One connection that claims, and what it was granted last."""

    peer: Peer
    group: str | None = None
    holder: str = "claimant"
    session: str = ""
    epochs: dict[str, int] = field(default_factory=dict)

    def send_own(
        self,
        *resources: str | tuple[str, int] | tuple[str, int, int],
        lease_ms: int = LEASE_MS,
        name: str | None = None,
        claim_id: str = "",
        wait_ms: int = 0,
    ) -> None:
        """Claim, and do not wait: each resource by its name, generation and previous epoch."""
        asked = [(each,) if isinstance(each, str) else each for each in resources]
        request = OwnRequest(
            group=self.group,
            resources=[
                OwnResource(
                    resource=each[0],
                    generation=each[1] if len(each) > 1 else -1,
                    prev_epoch=each[2] if len(each) > 2 else -1,
                )
                for each in asked
            ],
            holder=self.holder,
            session_timeout_ms=lease_ms,
            transactional_id_name=name,
            claim_id=claim_id,
            wait_ms=wait_ms,
        )
        self.peer.send(request.API_KEY, 0, request.write(0))

    async def owned(self) -> OwnResponse:
        """The answer to a claim."""
        answer = OwnResponse.read(await self.peer.answer(OwnRequest.API_KEY, 0), 0)
        if answer.error_code == ErrorCode.NONE:
            self.session = answer.session or ""
            self.epochs = {each.resource: each.epoch for each in answer.resources}
        return answer

    async def own(
        self, *resources: str | tuple[str, int] | tuple[str, int, int], **how: object
    ) -> OwnResponse:
        self.send_own(*resources, **how)  # type: ignore[arg-type]
        return await self.owned()

    @property
    def epoch(self) -> int:
        return max(self.epochs.values())

    async def attach(
        self, peer: Peer, *, session: str | None = None, epoch: int | None = None
    ) -> AttachOwnerResponse:
        """Attach another connection."""
        request = AttachOwnerRequest(
            group=self.group,
            session=self.session if session is None else session,
            epoch=self.epoch if epoch is None else epoch,
        )
        return await peer.ask(request, 0, AttachOwnerResponse)

    async def renew(self, peer: Peer | None = None) -> RenewOwnershipResponse:
        request = RenewOwnershipRequest(group=self.group, session=self.session, epoch=self.epoch)
        return await (peer or self.peer).ask(request, 0, RenewOwnershipResponse)

    async def release(self, peer: Peer | None = None) -> ReleaseOwnershipResponse:
        request = ReleaseOwnershipRequest(group=self.group, session=self.session)
        return await (peer or self.peer).ask(request, 0, ReleaseOwnershipResponse)


async def described(peer: Peer, *resources: str, group: str | None = None) -> list[OwnershipState]:
    request = DescribeOwnershipRequest(group=group, resources=list(resources) or None)
    answer = await peer.ask(request, 0, DescribeOwnershipResponse)
    assert answer.error_code == 0, answer.error_message
    return answer.resources


async def until_state(
    peer: Peer, resource: str, state: str, group: str | None = None
) -> OwnershipState:
    """Watch until a resource is in a state."""
    seen = -1
    async with asyncio.timeout(10):
        while True:
            request = WatchOwnershipRequest(
                group=group, resources=[resource], seen_revision=seen, max_wait_ms=10_000
            )
            answer = await peer.ask(request, 0, WatchOwnershipResponse)
            assert answer.error_code == 0, answer.error_message
            seen = answer.revision
            for each in answer.resources:
                if each.state == state:
                    return each


async def closed(peer: Peer) -> None:
    """Return when the broker has closed a connection, without another answer on it."""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            assert await peer._reader.read(1) == b""


class BlockingClaimant:
    """A claim for tests without an event loop: one connection, on which nothing else is sent."""

    def __init__(self, address: str, *, group: str | None = None, holder: str = "claimant") -> None:
        """Connect."""
        host, _, port = address.rpartition(":")
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        peer = self._run(self._stack.enter_async_context(Peer.at(host, int(port))))
        self._claimant = Claimant(peer, group, holder)

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(doing)

    def own(self, *resources: str, name: str | None = None, lease_ms: int = 10 * LEASE_MS) -> str:
        """Claim; return the transactional id, which is empty without a name. Preempts."""
        answer = self._run(self._claimant.own(*resources, name=name, lease_ms=lease_ms))
        assert answer.error_code == 0, answer
        return answer.transactional_id or ""

    def release(self) -> None:
        """End the claim; returns once every log has its end."""
        claimant = self._claimant
        answer = self._run(claimant.release())
        assert answer.error_code == 0, answer
        for resource in claimant.epochs:
            self._run(until_state(claimant.peer, resource, "free", claimant.group))

    def close(self) -> None:
        """Close the connection."""
        self._run(self._stack.aclose())
        self._runner.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()
