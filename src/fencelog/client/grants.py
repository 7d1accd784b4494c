"""What a claimant sends, what the answer means, and until when it may act: no clock, no waits.

A lease is counted from the sending of the request or renewal that the broker answered (O10). The
broker counts from its arrival, so the claimant's lease is over first.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from fencelog.errors import ClaimRefusedError, ErrorCode, RequestError
from fencelog.rpc.failures import failure
from fencelog.wire.messages.own import OwnRequest, OwnResource, OwnResponse
from fencelog.wire.own import LEASE_MS_MAX, LEASE_MS_MIN
from fencelog.wire.primitives import error_code

NEXT_GENERATION = -1
NO_EPOCH = -1
SHOWN_MAX = 3
"""Resources that a message names."""
DOUBT_PART = 1 / 2
STOP_PART = 2 / 3
OVER_PART = 9 / 10
"""The last tenth is for a timer that is late, and for clocks that run at different rates."""
REFUSALS = frozenset(
    {ErrorCode.RESOURCE_OWNED, ErrorCode.STALE_GENERATION, ErrorCode.CLAIM_IN_PROGRESS}
)
"""Who holds the resource, or held it last, is in the way."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease by the clock of the loop, in seconds.

    Attributes:
        sent_s: when the request or renewal was sent.
        length_s: for how long the claim lives from then on.
    """

    sent_s: float
    length_s: float

    @property
    def renew_at_s(self) -> float:
        """When the next renewal is sent: at a third."""
        return self.sent_s + self.length_s / 3

    @property
    def doubt_at_s(self) -> float:
        """When a connection that has not answered the renewal is given up."""
        return self.sent_s + self.length_s * DOUBT_PART

    @property
    def stop_at_s(self) -> float:
        """When a program that takes time to stop is told to, unless a renewal is answered."""
        return self.sent_s + self.length_s * STOP_PART

    @property
    def over_at_s(self) -> float:
        """When the claim counts as lost, unless a renewal is answered."""
        return self.sent_s + self.length_s * OVER_PART


def some_of(resources: Collection[str]) -> str:
    """Resources in a message: the first three, and how many more there are."""
    more = len(resources) - SHOWN_MAX
    return ", ".join(islice(resources, SHOWN_MAX)) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """What a claimant asks for.

    Attributes:
        resources: to claim, all or none; ``topic/partition`` names a partition.
        group: None: the owners of writes.
        generation: None: the one after the remembered one; 0 resets it (O2, O4).
        transactional_id: the name from which a transactional id is derived for each grant.
        lease_s: for how long the claim lives without a renewal; 0.5 to 900.
        holder: who claims, shown to others.
    """

    resources: tuple[str, ...]
    group: str | None = None
    generation: int | None = None
    transactional_id: str | None = None
    lease_s: float = 10.0
    holder: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a claim of nothing, a generation below 0, or no such lease."""
        if not self.resources:
            raise ValueError("a claim names at least one resource")
        if self.generation is not None and self.generation < 0:
            raise ValueError(f"generation {self.generation}: expected 0 or more")
        if not LEASE_MS_MIN <= self.lease_s * 1000 <= LEASE_MS_MAX:
            limits = f"{LEASE_MS_MIN / 1000:g} to {LEASE_MS_MAX / 1000:g}"
            raise ValueError(f"a lease of {self.lease_s:g} s: expected {limits} s")

    @property
    def key(self) -> str:
        """What selects the ownership shard (O6)."""
        return self.group or ""

    def __str__(self) -> str:
        """The claim in a message."""
        group = "" if self.group is None else f" in group {self.group}"
        return f"claim of {some_of(self.resources)}{group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """One resource of a grant."""

    generation: int
    epoch: int
    fence_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A claim as it was granted."""

    session: str
    lease_s: float
    transactional_id: str | None
    resources: Mapping[str, Owned]

    @property
    def highest(self) -> Owned:
        """The resource with the highest epoch."""
        return max(self.resources.values(), key=lambda owned: owned.epoch)

    def of(self, resource: str) -> Owned:
        """One resource. Raises ValueError if the claim does not have it."""
        found = self.resources.get(resource)
        if found is None:
            raise ValueError(f"{resource} is not in this claim of {some_of(self.resources)}")
        return found


class GrantFacts(ABC):
    """What both clients' claims say of their newest grant."""

    @property
    @abstractmethod
    def grant(self) -> Grant:
        """The newest grant; another one, with higher epochs, after a lost connection."""

    @property
    def epoch(self) -> int:
        """The epoch of the only resource; of several, the highest."""
        return self.grant.highest.epoch

    @property
    def generation(self) -> int:
        """The generation of the only resource; of several, of the one with the highest epoch."""
        return self.grant.highest.generation

    def token(self, resource: str) -> int:
        """The fencing token of a resource, for other stores: it grows with every grant (O3).

        A store that refuses a token below one that it has seen refuses an owner that was replaced.
        It is the resource's epoch. Raises ValueError if the claim does not have the resource.
        """
        return self.grant.of(resource).epoch

    def fence_offset(self, resource: str) -> int | None:
        """Where the grant is in the partition: all below was written before it (O9).

        None for a resource that is no partition. Raises ValueError if the claim does not have it.
        """
        offset = self.grant.of(resource).fence_offset
        return None if offset < 0 else offset

    @property
    def lease_s(self) -> float:
        """For how many seconds the claim lives without a renewal (O10)."""
        return self.grant.lease_s

    @property
    def transactional_id(self) -> str | None:
        """The transactional id of this grant, for any client; None if none was asked for.

        After a lost connection it is another one, and producers with the older one are fenced.
        """
        return self.grant.transactional_id


@dataclass(frozen=True, slots=True)
class Waiting:
    """The claim waits; so many others are before it."""

    place: int


def this_process() -> str:
    """The holder that others are shown by default: host and process."""
    return f"{os.uname().nodename}:{os.getpid()}"


def claim_options(
    resources: str | Iterable[str],
    *,
    group: str | None,
    generation: int | None,
    transactional_id: str | None,
    lease_s: float,
    holder: str | None,
) -> ClaimOptions:
    """The options of ``own``: one resource or several; without a holder this process."""
    return ClaimOptions(
        resources=(resources,) if isinstance(resources, str) else tuple(resources),
        group=group,
        generation=generation,
        transactional_id=transactional_id,
        lease_s=lease_s,
        holder=this_process() if holder is None else holder,
    )


def wait_seconds(wait: bool | float) -> float:
    """For how long ``own(…, wait=…)`` waits; infinity for True."""
    return math.inf if wait is True else float(wait)


def own_request(
    options: ClaimOptions, *, claim_id: str = "", wait_ms: int = 0, held: Grant | None = None
) -> OwnRequest:
    """Return the request of a claim; with ``held`` of the same claim again (O5).

    Then each resource has the generation that was recorded and the epoch that was held, so nobody
    is severed who was granted one since.
    """

    def wanted(name: str) -> OwnResource:
        if held is None:
            generation = NEXT_GENERATION if options.generation is None else options.generation
            return OwnResource(resource=name, generation=generation, prev_epoch=NO_EPOCH)
        owned = held.resources[name]
        return OwnResource(resource=name, generation=owned.generation, prev_epoch=owned.epoch)

    return OwnRequest(
        group=options.group,
        resources=[wanted(name) for name in options.resources],
        holder=options.holder,
        session_timeout_ms=round(options.lease_s * 1000),
        transactional_id_name=options.transactional_id,
        claim_id=claim_id,
        wait_ms=wait_ms,
    )


def read_answer(options: ClaimOptions, answer: OwnResponse) -> Grant | Waiting:
    """Return what was granted, or the place in the queue.

    Raises OwnershipLostError where the epoch held is no longer the current one (O5),
    ClaimRefusedError where an owner or its generation is in the way, RequestError for all else.
    """
    code = error_code(answer.error_code)
    if code is ErrorCode.CLAIM_WAITING:
        return Waiting(answer.place)
    if code is not ErrorCode.NONE:
        raise _refusal(options, code, answer)
    return Grant(
        session=answer.session or "",
        lease_s=answer.lease_ms / 1000,
        transactional_id=answer.transactional_id,
        resources={
            each.resource: Owned(
                generation=each.generation, epoch=each.epoch, fence_offset=each.fence_offset
            )
            for each in answer.resources
        },
    )


def _refusal(options: ClaimOptions, code: ErrorCode, answer: OwnResponse) -> RequestError:
    refused = next((each for each in answer.resources if each.error_code), None)
    detail = answer.error_message
    if refused is not None:
        code = error_code(refused.error_code)
        detail = refused.error_message or detail
    error = failure(code, str(options), detail)
    return ClaimRefusedError(code, error.text) if code in REFUSALS else error
