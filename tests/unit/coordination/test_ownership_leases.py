"""Leases, connections and waiting claims (O10): what no record holds."""

from collections.abc import Iterable

import pytest

from fencelog.coordination.ownership.model import OwnershipLimits
from fencelog.coordination.shard import LogRecord
from fencelog.errors import ErrorCode
from fencelog.types import Offset
from tests.unit.coordination.owners import LEASE_S, Owners, claim


@pytest.fixture
def owners() -> Owners:
    """An empty shard."""
    return Owners()


def place(owners: Owners, session: str, *resources: str, connection: int | None = None) -> int:
    """Queue a claim, or repeat it; return its place."""
    asked = claim(session, *resources, waits=True, claim_id="c", connection=connection)
    answer = owners.own(asked)
    assert answer.error is ErrorCode.CLAIM_WAITING, answer
    return answer.place


def error_of(owners: Owners, session: str) -> ErrorCode | None:
    answer = owners.shard.answer_of(session)
    return None if answer is None else answer.error


# -- leases --------------------------------------------------------------------


def test_a_claim_without_renewal_ends_with_its_lease(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    owners.lapse(LEASE_S - 1)
    assert owners.is_live("s1")
    owners.renew("s1", 1)
    owners.lapse(LEASE_S - 1)
    assert owners.is_live("s1")
    owners.lapse(1)
    assert not owners.is_live("s1")
    assert owners.renew("s1", 1).error is ErrorCode.OWNER_FENCED
    owners.work()
    assert owners.shard.next_deadline() is None


def test_a_renewal_moves_the_deadline(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    assert owners.shard.next_deadline() == owners.runtime.now + LEASE_S
    decision = owners.shard.renew(None, "s1", 1, owners.runtime.now)
    assert decision.moves_deadline
    assert decision.records == ()


@pytest.mark.parametrize(("asked_ms", "lease_ms"), [(1, 500), (700, 700), (10_000_000, 900_000)])
def test_a_lease_is_within_the_limits(owners: Owners, asked_ms: int, lease_ms: int) -> None:  # O10
    limits = OwnershipLimits()
    assert (limits.lease_ms_min, limits.lease_ms_max) == (500, 900_000)
    asked = claim("s1", "job")
    object.__setattr__(asked, "lease_ms", asked_ms)
    assert owners.granted(asked).lease_ms == lease_ms


def test_after_a_load_each_holder_has_its_whole_lease(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    owners.runtime.advance(LEASE_S - 1)
    owners.runtime.crash()
    owners.lapse(LEASE_S - 1)
    assert owners.is_live("s1")
    owners.lapse(1)
    assert not owners.is_live("s1")


def test_the_broker_s_own_pause_is_nobody_s_silence(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    owners.runtime.advance(100)
    assert owners.shard.paused(100)
    owners.lapse(LEASE_S - 1)
    assert owners.is_live("s1")
    owners.granted(claim("s2", "other"))
    owners.lapse(1)
    assert (owners.is_live("s1"), owners.is_live("s2")) == (False, True)
    assert owners.shard.next_deadline() == owners.runtime.now + LEASE_S - 1


def test_a_closed_connection_ends_its_claims_at_once(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "a"))
    owners.granted(claim("s2", "b", connection=1))
    owners.granted(claim("s3", "c"))
    assert not owners.shard.disconnected(9)
    assert owners.shard.disconnected(1)
    assert owners.is_due()
    assert owners.renew("s1", 1).error is ErrorCode.OWNER_FENCED
    assert owners.attach("s2", 1) is ErrorCode.OWNER_FENCED
    owners.runtime.expire()
    assert [owners.is_live(each) for each in ("s1", "s2", "s3")] == [False, False, True]


def test_a_claim_that_was_loaded_knows_no_connection(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "a"))
    owners.runtime.crash()
    assert not owners.shard.disconnected(1)
    assert owners.is_live("s1")


def test_a_lease_begins_anew_when_the_grant_is_complete(owners: Owners) -> None:  # O10
    """Its claimant could not renew: answers on a connection come in order."""
    owners.own(claim("s1", "orders/0"))
    owners.lapse(LEASE_S - 1)
    owners.done(owners.tasks()["s1"])
    owners.lapse(LEASE_S - 1)
    assert owners.states()["orders/0"].state == "held"
    owners.lapse(1)
    assert owners.states()["orders/0"].state == "free"


def test_a_lease_that_ends_during_the_grant_ends_the_claim_with_it(owners: Owners) -> None:  # O9
    owners.own(claim("s1", "orders/0"))
    owners.lapse(LEASE_S)
    assert owners.is_live("s1")
    owners.done(owners.tasks()["s1"])
    assert not owners.is_live("s1")
    assert owners.settled() == ["s1"]


def replay_all(owners: Owners, records: Iterable[LogRecord]) -> None:
    for record in records:
        owners.shard.replay(record, Offset(0), owners.runtime.now)


@pytest.mark.parametrize(("resources", "ended"), [(1, 1000), (300, 4)])
def test_one_decision_ends_claims_of_a_bounded_number_of_resources(
    owners: Owners, resources: int, ended: int
) -> None:  # O10
    for number in range(ended + 1):
        names = (f"r{number}.{each}" for each in range(resources))
        asked = claim(f"s{number}", *names)
        granted = owners.shard.own(asked, owners.runtime.now, owners.runtime.wall_ms)
        replay_all(owners, granted.records)
    owners.runtime.advance(LEASE_S)
    for count in (ended, 1):
        decision = owners.shard.expire(owners.runtime.now, owners.runtime.wall_ms)
        assert len(decision.records) == count
        assert owners.is_due()
        replay_all(owners, decision.records)
    assert owners.shard.next_deadline() is None


def test_one_decision_completes_grants_of_a_bounded_number_of_resources(
    owners: Owners,
) -> None:  # O9
    """A claim of many resources ends, and all who took over wait for the work of its end."""
    owners.granted(claim("s0", *(f"r{each}" for each in range(990)), name="n"))
    for number in range(1, 6):
        names = (f"r{each}" for each in range(number, 990, 5))
        owners.own(claim(f"s{number}", *names, *(f"{number}.{each}" for each in range(202))))
    tasks = owners.tasks()
    ended = tasks.pop("s0")
    for task in tasks.values():
        owners.done(task)
    owners.done(ended)
    decision = owners.shard.expire(owners.runtime.now, owners.runtime.wall_ms)
    assert len(decision.records) == 3
    assert owners.is_due()
    replay_all(owners, decision.records)
    decision = owners.shard.expire(owners.runtime.now, owners.runtime.wall_ms)
    assert len(decision.records) == 2


def test_an_operator_s_release_is_parted_into_bounded_decisions(owners: Owners) -> None:  # O10
    for number in range(4):
        owners.granted(claim(f"s{number}", *(f"{number}.{each}" for each in range(400))))
    decision = owners.shard.release_resources(None, ["3.1", "1.1", "never", "0.1", "2.1"], 0)
    found, rest = decision.response
    assert [each.resource for each in found] == ["3.1", "1.1", "0.1"]
    assert len(decision.records) == 3
    assert rest == ["2.1"]


# -- waiting --------------------------------------------------------------------


def test_a_claim_that_waits_severs_nobody(owners: Owners) -> None:  # O1
    owners.granted(claim("s1", "job@3"))
    assert place(owners, "s2", "job@9") == 0
    assert owners.is_live("s1")
    assert owners.shard.answer_of("s2") is None
    assert owners.states()["job"].waiting == 1


def test_a_claim_that_waits_for_free_resources_is_granted_at_once(owners: Owners) -> None:  # O10
    assert owners.granted(claim("s1", "job", waits=True)).session == "s1"


def test_who_waits_is_granted_in_order(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    assert [place(owners, f"s{number}", "job") for number in (2, 3, 4)] == [0, 1, 2]
    owners.release("s1")
    owners.work()
    assert error_of(owners, "s2") is ErrorCode.NONE
    assert error_of(owners, "s3") is None
    assert place(owners, "s9", "job", connection=3) == 0
    owners.disconnect(2)
    owners.work()
    assert error_of(owners, "s3") is ErrorCode.NONE
    assert place(owners, "s4", "job") == 0
    assert "s3" in owners.settled()


def test_a_later_claim_overtakes_none_that_wants_its_resource(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "b"))
    place(owners, "s2", "a", "b")
    assert place(owners, "s3", "a", "c") == 1, "a is free, but promised"
    assert place(owners, "s4", "c") == 1
    assert owners.granted(claim("s5", "d", waits=True)).session == "s5"
    owners.disconnect(2)
    owners.work()
    assert error_of(owners, "s3") is ErrorCode.NONE
    assert error_of(owners, "s4") is None


def test_of_two_resources_that_are_freed_each_goes_to_its_first(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "a", "b"))
    place(owners, "s2", "a")
    place(owners, "s3", "b", "a")
    place(owners, "s4", "b")
    owners.release("s1")
    owners.work()
    assert [error_of(owners, each) for each in ("s2", "s3", "s4")] == [ErrorCode.NONE, None, None]
    owners.release("s2")
    owners.work()
    assert [error_of(owners, each) for each in ("s3", "s4")] == [ErrorCode.NONE, None]


def test_a_claim_that_does_not_wait_takes_a_free_resource_from_the_queue(
    owners: Owners,
) -> None:  # O1
    owners.granted(claim("s1", "b"))
    place(owners, "s2", "a", "b")
    assert owners.epochs(claim("s3", "a")) == [1]
    owners.release("s1")
    owners.work()
    assert error_of(owners, "s2") is None
    owners.release("s3")
    owners.work()
    assert error_of(owners, "s2") is ErrorCode.NONE


def test_a_repeated_claim_keeps_its_place_and_learns_that_it_was_granted(
    owners: Owners,
) -> None:  # O10
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job")
    place(owners, "s3", "job")
    repeated = owners.own(claim("s8", "job", waits=True, claim_id="c", connection=3))
    assert (repeated.session, repeated.place) == ("s3", 1)
    owners.release("s1")
    owners.work()
    repeated = owners.own(claim("s9", "job", waits=True, claim_id="c", connection=2))
    assert (repeated.error, repeated.session) == (ErrorCode.NONE, "s2")
    owners.release("s2")
    owners.work()
    assert place(owners, "s9", "job", connection=2) == 0, "it has ended: a new claim"


def test_a_repeated_claim_that_was_granted_meanwhile_renews_its_lease(
    owners: Owners,
) -> None:  # O10
    """The claimant counts its lease from the sending of the repetition."""
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job")
    owners.release("s1")
    owners.work()
    owners.lapse(LEASE_S - 1)
    repeated = claim("s9", "job", waits=True, claim_id="c", connection=2)
    decision = owners.shard.own(repeated, owners.runtime.now, owners.runtime.wall_ms)
    assert (decision.response.session, decision.moves_deadline) == ("s2", True)
    owners.lapse(LEASE_S - 1)
    assert error_of(owners, "s2") is ErrorCode.NONE
    owners.lapse(1)
    assert error_of(owners, "s2") is ErrorCode.OWNER_FENCED


def test_without_an_id_each_claim_is_a_new_one(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    owners.own(claim("s2", "job", waits=True))
    assert owners.own(claim("s3", "job", waits=True, connection=2)).place == 1


@pytest.mark.parametrize(
    ("named", "error"),
    [("job@3", ErrorCode.RESOURCE_OWNED), ("job+1", ErrorCode.OWNER_FENCED)],
)
def test_who_waited_in_vain_is_told_why(owners: Owners, named: str, error: ErrorCode) -> None:  # O4
    owners.granted(claim("s1", "job@3"))
    place(owners, "s2", named)
    place(owners, "s3", "job")
    owners.granted(claim("s4", "job@9"))
    assert error_of(owners, "s2") is error
    assert "s2" in owners.settled()
    asked = claim("s9", named, waits=True, claim_id="c", connection=2)
    assert owners.own(asked).error is error
    assert error_of(owners, "s2") is ErrorCode.OWNER_FENCED, "it was told"
    owners.release("s4")
    owners.work()
    assert error_of(owners, "s3") is ErrorCode.NONE


@pytest.mark.parametrize(
    ("named", "error"),
    [("job@2", ErrorCode.RESOURCE_OWNED), ("job+7", ErrorCode.OWNER_FENCED)],
)
def test_who_would_wait_in_vain_is_refused_at_once(
    owners: Owners, named: str, error: ErrorCode
) -> None:  # O10
    owners.granted(claim("s1", "job@3"))
    assert owners.refused(claim("s2", named, waits=True))[0] is error


def test_waiting_ends_with_the_connection_and_by_release(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job")
    place(owners, "s3", "job")
    owners.disconnect(2)
    assert place(owners, "s3", "job") == 0
    assert owners.release("s3", "g") == []
    assert owners.states()["job"].waiting == 1
    assert owners.release("s3") == []
    assert owners.states()["job"].waiting == 0
    assert error_of(owners, "s3") is ErrorCode.OWNER_FENCED


def test_a_place_lasts_for_a_lease_from_the_last_repetition(owners: Owners) -> None:  # O10
    """Also where a silently dead connection is never closed: it keeps nobody back."""
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job")
    place(owners, "s3", "job")
    owners.lapse(LEASE_S - 1)
    owners.renew("s1", 1)
    assert place(owners, "s9", "job", connection=3) == 1
    assert owners.shard.next_deadline() == owners.runtime.now + 1
    owners.lapse(1)
    assert owners.states()["job"].waiting == 1
    assert place(owners, "s9", "job", connection=3) == 0
    assert place(owners, "s8", "job", connection=2) == 1, "it comes anew"
    owners.release("s1")
    owners.work()
    assert error_of(owners, "s3") is ErrorCode.NONE


def test_only_its_claimant_keeps_a_place(owners: Owners) -> None:  # O10
    """A request that waits is answered with the place; that is no repetition."""
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job")
    owners.lapse(LEASE_S - 1)
    owners.renew("s1", 1)
    found = owners.shard.place_of("s2")
    assert found is not None
    assert (found.error, found.place) == (ErrorCode.CLAIM_WAITING, 0)
    assert owners.shard.place_of("s1") is None
    owners.lapse(1)
    assert owners.shard.place_of("s2") is None


def test_the_broker_s_own_pause_costs_nobody_a_place(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job")
    owners.runtime.advance(100)
    assert owners.shard.paused(100)
    owners.lapse(LEASE_S - 1)
    assert owners.states()["job"].waiting == 1


def test_of_a_place_that_is_lost_nothing_is_left(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job+1")
    owners.granted(claim("s3", "job"))
    place(owners, "s4", "job")
    place(owners, "s5", "job")
    owners.disconnect(5)
    owners.release("s3")
    owners.work()
    assert len(owners.shard._waiting) == 1, "a refusal that nobody has asked for again"
    owners.lapse(LEASE_S)
    owners.work()
    assert len(owners.shard._waiting) == 0
    assert owners.shard.next_deadline() is None
    assert not owners.shard._leases._gone


def test_a_refusal_that_nobody_takes_goes_with_the_connection(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job+1")
    owners.granted(claim("s3", "job"))
    owners.release("s3")
    owners.work()
    assert error_of(owners, "s2") is ErrorCode.OWNER_FENCED
    owners.disconnect(2)
    assert len(owners.shard._waiting) == 0


def test_waiting_claims_and_their_resources_are_bounded() -> None:  # O10
    owners = Owners(OwnershipLimits(waiting_max=3, waiting_resources_max=4, resources_max=3))
    owners.granted(claim("s1", "a", "b"))
    place(owners, "s2", "a", "b")
    place(owners, "s3", "a")
    asked = claim("s4", "a", "b", waits=True)
    assert owners.refused(asked)[0] is ErrorCode.POLICY_VIOLATION
    place(owners, "s4", "a")
    assert owners.refused(claim("s5", "a", waits=True))[0] is ErrorCode.POLICY_VIOLATION
    owners.disconnect(2)
    place(owners, "s5", "a")


def test_a_claim_whose_new_names_found_no_room_meanwhile_is_refused() -> None:  # O3
    owners = Owners(OwnershipLimits(resources_max=2))
    owners.granted(claim("s1", "a"))
    place(owners, "s2", "a", "b")
    owners.granted(claim("s3", "c"))
    owners.release("s1")
    owners.work()
    assert error_of(owners, "s2") is ErrorCode.POLICY_VIOLATION


def test_who_waits_for_a_grant_in_progress_is_not_refused(owners: Owners) -> None:  # O9
    owners.own(claim("s1", "orders/0"))
    assert place(owners, "s2", "orders/0") == 0


def test_a_load_forgets_who_waits(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "job"))
    place(owners, "s2", "job")
    owners.runtime.crash()
    assert error_of(owners, "s2") is ErrorCode.OWNER_FENCED
    assert owners.states()["job"].waiting == 0
