"""Whether a claim is granted: rules O1, O2, O4, O5 and O6, read from the state; nothing changes."""

from dataclasses import dataclass

from fencelog.coordination.ownership.model import (
    NEXT_GENERATION,
    NO_EPOCH,
    Claim,
    OwnAnswer,
    ResourceAnswer,
    Wanted,
)
from fencelog.coordination.ownership.state import Grant, Phase, Resource
from fencelog.coordination.ownership.table import OwnershipTable
from fencelog.errors import ErrorCode
from fencelog.types import Offset
from fencelog.wire.own import producers_key

_NEVER_CLAIMED = Resource(generation=0, epoch=0, revision=Offset(-1))
_RESET = 0
GENERATION_MAX = 1 << 62
"""So that the one after it has room in 64 bits."""

# A claim has one error: what no repetition of it can change comes first.
_PRECEDENCE = (
    ErrorCode.OWNER_FENCED,
    ErrorCode.STALE_GENERATION,
    ErrorCode.RESOURCE_OWNED,
    ErrorCode.CLAIM_IN_PROGRESS,
)


def producers_key_of(claim: Claim) -> str | None:
    """Return the resource that counts the epochs of the claim's transactional id, if it asks."""
    return None if claim.name is None else producers_key(claim.group, claim.name)


def all_wanted(claim: Claim) -> tuple[Wanted, ...]:
    """Return what a claim needs: its resources, and last that of its transactional id.

    That one has no generation of its own: whoever may have the resources may have the id.
    """
    key = producers_key_of(claim)
    return claim.wanted if key is None else (*claim.wanted, Wanted(key))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the state says of a claim.

    Attributes:
        error: NONE if it may be granted, or may wait.
        owners: the live owners that it severs, or waits for.
    """

    error: ErrorCode
    resources: tuple[ResourceAnswer, ...]
    owners: tuple[Grant, ...]

    def refusal(self) -> OwnAnswer:
        """The answer to a claim that is refused."""
        assert self.error is not ErrorCode.NONE, self
        return OwnAnswer(error=self.error, resources=self.resources)


def judge(claim: Claim, table: OwnershipTable) -> Verdict:
    """Tell whether a claim may be granted, and whom it severs then."""
    wanted = all_wanted(claim)
    owners = [table.owner(claim.group, each.resource) for each in wanted]
    states = [table.resource(claim.group, each.resource) or _NEVER_CLAIMED for each in wanted]
    # O5 is judged for all of them before anything else, and before anybody is severed.
    errors = [_fenced_by_epoch(each, state) for each, state in zip(wanted, states, strict=True)]
    if not any(errors):
        errors = [
            _refused(*each, waits=claim.waits) for each in zip(wanted, states, owners, strict=True)
        ]
    refused = set(errors)
    resources = tuple(
        ResourceAnswer(
            resource=each.resource,
            error=error,
            generation=state.generation,
            epoch=state.epoch or NO_EPOCH,
            holder=None if owner is None else owner.holder,
        )
        for each, state, owner, error in zip(wanted, states, owners, errors, strict=True)
        if error is not ErrorCode.NONE or each.resource != producers_key_of(claim)
    )
    live = {owner.session: owner for owner in owners if owner is not None}
    return Verdict(
        error=next((each for each in _PRECEDENCE if each in refused), ErrorCode.NONE),
        resources=resources,
        owners=tuple(live.values()),
    )


def _fenced_by_epoch(wanted: Wanted, state: Resource) -> ErrorCode:
    """O5: whoever held it may go on only if nobody else has held it since."""
    is_current = wanted.prev_epoch in (NO_EPOCH, state.epoch or None)
    return ErrorCode.NONE if is_current else ErrorCode.OWNER_FENCED


def _refused(wanted: Wanted, state: Resource, owner: Grant | None, *, waits: bool) -> ErrorCode:
    if owner is not None and owner.phase is Phase.GRANTING and not waits:
        return ErrorCode.CLAIM_IN_PROGRESS
    if wanted.generation in (NEXT_GENERATION, _RESET) or wanted.generation >= state.generation:
        return ErrorCode.NONE
    return ErrorCode.STALE_GENERATION if owner is None else ErrorCode.RESOURCE_OWNED


def next_generation(wanted: Wanted, state: Resource | None) -> int:
    """The generation to record (O4): the claimant's, or the one after the remembered one."""
    if wanted.generation != NEXT_GENERATION:
        return wanted.generation
    return 1 if state is None else state.generation + 1
