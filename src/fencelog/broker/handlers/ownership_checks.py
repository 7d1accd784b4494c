"""What a request about ownership may say, and what a refusal tells the claimant."""

from collections.abc import Iterable, Sequence

from fencelog.broker.context import Broker
from fencelog.broker.handlers.brokers import missing
from fencelog.coordination.ownership.model import (
    NEXT_GENERATION,
    NO_EPOCH,
    Limit,
    OwnershipLimits,
    ResourceAnswer,
)
from fencelog.coordination.ownership.resources import partition_of
from fencelog.coordination.ownership.rules import GENERATION_MAX
from fencelog.errors import ErrorCode, RequestError
from fencelog.log.ownership import GROUPS_MAX
from fencelog.types import TopicPartition
from fencelog.wire.messages.own import OwnedResource, OwnRequest, OwnResource

LIMITS = OwnershipLimits()
NAME_BYTES_MAX = 1_000
"""Of a group, a resource, a holder, a claim id, or the name of a transactional id."""
CLAIM_RESOURCES_MAX = 1_000
"""Of one claim, and of any other request that names resources."""
RESERVED_PREFIX = "__fencelog"
SHOWN_CHARACTERS = 100
"""Of a name in a message."""

_IN_GENERAL = {
    ErrorCode.RESOURCE_OWNED: "a resource is held under a higher generation: nothing was claimed",
    ErrorCode.STALE_GENERATION: "a generation is below the remembered one: nothing was claimed",
    ErrorCode.OWNER_FENCED: "this claim has ended, or another one was granted since: stop",
    ErrorCode.CLAIM_IN_PROGRESS: "another claim of a resource is being granted: try again",
    ErrorCode.CLAIM_WAITING: "the claim waits in its place: repeat it with its id to keep that",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator of the group is not available: try again",
    ErrorCode.NOT_COORDINATOR: "the coordinator of the group is another broker: look it up again",
    ErrorCode.POLICY_VIOLATION: "a partition has owners in as many groups as it may have",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "a resource is a partition that does not exist",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a resource is a partition that nobody may own",
    ErrorCode.KAFKA_STORAGE_ERROR: "a resource is a partition that is offline: nothing was claimed",
}
_OF_LIMIT = {
    Limit.RESOURCES: (
        f"{LIMITS.resources_max} resources were ever claimed at this coordinator, and no more may "
        "be: claim one of those"
    ),
    Limit.WAITING: (
        f"{LIMITS.waiting_max} claims wait at this coordinator, and no more may: try again later"
    ),
    Limit.WAITING_RESOURCES: (
        f"the claims that wait at this coordinator may want {LIMITS.waiting_resources_max} "
        "resources, all together: claim fewer, or try again later"
    ),
}
_OF_RESOURCE = {
    ErrorCode.RESOURCE_OWNED: (
        "{resource} is held by {holder} with generation {generation} (epoch {epoch}): claim it "
        "with that generation or a higher one, with 0, or wait for it"
    ),
    ErrorCode.STALE_GENERATION: (
        "generation {generation} of {resource} was granted before (epoch {epoch}): name no lower "
        "one, or 0"
    ),
    ErrorCode.CLAIM_IN_PROGRESS: "a claim of {resource} by {holder} is being granted: try again",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "{resource} does not exist",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic of {resource} is internal: nobody may own it",
    ErrorCode.KAFKA_STORAGE_ERROR: "{resource} is offline: repair its disk, restart the broker",
    ErrorCode.POLICY_VIOLATION: (
        f"{{resource}} has owners in {GROUPS_MAX} groups, and may have no more: release one of them"
    ),
}


_NEVER_GRANTED = "{resource} was never claimed, so no claim had an epoch of it: stop"
_GRANTED_SINCE = (
    "{resource} was granted since (epoch {epoch}, generation {generation}), and {holder} holds it: "
    "stop"
)
_FREE_SINCE = (
    "{resource} was granted since (epoch {epoch}, generation {generation}), and nobody holds it "
    "now: stop, or claim it without the epoch"
)


def explain(error: ErrorCode, limit: Limit | None = None) -> str | None:
    """Return what an error of a whole request means, and what to do; None for success."""
    if error is ErrorCode.NONE:
        return None
    if limit is not None:
        return _OF_LIMIT[limit]
    return _IN_GENERAL.get(error, "the request was refused")


def explained(answer: ResourceAnswer) -> OwnedResource:
    """Return one resource of a response, with what is in the way."""
    text = (
        _fenced(answer)
        if answer.error is ErrorCode.OWNER_FENCED
        else _OF_RESOURCE.get(answer.error)
    )
    return OwnedResource(
        resource=answer.resource,
        error_code=answer.error,
        error_message=text
        and text.format(
            resource=shown(answer.resource),
            holder=shown(answer.holder or "") or "a claimant without a name",
            generation=answer.generation,
            epoch=answer.epoch,
        ),
        generation=answer.generation,
        epoch=answer.epoch,
        fence_offset=answer.fence_offset,
        holder=answer.holder,
    )


def _fenced(answer: ResourceAnswer) -> str:
    if answer.epoch == NO_EPOCH:
        return _NEVER_GRANTED
    return _FREE_SINCE if answer.holder is None else _GRANTED_SINCE


def shown(name: str) -> str:
    """Return a name as a message shows it."""
    return name if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]}…"


def check_claim(message: OwnRequest) -> None:
    """Refuse a claim that no shard would take. Raises RequestError with code and text."""
    check_group(message.group)
    check_names("resource", [each.resource for each in message.resources])
    if not message.resources:
        raise _invalid("a claim needs at least one resource")
    for resource in message.resources:
        _check_numbers(resource)
    _check_length("holder", message.holder)
    _check_length("claim id", message.claim_id)
    if message.wait_ms < 0:
        raise _invalid(f"the wait of {message.wait_ms} ms is negative")
    if message.wait_ms > 0 and not message.claim_id:
        raise _invalid("a claim that waits needs a claim id, by which it is repeated")
    if not LIMITS.lease_ms_min <= message.session_timeout_ms <= LIMITS.lease_ms_max:
        raise RequestError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"the session timeout of {message.session_timeout_ms} ms is not between "
            f"{LIMITS.lease_ms_min} and {LIMITS.lease_ms_max} ms",
        )
    name = message.transactional_id_name
    if name is not None:
        _check_name("name of a transactional id", name)
        if "/" in name:
            raise _invalid(f"the name {shown(name)!r} of a transactional id contains a slash")


def check_group(group: str | None) -> None:
    """Refuse a group without a name: null is for the owners of writes. Raises RequestError."""
    if group is None:
        return
    if not group:
        raise RequestError(
            ErrorCode.INVALID_GROUP_ID,
            "the group's name is empty: name one, or none to own the writes",
        )
    _check_length("group", group)


def check_names(what: str, names: Sequence[str]) -> None:
    """Refuse too many names, and one that is empty, too long, reserved, or there twice.

    Raises RequestError.
    """
    if len(names) > CLAIM_RESOURCES_MAX:
        raise too_many(len(names))
    seen: set[str] = set()
    for name in names:
        _check_name(what, name)
        if name in seen:
            raise _invalid(f"the {what} {shown(name)!r} is named twice")
        seen.add(name)


def too_many(count: int) -> RequestError:
    """Return the refusal of a request with more resources than it may name."""
    return RequestError(
        ErrorCode.POLICY_VIOLATION,
        f"{count} resources in one request; the limit is {CLAIM_RESOURCES_MAX}",
    )


def refused_partitions(
    broker: Broker, group: str | None, names: Iterable[str]
) -> list[ResourceAnswer]:
    """Return the resources that are partitions of which no claim could be granted now."""
    found: list[ResourceAnswer] = []
    for name in names:
        partition = partition_of(name)
        error = ErrorCode.NONE if partition is None else _problem(broker, group, partition)
        if error is not ErrorCode.NONE:
            found.append(
                ResourceAnswer(
                    resource=name, error=error, generation=NEXT_GENERATION, epoch=NO_EPOCH
                )
            )
    return found


def _problem(broker: Broker, group: str | None, name: TopicPartition) -> ErrorCode:
    topic = broker.catalog.get(name.topic)
    if topic is None or name.partition >= topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = broker.logs.get(*name)
    error = missing(broker, *name) if partition is None else partition.read_error
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NONE  # its leader says so if it takes no owner of this group
    if partition is None:
        return error
    if partition.failure is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    has_room = partition.log.has_room_for_owner(group)
    return ErrorCode.NONE if has_room else ErrorCode.POLICY_VIOLATION


def _check_name(what: str, name: str) -> None:
    if not name:
        raise _invalid(f"a {what} is empty")
    _check_length(what, name)
    if name.startswith(RESERVED_PREFIX) and partition_of(name) is None:
        raise _invalid(f"the {what} {shown(name)!r} begins with {RESERVED_PREFIX}: choose another")


def _check_length(what: str, name: str) -> None:
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        raise _invalid(
            f"the {what} {shown(name)!r} has {size} bytes; the limit is {NAME_BYTES_MAX}"
        )


def _check_numbers(resource: OwnResource) -> None:
    for what, number in (
        ("generation", resource.generation),
        ("previous epoch", resource.prev_epoch),
    ):
        if number < -1:
            raise _invalid(f"the {what} {number} of {shown(resource.resource)!r} is negative")
    if resource.generation > GENERATION_MAX:
        raise _invalid(
            f"the generation {resource.generation} of {shown(resource.resource)!r} is above "
            f"{GENERATION_MAX}"
        )


def _invalid(text: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, text)
