"""What a claimant sends, what the answer means, and until when it may act."""

import dataclasses

import pytest

from fencelog.client.grants import (
    ClaimOptions,
    Grant,
    GrantFacts,
    Lease,
    Owned,
    Waiting,
    own_request,
    read_answer,
)
from fencelog.errors import (
    ClaimRefusedError,
    ErrorCode,
    FencedError,
    OwnershipLostError,
    RequestError,
)
from fencelog.wire.messages.own import OwnedResource, OwnResponse

TWO = ClaimOptions(resources=("orders/0", "orders/1"), group="etl", lease_s=9.0)
GRANT = Grant(
    session="s",
    lease_s=9.0,
    transactional_id=None,
    resources={
        "orders/0": Owned(generation=4, epoch=7, fence_offset=100),
        "orders/1": Owned(generation=2, epoch=9, fence_offset=-1),
    },
)


class Facts(GrantFacts):
    @property
    def grant(self) -> Grant:
        return GRANT


def test_a_lease_is_counted_from_the_sending_renewed_at_a_third_and_over_before_its_end() -> None:
    # O10
    lease = Lease(sent_s=100.0, length_s=9.0)
    assert lease.renew_at_s == pytest.approx(103.0)
    assert lease.doubt_at_s == pytest.approx(104.5)
    assert lease.stop_at_s == pytest.approx(106.0)
    assert lease.over_at_s == pytest.approx(108.1)


def test_a_first_claim_names_no_epoch_and_only_the_generation_that_was_asked_for() -> None:
    request = own_request(TWO, claim_id="c", wait_ms=5)
    assert [(each.generation, each.prev_epoch) for each in request.resources] == [(-1, -1)] * 2
    assert (request.group, request.session_timeout_ms) == ("etl", 9000)
    assert (request.claim_id, request.wait_ms) == ("c", 5)
    attempt = ClaimOptions(resources=("x",), generation=0, transactional_id="n", holder="me")
    request = own_request(attempt)
    assert [(each.resource, each.generation) for each in request.resources] == [("x", 0)]
    assert (request.transactional_id_name, request.holder, request.wait_ms) == ("n", "me", 0)


def test_the_same_claim_again_names_what_it_held() -> None:  # O5
    request = own_request(TWO, held=GRANT)
    assert [(each.resource, each.generation, each.prev_epoch) for each in request.resources] == [
        ("orders/0", 4, 7),
        ("orders/1", 2, 9),
    ]
    assert request.wait_ms == 0


def test_a_grant_is_read_from_the_answer() -> None:
    answer = OwnResponse(
        session="s",
        lease_ms=9000,
        resources=[
            OwnedResource(resource="orders/0", generation=4, epoch=7, fence_offset=100),
            OwnedResource(resource="orders/1", generation=2, epoch=9),
        ],
    )
    assert read_answer(TWO, answer) == GRANT


def test_a_waiting_claim_is_told_its_place() -> None:
    answer = OwnResponse(error_code=ErrorCode.CLAIM_WAITING, place=3)
    assert read_answer(TWO, answer) == Waiting(3)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.RESOURCE_OWNED, ClaimRefusedError),
        (ErrorCode.STALE_GENERATION, ClaimRefusedError),
        (ErrorCode.CLAIM_IN_PROGRESS, ClaimRefusedError),
        (ErrorCode.OWNER_FENCED, OwnershipLostError),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, RequestError),
    ],
)
def test_a_refusal_says_what_the_broker_says_of_the_first_refused_resource(
    code: ErrorCode, kind: type[RequestError]
) -> None:  # O6
    answer = OwnResponse(
        error_code=code,
        error_message="in general",
        resources=[
            OwnedResource(resource="orders/0"),
            OwnedResource(
                resource="orders/1", error_code=code, error_message="orders/1 is held by other"
            ),
        ],
    )
    with pytest.raises(RequestError) as refused:
        read_answer(TWO, answer)
    assert type(refused.value) is kind
    assert refused.value.code is code
    assert "in group etl: orders/1 is held by other" in str(refused.value)


def test_a_refusal_of_the_whole_claim_says_what_the_broker_says() -> None:
    answer = OwnResponse(error_code=ErrorCode.POLICY_VIOLATION, error_message="too many claims")
    with pytest.raises(RequestError, match=r"claim of orders/0, orders/1 in group etl: too many"):
        read_answer(TWO, answer)


def test_a_lost_claim_is_a_fenced_one_and_a_refused_request() -> None:
    assert issubclass(OwnershipLostError, FencedError)
    assert issubclass(OwnershipLostError, RequestError)


def test_epoch_and_generation_of_a_claim_are_those_of_the_highest_epoch() -> None:
    facts = Facts()
    assert (facts.epoch, facts.generation, facts.lease_s) == (9, 2, 9.0)
    assert (facts.token("orders/0"), facts.token("orders/1")) == (7, 9)
    assert (facts.fence_offset("orders/0"), facts.fence_offset("orders/1")) == (100, None)
    with pytest.raises(ValueError, match="orders/2 is not in this claim of orders/0, orders/1"):
        facts.token("orders/2")


def test_a_claim_names_one_resource_or_more_and_no_negative_generation() -> None:
    with pytest.raises(ValueError, match="at least one resource"):
        ClaimOptions(resources=())
    with pytest.raises(ValueError, match="generation -1: expected 0 or more"):
        ClaimOptions(resources=("a",), generation=-1)


@pytest.mark.parametrize("lease_s", [0.4999, 900.1, 3e6, -1.0, float("nan"), float("inf")])
def test_a_lease_has_limits(lease_s: float) -> None:
    with pytest.raises(ValueError, match=r"a lease of .* s: expected 0.5 to 900 s"):
        ClaimOptions(resources=("a",), lease_s=lease_s)
    for allowed in (0.5, 900):
        ClaimOptions(resources=("a",), lease_s=allowed)


def test_a_message_names_three_resources_and_counts_the_others() -> None:
    many = [f"r{number}" for number in range(1000)]
    claim = ClaimOptions(resources=tuple(many), group="etl")
    assert str(claim) == "claim of r0, r1, r2 and 997 more in group etl"
    assert str(ClaimOptions(resources=tuple(many[:3]))) == "claim of r0, r1, r2"
    held = dataclasses.replace(GRANT, resources=dict.fromkeys(many, GRANT.highest))
    with pytest.raises(ValueError, match=r"x is not in this claim of r0, r1, r2 and 997 more$"):
        held.of("x")
