"""Which member of an etcd is asked, how often, and what is known when none has answered."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from fencelog.adapters.etcd import members as module
from fencelog.adapters.etcd import messages
from fencelog.adapters.etcd.members import Members, User
from fencelog.adapters.etcd.refusals import RefusedError
from fencelog.adapters.etcd_metadata import EtcdMetadata
from fencelog.errors import StorageError, UnknownOutcomeError

PUT = messages.TxnRequest()
READ = messages.RangeRequest(key=b"a")
DONE = messages.TxnResponse(succeeded=True)
FOUND = messages.RangeResponse()
Say = Callable[[str, object], object]
"""What a member of this address answers to a request: a message, or an error to raise."""


def error(details: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details)


class FakeMember:
    """A member that answers what the test says; it notes what it was asked."""

    say: Say
    asked: list[tuple[str, str]]

    def __init__(self, address: str, credentials: object) -> None:
        self.address = address

    async def connect(self, timeout_s: float) -> None:
        await self.send(messages.StatusRequest(), None, timeout_s, ())

    async def send(self, request: Any, response: Any, timeout_s: float, metadata: Any) -> object:
        kind = type(request).__name__.removesuffix("Request")
        token = dict(metadata).get("token", "")
        type(self).asked.append((self.address, f"{kind} {token}".strip()))
        answer = type(self).say(self.address, request)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeMember]:
    class Fake(FakeMember):
        asked: list[tuple[str, str]] = []  # noqa: RUF012

    monkeypatch.setattr(module, "Member", Fake)
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    return Fake


def members(user: User | None = None, deadline_s: float = 0.05) -> Members:
    return Members(("a", "b"), None, user, deadline_s)


def sent(fake: type[FakeMember]) -> list[tuple[str, str]]:
    """What was asked without the questions of new connections."""
    return [each for each in fake.asked if each[1] != "Status"]


def test_a_write_without_an_answer_is_sent_once_and_the_next_goes_elsewhere(
    fake: type[FakeMember],
) -> None:
    fake.say = staticmethod(
        lambda address, request: (
            error("Socket closed") if (address, request) == ("a", PUT) else DONE
        )
    )

    async def main() -> None:
        etcd = members()
        with pytest.raises(UnknownOutcomeError, match="etcd at a: Socket closed: the write may be"):
            await etcd.change(PUT, messages.TxnResponse)
        assert (await etcd.change(PUT, messages.TxnResponse)).succeeded

    asyncio.run(main())
    assert sent(fake) == [("a", "Txn"), ("b", "Txn")]


def test_what_was_not_sent_or_not_done_is_asked_of_the_next_member(
    fake: type[FakeMember],
) -> None:
    answers = iter([error("Connection refused"), FOUND, error("etcdserver: no leader"), FOUND])
    fake.say = staticmethod(lambda _address, _request: next(answers, DONE))

    async def main() -> None:
        assert (await members().change(PUT, messages.TxnResponse)).succeeded

    asyncio.run(main())
    assert fake.asked == [
        ("a", "Status"),
        ("b", "Status"),
        ("b", "Txn"),
        ("a", "Status"),
        ("a", "Txn"),
    ]


def test_a_read_is_asked_of_all_until_the_deadline_and_each_reason_is_told(
    fake: type[FakeMember],
) -> None:
    fake.say = staticmethod(lambda address, _request: error(f"{address} is away"))

    async def main() -> None:
        with pytest.raises(StorageError) as raised:
            await members().ask(READ, messages.RangeResponse)
        assert not isinstance(raised.value, UnknownOutcomeError)
        assert str(raised.value) == "etcd at a: a is away; etcd at b: b is away"

    asyncio.run(main())
    assert len(fake.asked) > 2


def test_what_any_member_would_refuse_is_asked_once(fake: type[FakeMember]) -> None:
    full = error("etcdserver: mvcc: database space exceeded", grpc.StatusCode.RESOURCE_EXHAUSTED)
    fake.say = staticmethod(lambda _address, request: full if request is PUT else FOUND)

    async def main() -> None:
        with pytest.raises(RefusedError, match=r"etcd at a: .* exceeded; compact"):
            await members().change(PUT, messages.TxnResponse)

    asyncio.run(main())
    assert sent(fake) == [("a", "Txn")]


def test_a_token_that_has_expired_is_renewed_and_the_request_sent_again(
    fake: type[FakeMember],
) -> None:
    old = error("etcdserver: invalid auth token", grpc.StatusCode.UNAUTHENTICATED)
    tokens = iter(["t1", "t2"])
    answers = iter([DONE, old, DONE])

    def say(_address: str, request: object) -> object:
        if isinstance(request, messages.AuthenticateRequest):
            return messages.AuthenticateResponse(token=next(tokens))
        return next(answers) if request is PUT else FOUND

    fake.say = staticmethod(say)

    async def main() -> None:
        etcd = members(User("u", "p"))
        for _ in range(2):
            assert (await etcd.change(PUT, messages.TxnResponse)).succeeded

    asyncio.run(main())
    kinds = [kind for _, kind in sent(fake)]
    assert kinds == ["Authenticate", "Txn t1", "Txn t1", "Authenticate", "Txn t2"]


def renewed(fake: type[FakeMember], *terms: tuple[int, int]) -> tuple[bool, int]:
    """Renew, with the terms of each answer and of the read after it; also the renewals sent."""
    told = iter(terms)
    read_at = 0

    def say(_address: str, request: object) -> object:
        nonlocal read_at
        if isinstance(request, messages.LeaseKeepAliveRequest):
            term, read_at = next(told)
            header = messages.ResponseHeader(raft_term=term)
            return messages.LeaseKeepAliveResponse(header=header, ID=7, TTL=9)
        return messages.RangeResponse(header=messages.ResponseHeader(raft_term=read_at))

    fake.say = staticmethod(say)
    is_alive = asyncio.run(EtcdMetadata(members(), "c").renew(7))
    return is_alive, sum(kind == "LeaseKeepAlive" for _, kind in fake.asked)


def test_a_renewal_counts_when_a_majority_has_seen_its_term(fake: type[FakeMember]) -> None:
    assert renewed(fake, (4, 4)) == (True, 1)


def test_a_renewal_by_a_deposed_leader_of_etcd_is_made_again(fake: type[FakeMember]) -> None:
    assert renewed(fake, (4, 5), (5, 5)) == (True, 2)


def test_a_lease_is_not_renewed_while_etcds_leader_changes(fake: type[FakeMember]) -> None:
    with pytest.raises(StorageError, match="its leader changed during 5 renewals"):
        renewed(fake, *((term, term + 1) for term in range(9)))
