"""Ownership: claims, their leases, and who holds what (O1 to O10)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from heapq import nsmallest
from typing import Any, TypeVar

from fencelog.broker.context import Broker
from fencelog.broker.coordinators.outcomes import shards_here
from fencelog.broker.dispatch import RawHandler, respond
from fencelog.broker.handlers.ownership_checks import (
    CLAIM_RESOURCES_MAX,
    check_claim,
    check_group,
    check_names,
    explain,
    explained,
    refused_partitions,
    too_many,
)
from fencelog.broker.network.connection import Answer, Connection, Request
from fencelog.coordination.ownership.model import (
    Claim,
    OwnAnswer,
    OwnershipState,
    ResourceAnswer,
    Wanted,
)
from fencelog.coordination.ownership.progress import FENCED
from fencelog.coordination.ownership.shard import OwnershipShard
from fencelog.coordination.shard import Decision
from fencelog.errors import ErrorCode, LimitError, NotLeaderError, RequestError
from fencelog.types import Instant
from fencelog.wire.messages.attach_owner import AttachOwnerRequest, AttachOwnerResponse
from fencelog.wire.messages.describe_ownership import (
    DescribeOwnershipRequest,
    DescribeOwnershipResponse,
)
from fencelog.wire.messages.describe_ownership import OwnershipState as Described
from fencelog.wire.messages.own import OwnRequest, OwnResponse
from fencelog.wire.messages.release_ownership import (
    ReleasedResource,
    ReleaseOwnershipRequest,
    ReleaseOwnershipResponse,
)
from fencelog.wire.messages.renew_ownership import RenewOwnershipRequest, RenewOwnershipResponse
from fencelog.wire.messages.watch_ownership import (
    WatchedOwnership,
    WatchOwnershipRequest,
    WatchOwnershipResponse,
)
from fencelog.wire.primitives import STRING_BYTES_MAX, Reader

WAIT_MS_MAX = 60_000
"""A request waits no longer: then the broker notices a peer behind whose back others wait."""
RESOURCE_BYTES_MIN = 18
"""Of a resource in a claim: an empty name, two numbers, no tagged fields."""
PAGE_MAX = 1_000
"""Resources in one answer of Describe."""
PAGE_AT_ONCE = 20
"""A page of more is built and encoded in a time slice of its own."""
ENTRY_BYTES = 1024
"""What one resource of an answer takes, decoded and encoded, with names as long as most are."""

Q = TypeVar("Q")
A = TypeVar("A")
Handler = Callable[[Broker, Q, Request], Awaitable[A]]


def _refusing(kind: Callable[..., A]) -> Callable[[Handler[Q, A]], Handler[Q, A]]:
    """Let a handler raise what it refuses; the response then has the error and its text."""

    def wrap(handle: Handler[Q, A]) -> Handler[Q, A]:
        @wraps(handle)
        async def answer(broker: Broker, message: Q, request: Request) -> A:
            try:
                return await handle(broker, message, request)
            except RequestError as refused:
                return kind(error_code=refused.code, error_message=refused.text)
            except NotLeaderError as refused:
                error = refused.coordinator_error
                return kind(error_code=error, error_message=explain(error))

        return answer

    return wrap


def bounded(handle: RawHandler) -> RawHandler:
    """Refuse a claim of too many resources before they are decoded, and one with too long a name.

    Without it the connection would be closed, as for any other request beyond the limits.
    """

    def checked(broker: Broker, request: Request) -> Answer:
        version = request.header.api_version
        try:
            _read_bounded(request)
        except LimitError as error:
            refused = OwnResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=str(error))
            return respond(request, refused.write(version))
        except RequestError as error:
            refused = OwnResponse(error_code=error.code, error_message=error.text)
            return respond(request, refused.write(version))
        return handle(broker, request)

    return checked


def _read_bounded(request: Request) -> None:
    """Raise RequestError for too many resources, LimitError for a name longer than strings are."""
    reader = Reader(request.body)
    reader.nullable_string(flexible=True)
    count = reader.array_length(flexible=True, item_bytes_min=RESOURCE_BYTES_MIN)
    if count > CLAIM_RESOURCES_MAX:
        raise too_many(count)
    if len(request.body) > STRING_BYTES_MAX:
        OwnRequest.read(request.body, request.header.api_version)


@_refusing(OwnResponse)
async def own(broker: Broker, message: OwnRequest, request: Request) -> OwnResponse:
    """Claim resources, all or none; answered once the grant is complete (O9) or the wait over."""
    check_claim(message)
    names = [each.resource for each in message.resources]
    refused = refused_partitions(broker, message.group, names)
    if refused:
        return _own_response(OwnAnswer(error=refused[0].error, resources=tuple(refused)))
    connection = request.connection
    _check_unclaimed(broker, connection, message.claim_id)
    claim = Claim(
        group=message.group,
        wanted=tuple(
            Wanted(each.resource, each.generation, each.prev_epoch) for each in message.resources
        ),
        session=broker.ownership_requests.new_session(),
        connection=connection.number,
        holder=message.holder,
        host=connection.host,
        lease_ms=message.session_timeout_ms,
        name=message.transactional_id_name,
        waits=message.wait_ms > 0,
        claim_id=message.claim_id,
    )
    try:
        answer = await _claimed(broker, claim, connection, _wait_end(message))
    except NotLeaderError:
        broker.claims.leaves(connection)  # it is not told of a grant, if there is one
        raise
    if answer.error is ErrorCode.NONE:
        broker.claims.granted(connection)
    elif answer.error is not ErrorCode.CLAIM_WAITING:
        broker.claims.leaves(connection)
    return _own_response(answer)


def _check_unclaimed(broker: Broker, connection: Connection, claim_id: str) -> None:
    """Refuse a second claim on one connection: it would end with the first."""
    if broker.claims.session_of(connection) is None:
        return
    if not claim_id or broker.claims.claim_id_of(connection) != claim_id:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            "this connection has a claim, or is attached to one: release it, repeat it with its "
            "claim id, or claim on another connection",
        )


async def _claimed(
    broker: Broker, claim: Claim, connection: Connection, deadline: Instant
) -> OwnAnswer:
    """Return the final answer to a claim, or CLAIM_WAITING at the deadline."""

    def rule(shard: OwnershipShard, now: Instant) -> Decision[OwnAnswer]:
        decision = shard.own(claim, now, broker.clock.now_ms())
        answer = decision.response
        if answer.error in (ErrorCode.NONE, ErrorCode.CLAIM_WAITING):
            # In the step of the decision: from now on it may end, and is severed then.
            session = answer.session or claim.session
            broker.claims.claims(connection, session, claim.claim_id)
        return decision

    while True:
        loaded = await broker.ownership.shard_of(claim.group or "")
        answer = await broker.ownership.decide_on(loaded, rule)
        if answer.error not in (ErrorCode.NONE, ErrorCode.CLAIM_WAITING):
            return answer
        waits = answer.error is ErrorCode.CLAIM_WAITING
        if waits and asyncio.get_running_loop().time() >= deadline:
            return answer
        session = answer.session or claim.session
        settled = await broker.ownership_requests.settled(
            loaded, session, deadline if waits else None
        )
        if settled is None:
            # The claim is not repeated by this: only its claimant does that.
            place = partial(OwnershipShard.place_of, session=session)
            settled = await broker.ownership.read_on(loaded, place)
        elif waits and settled == FENCED:
            # It has lost its place while nothing was committed, and so nothing answered.
            raise NotLeaderError(f"{loaded.partition.name}: a claim has lost its place")
        if settled is not None:
            return settled


def _own_response(answer: OwnAnswer) -> OwnResponse:
    is_known = answer.error in (ErrorCode.NONE, ErrorCode.CLAIM_WAITING)
    return OwnResponse(
        error_code=answer.error,
        error_message=explain(answer.error, answer.limit),
        session=answer.session if is_known else None,
        lease_ms=answer.lease_ms,
        transactional_id=answer.transactional_id,
        place=answer.place,
        resources=[explained(each) for each in answer.resources],
    )


@_refusing(AttachOwnerResponse)
async def attach(
    broker: Broker, message: AttachOwnerRequest, request: Request
) -> AttachOwnerResponse:
    """Let this connection's requests be a claim's; it is severed with that (O7)."""
    check_group(message.group)
    connection = request.connection
    known = broker.claims.session_of(connection)
    if known not in (None, message.session):
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            "this connection has another claim, or is attached to one: use another connection",
        )

    if known is None:
        # Before the shard is asked: if the claim ends meanwhile, this connection is severed, too.
        broker.claims.attaches(connection, message.session)
    error: ErrorCode | None = None
    try:
        answer = await broker.leaders.attach(message.group, message.session, message.epoch)
        error = answer.error
    finally:
        if error is ErrorCode.NONE:
            broker.claims.granted(connection)
        elif known is None:
            broker.claims.leaves(connection)
    return AttachOwnerResponse(
        error_code=answer.error, error_message=explain(answer.error), lease_ms=answer.lease_ms
    )


@_refusing(RenewOwnershipResponse)
async def renew(
    broker: Broker, message: RenewOwnershipRequest, request: Request
) -> RenewOwnershipResponse:
    """Begin a claim's lease again (O10)."""
    del request
    check_group(message.group)
    answer = await broker.ownership.decide(
        message.group or "",
        lambda shard, now: shard.renew(message.group, message.session, message.epoch, now),
    )
    return RenewOwnershipResponse(
        error_code=answer.error, error_message=explain(answer.error), lease_ms=answer.lease_ms
    )


@_refusing(ReleaseOwnershipResponse)
async def release(
    broker: Broker, message: ReleaseOwnershipRequest, request: Request
) -> ReleaseOwnershipResponse:
    """End a claim, or, for an operator, whatever claims hold some resources."""
    check_group(message.group)
    check_names("resource", message.resources)
    if message.session is None:
        answers = await _taken(broker, message.group, message.resources)
    else:
        answers = await _released(broker, message.group, message.session, request.connection)
    error = next((each.error for each in answers if each.error), ErrorCode.NONE)
    return ReleaseOwnershipResponse(
        error_code=error,
        error_message=explain(error),
        released=[
            ReleasedResource(resource=each.resource, epoch=each.epoch)
            for each in answers
            if not each.error
        ],
    )


async def _taken(
    broker: Broker, group: str | None, resources: list[str]
) -> Sequence[ResourceAnswer]:
    """End the claims that hold these, in as many decisions as it takes."""
    answers: list[ResourceAnswer] = []
    rest = resources

    def rule(
        shard: OwnershipShard, now: Instant
    ) -> Decision[tuple[list[ResourceAnswer], list[str]]]:
        return shard.release_resources(group, rest, broker.clock.now_ms())

    while rest:
        found, rest = await broker.ownership.decide(group or "", rule)
        answers += found
    return answers


async def _released(
    broker: Broker, group: str | None, session: str, connection: Connection
) -> Sequence[ResourceAnswer]:
    """End a claim."""
    wall_ms = broker.clock.now_ms()

    def rule(shard: OwnershipShard, now: Instant) -> Decision[tuple[ResourceAnswer, ...]]:
        is_own = broker.claims.session_of(connection) == session
        decision = shard.release(group, session, wall_ms)
        if is_own and not any(each.error for each in decision.response):
            broker.claims.leaves(connection)  # others are severed; this one gets its answer
        return decision

    return await broker.ownership.decide(group or "", rule)


@_refusing(DescribeOwnershipResponse)
async def describe(
    broker: Broker, message: DescribeOwnershipRequest, request: Request
) -> DescribeOwnershipResponse:
    """Return a page of resources that were ever claimed, those that nobody holds too."""
    del request
    if message.limit < 1:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"the limit of {message.limit} entries is below 1"
        )
    limit = min(message.limit, PAGE_MAX)
    if message.all_groups:
        found, has_more = await _of_all_groups(broker, message, limit)
        await _own_slice(broker, found)
        return DescribeOwnershipResponse(has_more=has_more, resources=_described(found))
    check_group(message.group)
    if message.resources is not None:
        check_names("resource", message.resources)
    revision, found, has_more = await broker.ownership.read(
        message.group or "",
        lambda shard: shard.describe(
            message.group, message.resources, message.after_resource, limit
        ),
    )
    await _own_slice(broker, found)
    return DescribeOwnershipResponse(
        revision=revision, has_more=has_more, resources=_described(found)
    )


async def _own_slice(broker: Broker, page: Sequence[OwnershipState]) -> None:
    """Wait for a time slice to build and encode a page: many may have waited for one commit."""
    if len(page) > PAGE_AT_ONCE:
        await broker.time_slices.next()


async def _of_all_groups(
    broker: Broker, message: DescribeOwnershipRequest, limit: int
) -> tuple[list[OwnershipState], bool]:
    after = None
    if message.after_resource is not None:
        after = message.after_group, message.after_resource
    await shards_here(broker.ownership, broker.logs)
    pages = await broker.ownership.read_all(lambda shard: [shard.describe_all(after, limit)])
    every = [state for states, _ in pages for state in states]
    first = nsmallest(limit, every, key=lambda state: (state.group or "", state.resource))
    return first, len(every) > limit or any(has_more for _, has_more in pages)


@_refusing(WatchOwnershipResponse)
async def watch(
    broker: Broker, message: WatchOwnershipRequest, request: Request
) -> WatchOwnershipResponse:
    """Return what has changed in a group since a revision; wait for a change."""
    check_group(message.group)
    if message.resources is not None:
        check_names("resource", message.resources)
    named = PAGE_MAX if message.resources is None else len(message.resources)
    responses, seen = request.connection.responses, message.seen_revision
    deadline = _deadline(message.max_wait_ms)
    found: list[OwnershipState] = []
    while not found and await broker.ownership_requests.changed(message.group, seen, deadline):
        # Nothing is read before there is room for it, and many may have waited for one change.
        await responses.grant(named * ENTRY_BYTES, least=named * ENTRY_BYTES)
        await broker.time_slices.next()
        seen, found = await _changes(broker, message, seen)
        if found:
            await _own_slice(broker, found)
        else:
            responses.give_back()
    return WatchOwnershipResponse(
        revision=seen, resources=[WatchedOwnership(**_fields(state)) for state in found]
    )


async def _changes(
    broker: Broker, message: WatchOwnershipRequest, seen: int
) -> tuple[int, list[OwnershipState]]:
    group = message.group
    return await broker.ownership.read(
        group or "", lambda shard: shard.changes(group, message.resources, seen)
    )


def _wait_end(message: OwnRequest) -> Instant:
    """When a claim that waits is told its place: early enough that it is repeated in its lease."""
    return _deadline(min(message.wait_ms, message.session_timeout_ms // 2))


def _deadline(wait_ms: int) -> Instant:
    """When a request that waits is answered at last."""
    now = asyncio.get_running_loop().time()
    return Instant(now + min(max(wait_ms, 0), WAIT_MS_MAX) / 1000)


def _described(states: list[OwnershipState]) -> list[Described]:
    return [Described(**_fields(state)) for state in states]


def _fields(state: OwnershipState) -> dict[str, Any]:
    """The fields of a state, which are called alike in both responses."""
    return {
        "group": state.group,
        "resource": state.resource,
        "state": state.state,
        "generation": state.generation,
        "epoch": state.epoch,
        "holder": state.holder,
        "host": state.host,
        "since_ms": state.since_ms,
        "lease_ms": state.lease_ms,
        "fence_offset": state.fence_offset,
        "waiting": state.waiting,
    }
