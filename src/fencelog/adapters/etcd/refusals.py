"""What an error of etcd means: whether the request has had an effect, and what its user can do."""

from enum import Enum, auto

import grpc

from fencelog.errors import StorageError

_PREFIX = "etcdserver: "


class Meaning(Enum):
    """What is known of a request that has failed."""

    REFUSED = auto()
    """It had no effect, and any member would refuse it again."""
    NOT_HERE = auto()
    """It had no effect, and another member, or the same one later, may accept it."""
    TOKEN = auto()
    """It had no effect: the user must authenticate anew first."""
    UNKNOWN = auto()
    """It may have had its effect, or have it later."""


# etcd checks each of these before it proposes a request, or says by them that it applied nothing.
_NO_EFFECT = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_NEW_TOKEN = frozenset({"invalid auth token", "revision of auth store is old"})
_NOT_HERE = frozenset({"no leader", "too many requests", "rpc not supported for learner"})

NO_SPACE = "mvcc: database space exceeded"
COMPACTED = "mvcc: required revision has been compacted"
LEASE_NOT_FOUND = "requested lease not found"
NO_AUTHENTICATION = "authentication is not enabled"
NO_USER = "user name is empty"
PERMISSION_DENIED = "permission denied"

_ADVICE = {
    NO_SPACE: "compact and defragment etcd, or raise its --quota-backend-bytes; then "
    "`etcdctl alarm disarm`",
    "no leader": "most of etcd's members must be up and reach each other",
    NO_USER: "etcd wants a user: set metadata.user and metadata.password.file",
    "authentication failed, invalid user ID or password": "correct metadata.user or the password",
    PERMISSION_DENIED: "grant metadata.user readwrite on the prefix NAME/, the cluster's name",
    "request is too large": "raise etcd's --max-request-bytes to its default",
    "too many operations in txn request": "raise etcd's --max-txn-ops to its default",
}


class RefusedError(StorageError):
    """etcd has refused a request, which had no effect; each member would."""

    def __init__(self, address: str, details: str | None) -> None:
        """Keep etcd's words beside the text."""
        super().__init__(told(address, details))
        self.reason = reason(details)


def reason(details: str | None) -> str:
    """Return the words of an error without etcd's prefix."""
    return (details or "no reason given").removeprefix(_PREFIX)


def meaning(code: grpc.StatusCode, details: str | None) -> Meaning:
    """Return what this answer says of its request."""
    why = reason(details)
    if why in _NEW_TOKEN:
        return Meaning.TOKEN
    if why in _NOT_HERE:
        return Meaning.NOT_HERE
    if code in _NO_EFFECT or why == NO_SPACE:
        return Meaning.REFUSED
    return Meaning.UNKNOWN


def told(address: str, details: str | None) -> str:
    """Return the text for a user: which member, why, and what to do."""
    why = reason(details)
    advice = _ADVICE.get(why)
    return f"etcd at {address}: {why}" + (f"; {advice}" if advice else "")
