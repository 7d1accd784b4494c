"""What Kafka answers where no authorizer is configured: ACLs, authorized operations, credentials.

Everybody may do everything here, so there are no ACLs to describe or to change, every operation on
a resource is authorized, and no user has a credential.
"""

from collections import Counter

from fencelog.broker.context import Broker
from fencelog.broker.network.connection import Request
from fencelog.errors import ErrorCode
from fencelog.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from fencelog.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from fencelog.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from fencelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_NO_AUTHORIZER = "No Authorizer is configured on the broker"

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


_ON_ANY = (_DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
TOPIC_OPERATIONS = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, *_ON_ANY)
GROUP_OPERATIONS = _bits(_READ, _DELETE, *_ON_ANY)
CLUSTER_OPERATIONS = _bits(_CREATE, _ALTER, _CLUSTER_ACTION, _IDEMPOTENT_WRITE, *_ON_ANY)
"""The operations that a resource of this kind has, a bit for each of Kafka's AclOperation."""
NOT_ASKED = -(1 << 31)
"""Authorized operations where the request does not ask for them."""


async def describe_acls(
    broker: Broker, message: DescribeAclsRequest, request: Request
) -> DescribeAclsResponse:
    """Refuse: there are no ACLs."""
    del broker, message, request
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
    )


async def create_acls(
    broker: Broker, message: CreateAclsRequest, request: Request
) -> CreateAclsResponse:
    """Refuse each: nothing would enforce it."""
    del request
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
            async for _ in broker.time_slices.each(message.creations)
        ]
    )


async def delete_acls(
    broker: Broker, message: DeleteAclsRequest, request: Request
) -> DeleteAclsResponse:
    """Refuse each filter: there are no ACLs."""
    del request
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
            )
            async for _ in broker.time_slices.each(message.filters)
        ]
    )


async def describe_user_scram_credentials(
    broker: Broker, message: DescribeUserScramCredentialsRequest, request: Request
) -> DescribeUserScramCredentialsResponse:
    """Return no user; one that is named does not exist."""
    del request
    times = Counter(user.name for user in message.users or ())
    results = []
    async for name, count in broker.time_slices.each(times.items()):
        error, text = ErrorCode.RESOURCE_NOT_FOUND, f"user {name} has no SCRAM credential"
        if count > 1:
            error, text = ErrorCode.DUPLICATE_RESOURCE, f"user {name} is named more than once"
        results.append(
            DescribeUserScramCredentialsResult(user=name, error_code=error, error_message=text)
        )
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)
