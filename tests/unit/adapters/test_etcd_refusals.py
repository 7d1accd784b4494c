"""What etcd's errors say of the request: a write that may be stored is never taken for refused."""

import grpc
import pytest

from fencelog.adapters.etcd.refusals import Meaning, meaning, told

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "details", "means"),
    [
        (Code.UNAVAILABLE, "etcdserver: request timed out", Meaning.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: leader changed", Meaning.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: server stopped", Meaning.UNKNOWN),
        (Code.UNAVAILABLE, "Socket closed", Meaning.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Meaning.UNKNOWN),
        (Code.CANCELLED, None, Meaning.UNKNOWN),
        (Code.INTERNAL, "Received RST_STREAM", Meaning.UNKNOWN),
        (Code.UNKNOWN, "context canceled", Meaning.UNKNOWN),
        (Code.RESOURCE_EXHAUSTED, "Received message larger than max", Meaning.UNKNOWN),
        (Code.DATA_LOSS, "etcdserver: corrupt cluster", Meaning.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: no leader", Meaning.NOT_HERE),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Meaning.NOT_HERE),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Meaning.TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Meaning.TOKEN),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Meaning.REFUSED),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", Meaning.REFUSED),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Meaning.REFUSED),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", Meaning.REFUSED),
    ],
)
def test_an_error_says_whether_the_request_may_have_had_its_effect(
    code: Code, details: str | None, means: Meaning
) -> None:
    assert meaning(code, details) is means


def test_a_refusal_names_the_member_the_reason_and_what_to_do() -> None:
    assert told("h:2379", "etcdserver: no leader") == (
        "etcd at h:2379: no leader; most of etcd's members must be up and reach each other"
    )
    assert told("h:2379", None) == "etcd at h:2379: no reason given"
