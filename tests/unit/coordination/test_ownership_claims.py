"""Who is granted what: O1 to O6 and O9, and the work that a decision leaves."""

import pytest

from fencelog.coordination.ownership.model import OwnershipLimits
from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.types import TopicPartition
from tests.unit.coordination.owners import FENCE, Owners, claim

PARTITION = TopicPartition("orders", 0)


@pytest.fixture
def owners() -> Owners:
    """An empty shard."""
    return Owners()


# -- O1 to O6 --------------------------------------------------------------------


def test_a_free_resource_is_granted(owners: Owners) -> None:  # O1
    answer = owners.granted(claim("s1", "job"))
    assert answer.session == "s1"
    assert answer.lease_ms == 10_000
    assert answer.transactional_id is None
    assert owners.states()["job"].holder == "holder of s1"


@pytest.mark.parametrize("named", ["job@5", "job@6", "job"])
def test_an_equal_or_higher_generation_severs_the_owner(owners: Owners, named: str) -> None:  # O1
    owners.granted(claim("s1", "job@5"))
    owners.granted(claim("s2", named))
    answer = owners.shard.answer_of("s1")
    assert answer is not None
    assert answer.error is ErrorCode.OWNER_FENCED
    assert not owners.is_live("s1")


def test_a_lower_generation_is_refused_while_the_owner_lives(owners: Owners) -> None:  # O1
    owners.granted(claim("s1", "job@5"))
    error, (refused,) = owners.refused(claim("s2", "job@4"))
    assert error is ErrorCode.RESOURCE_OWNED
    assert (refused.resource, refused.generation, refused.epoch) == ("job", 5, 1)
    assert refused.holder == "holder of s1"
    assert owners.is_live("s1")


def test_a_claim_severed_on_one_resource_ends_whole(owners: Owners) -> None:  # O1
    owners.granted(claim("s1", "a@3", "b@3"))
    owners.granted(claim("s2", "b@3"))
    assert owners.states()["a"].state == "free"
    assert owners.epochs(claim("s3", "a@3")) == [2]
    assert owners.is_live("s2")


def test_generation_0_takes_any_resource_and_resets_its_generation(owners: Owners) -> None:  # O2
    owners.granted(claim("s1", "job@5"))
    assert owners.generations(claim("s2", "job@0")) == [0]
    assert owners.generations(claim("s3", "job")) == [1]


def test_generation_0_is_fenced_by_a_wrong_epoch(owners: Owners) -> None:  # O2, O5
    owners.granted(claim("s1", "job"))
    owners.granted(claim("s2", "job"))
    error, _ = owners.refused(claim("s3", "job@0+1"))
    assert error is ErrorCode.OWNER_FENCED
    assert owners.is_live("s2")


def test_each_grant_has_the_next_epoch_whatever_came_between(owners: Owners) -> None:  # O3
    assert owners.epochs(claim("s1", "job@9")) == [1]
    assert owners.epochs(claim("s2", "job@0")) == [2]
    owners.release("s2")
    owners.work()
    owners.runtime.crash()
    assert owners.epochs(claim("s3", "job")) == [3]
    owners.runtime.crash()
    assert owners.epochs(claim("s4", "job")) == [4]


def test_epochs_count_by_group_and_resource(owners: Owners) -> None:  # O3
    owners.granted(claim("s1", "job"))
    owners.granted(claim("s2", "job"))
    assert owners.epochs(claim("s3", "job", group="etl")) == [1]
    assert owners.epochs(claim("s4", "job", "other")) == [3, 1]
    assert owners.is_live("s3")


def test_without_a_name_the_next_generation_is_recorded(owners: Owners) -> None:  # O4
    assert owners.generations(claim("s1", "job")) == [1]
    assert owners.generations(claim("s2", "job@7")) == [7]
    assert owners.generations(claim("s3", "job")) == [8]


def test_a_generation_outlives_its_owner_and_a_restart(owners: Owners) -> None:  # O4
    owners.granted(claim("s1", "job@5"))
    owners.release("s1")
    for _ in range(2):
        error, (refused,) = owners.refused(claim("s2", "job@4"))
        assert error is ErrorCode.STALE_GENERATION
        assert (refused.generation, refused.epoch, refused.holder) == (5, 1, None)
        owners.work()
        owners.runtime.crash()
    assert owners.generations(claim("s3", "job@5")) == [5]


@pytest.mark.parametrize("prev_epoch", [0, 1, 3])
def test_an_epoch_that_is_not_the_current_one_severs_nobody(
    owners: Owners, prev_epoch: int
) -> None:  # O5
    owners.granted(claim("s1", "job"))
    owners.granted(claim("s2", "job"))
    error, (refused,) = owners.refused(claim("s3", f"job@99+{prev_epoch}"))
    assert error is ErrorCode.OWNER_FENCED
    assert (refused.epoch, refused.holder) == (2, "holder of s2")
    assert owners.is_live("s2")


def test_an_epoch_of_a_resource_that_nobody_ever_had_is_fenced(owners: Owners) -> None:  # O5
    error, (refused,) = owners.refused(claim("s1", "job+0"))
    assert (error, refused.epoch) == (ErrorCode.OWNER_FENCED, -1)


def test_the_last_holder_comes_back_with_its_epoch(owners: Owners) -> None:  # O5
    owners.granted(claim("s1", "job@5"))
    owners.runtime.crash()
    assert owners.epochs(claim("s2", "job@5+1")) == [2]
    owners.release("s2")
    owners.work()
    assert owners.epochs(claim("s3", "job+2")) == [3]


def test_epochs_are_judged_for_all_resources_before_anything_else(owners: Owners) -> None:  # O5
    owners.granted(claim("s1", "a@9"))
    owners.own(claim("s2", "b/0"))
    owners.granted(claim("s3", "c"))
    error, refused = owners.refused(claim("s4", "a@1", "b/0", "c+7"))
    assert error is ErrorCode.OWNER_FENCED
    assert [each.resource for each in refused] == ["c"]


def test_a_claim_is_granted_whole_or_not_at_all(owners: Owners) -> None:  # O6
    owners.granted(claim("s1", "b@5"))
    owners.granted(claim("s2", "d@5"))
    error, refused = owners.refused(claim("s3", "a", "b@4", "c", "d@3"))
    assert error is ErrorCode.RESOURCE_OWNED
    assert [(each.resource, each.error) for each in refused] == [
        ("b", ErrorCode.RESOURCE_OWNED),
        ("d", ErrorCode.RESOURCE_OWNED),
    ]
    assert owners.states().keys() == {"b", "d"}


def test_one_record_grants_a_claim(owners: Owners) -> None:  # O6
    owners.own(claim("s1", "a", "b/0", "c", name="n"))
    assert len(owners.runtime.log) == 1


def test_names_for_ever_are_bounded() -> None:  # O3
    owners = Owners(OwnershipLimits(resources_max=3))
    owners.granted(claim("s1", "a", "b"))
    error, _ = owners.refused(claim("s2", "a", "c", "d"))
    assert error is ErrorCode.POLICY_VIOLATION
    assert owners.epochs(claim("s2", "a", "c")) == [2, 1]


def test_the_highest_generation_still_has_a_next_one(owners: Owners) -> None:  # O4
    owners.granted(claim("s1", f"job@{1 << 62}"))
    assert owners.generations(claim("s2", "job")) == [(1 << 62) + 1]


# -- transactional ids --------------------------------------------------------------------


def test_a_transactional_id_is_derived_from_its_own_epochs(owners: Owners) -> None:  # O8
    owners.granted(claim("s1", "a"))
    first = owners.granted(claim("s2", "a", group="g", name="n"))
    second = owners.granted(claim("s3", "b", group="g", name="n"))
    assert first.transactional_id == "__fencelog.own/g/n~1"
    assert second.transactional_id == "__fencelog.own/g/n~2"
    assert [each.resource for each in second.resources] == ["b"]
    assert not owners.is_live("s2"), "who may have the resources may have the id"


def test_a_refusal_names_the_transactional_id_that_is_in_the_way(owners: Owners) -> None:  # O6
    owners.own(claim("s1", "a", name="n"))
    error, (refused,) = owners.refused(claim("s2", "b", name="n"))
    assert (error, refused.resource) == (ErrorCode.CLAIM_IN_PROGRESS, "__fencelog.own//n")


# -- outstanding work --------------------------------------------------------------------


def test_a_grant_raises_epochs_and_is_complete_when_that_is_done(owners: Owners) -> None:  # O9
    answer = owners.own(claim("s1", "orders/0", "job", group="etl", name="n"))
    assert (answer.error, answer.session) == (ErrorCode.NONE, "s1")
    assert owners.shard.answer_of("s1") is None
    assert owners.states("etl")["job"].state == "claiming"
    assert owners.attach("s1", 1, "etl") is ErrorCode.OWNER_FENCED
    owner = Owner("etl", 1, "s1", "__fencelog.own/etl/n~1", "holder of s1", True)
    task = owners.tasks()["s1"]
    assert task.is_live
    assert task.group == "etl"
    assert task.partitions == {PARTITION: owner}
    assert task.producers == {"__fencelog.own/etl/n": owner}
    assert owners.settled() == []
    owners.done(task)
    assert owners.settled() == ["s1"]
    assert owners.settled() == []
    answer = owners.granted(claim("s2", "orders/0", group="etl"))
    assert [each.fence_offset for each in answer.resources] == [FENCE]
    assert owners.states("etl")["orders/0"].fence_offset == FENCE


def test_an_owner_of_writes_raises_nobody_s_commits(owners: Owners) -> None:  # O8
    owners.own(claim("s1", "orders/0"))
    task = owners.tasks()["s1"]
    assert task.partitions == {PARTITION: Owner(None, 1, "s1", None, "holder of s1", True)}
    assert task.group is None


def test_work_is_read_from_committed_records_only() -> None:  # E16
    owners = Owners(hold=True)
    owners.own(claim("s1", "orders/0"))
    assert owners.tasks() == {}
    owners.runtime.commit()
    task = owners.tasks()["s1"]
    owners.done(task)
    assert owners.settled() == []
    owners.runtime.commit()
    assert owners.settled() == ["s1"]


def test_others_are_told_who_lives_by_committed_records() -> None:  # E16, O8
    owners = Owners(hold=True)
    other = TopicPartition("orders", 1)

    def live(epoch: int = 1) -> dict[TopicPartition, str]:
        committed = owners.runtime.committed
        found = dict(owners.shard.owners(committed, [PARTITION, other]))
        tasks = list(owners.shard.live(committed))
        assert {name: owner for each in tasks for name, owner in each.partitions.items()} == found
        assert all(each.is_live for each in tasks)
        assert all(each.is_live and each.epoch == epoch for each in found.values())
        return {name: each.session for name, each in found.items()}

    owners.own(claim("s1", "orders/0", "job", name="copy"))
    assert live() == {}  # its work is still to begin
    owners.runtime.commit()
    assert live() == {PARTITION: "s1"}
    owners.done(owners.tasks()["s1"])
    owners.own(claim("s2", "orders/1"))
    owners.runtime.commit()
    owners.done(owners.tasks()["s2"])
    assert live() == {PARTITION: "s1", other: "s2"}
    assert [name for name, _ in owners.shard.owners(owners.runtime.committed, [other])] == [other]
    owners.own(claim("s3", "orders/0"))
    assert live() == {PARTITION: "s1", other: "s2"}  # its epoch is 1; the one of s3 is 2
    owners.release("s2")
    assert live() == {PARTITION: "s1", other: "s2"}
    owners.runtime.commit()
    owners.done(owners.tasks()["s1"])
    owners.runtime.commit()
    assert live(epoch=2) == {PARTITION: "s3"}


def test_work_is_named_in_the_order_of_its_decisions(owners: Owners) -> None:  # O9
    for session, partition in (("s3", "a/0"), ("s1", "b/0"), ("s2", "c/0")):
        owners.own(claim(session, partition))
    names = owners.shard.outstanding(owners.runtime.committed)
    assert next(names) == "s3"
    assert list(names) == ["s1", "s2"]
    owners.work()
    assert not any(owners.shard.task(each) for each in ("s3", "s4")), "none, and nobody knows it"


@pytest.mark.parametrize("named", ["orders/0@9", "orders/0@0", "orders/0"])
def test_meanwhile_other_claims_wait_for_the_grant(owners: Owners, named: str) -> None:  # O9
    owners.own(claim("s1", "orders/0"))
    error, (refused,) = owners.refused(claim("s2", named))
    assert error is ErrorCode.CLAIM_IN_PROGRESS
    assert (refused.holder, refused.epoch) == ("holder of s1", 1)


def test_a_dead_claimant_s_grant_is_completed_and_its_resources_are_free(
    owners: Owners,
) -> None:  # O9
    owners.own(claim("s1", "orders/0"))
    owners.disconnect(1)
    owners.runtime.expire()
    assert owners.refused(claim("s2", "orders/0"))[0] is ErrorCode.CLAIM_IN_PROGRESS
    owners.done(owners.tasks()["s1"])
    answer = owners.shard.answer_of("s1")
    assert answer is not None
    assert answer.error is ErrorCode.OWNER_FENCED
    assert owners.states()["orders/0"].state == "free"
    owner = Owner(None, 1, "s1", None, "holder of s1", False)
    assert owners.tasks()["s1"].partitions == {PARTITION: owner}


def test_a_grant_that_was_cut_short_by_a_restart_goes_on(owners: Owners) -> None:  # O9
    owners.own(claim("s1", "orders/0"))
    before = owners.tasks()
    owners.runtime.crash()
    assert owners.tasks() == before
    owners.work()
    assert owners.states()["orders/0"].state == "held"


def test_the_end_of_a_claim_leaves_out_what_a_newer_one_has_taken(owners: Owners) -> None:  # O8
    owners.granted(claim("s1", "orders/0", "orders/1", name="n"))
    owners.own(claim("s2", "orders/0"))
    ended = owners.tasks()["s1"]
    assert not ended.is_live
    assert list(ended.partitions) == [TopicPartition("orders", 1)]
    assert [each.is_live for each in ended.partitions.values()] == [False]
    assert [each.is_live for each in ended.producers.values()] == [False]


def test_a_grant_waits_for_the_work_of_older_owners(owners: Owners) -> None:  # O8
    owners.granted(claim("s1", "orders/0", name="n"))
    owners.own(claim("s2", "orders/0"))
    tasks = owners.tasks()
    owners.done(tasks["s2"])
    assert owners.shard.answer_of("s2") is None
    assert owners.tasks().keys() == {"s1"}, "its own work is not asked for twice"
    owners.done(tasks["s1"])
    assert owners.is_due()
    owners.runtime.expire()
    answer = owners.shard.answer_of("s2")
    assert answer is not None
    assert answer.resources[0].fence_offset == FENCE
    assert owners.tasks() == {}


def test_an_end_leaves_its_transactions_to_no_newer_claim_of_the_name(
    owners: Owners,
) -> None:  # O8
    """They may have records in a partition that a third claim takes."""
    owners.granted(claim("s1", "orders/0", "job", name="n"))
    owners.own(claim("s2", "job", name="n"))
    owners.own(claim("s3", "orders/0"))
    tasks = owners.tasks()
    owners.done(tasks["s3"])
    assert owners.shard.answer_of("s3") is None
    assert tasks["s1"].partitions == {}
    ((key, ended),) = tasks["s1"].producers.items()
    assert (ended.session, ended.epoch, ended.is_live) == ("s1", 1, False)
    assert tasks["s2"].producers[key].epoch == 2
    owners.done(tasks["s1"])
    owners.runtime.expire()
    assert owners.shard.answer_of("s3") is not None, "it does not wait for the work of s2"
    assert owners.shard.answer_of("s2") is None


def test_a_restart_asks_again_for_work_that_waited_for_older_owners(owners: Owners) -> None:  # O9
    owners.granted(claim("s1", "orders/0", name="n"))
    owners.own(claim("s2", "orders/0"))
    owners.done(owners.tasks()["s2"])
    owners.runtime.crash()
    assert owners.tasks().keys() == {"s1", "s2"}
    owners.work()
    assert owners.states()["orders/0"].state == "held"


def test_a_late_report_of_a_grant_is_not_the_report_of_its_end(owners: Owners) -> None:  # O9
    owners.own(claim("s1", "orders/0"))
    late = owners.tasks()["s1"]
    owners.done(late)
    owners.done(late)
    owners.release("s1")
    owners.done(late)
    assert owners.tasks().keys() == {"s1"}
    owners.done(owners.tasks()["s1"])
    owners.done(late)
    assert owners.tasks() == {}


def test_a_claim_that_was_to_be_completed_may_be_over_by_then(owners: Owners) -> None:  # O9
    owners.granted(claim("s1", "orders/0", name="n"))
    owners.own(claim("s2", "orders/0"))
    tasks = owners.tasks()
    for session in ("s2", "s1", "s2"):
        owners.done(tasks[session])
    owners.release("s2")
    owners.done(owners.tasks()["s2"])
    owners.runtime.expire()
    assert owners.shard.next_deadline() is None


def test_a_claim_of_no_partition_after_nobody_is_complete_at_once(owners: Owners) -> None:  # O9
    owners.own(claim("s1", "job"))
    assert owners.tasks() == {}
    assert owners.settled() == ["s1"]
    owners.own(claim("s2", "job"))
    assert owners.shard.answer_of("s2") is None, "connections of s1 are not closed yet"


# -- release, description --------------------------------------------------------------------


def test_a_release_says_what_was_held_once(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "a", "b", group="g", name="n"))
    assert owners.release("s1") == [], "a claim of another group"
    assert [(each.resource, each.epoch) for each in owners.release("s1", "g")] == [
        ("a", 1),
        ("b", 1),
    ]
    assert owners.release("s1", "g") == []
    owners.work()
    assert owners.release("s1", "g") == []
    assert owners.states("g")["a"].state == "free"


def test_an_operator_ends_whole_claims(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "a", "b"))
    owners.granted(claim("s2", "c"))
    owners.own(claim("s3", "orders/0"))
    released = owners.take(["b", "orders/0", "never", "b"])
    assert [(each.resource, each.error) for each in released] == [
        ("b", ErrorCode.NONE),
        ("orders/0", ErrorCode.CLAIM_IN_PROGRESS),
    ]
    assert owners.is_live("s2")
    assert owners.is_live("s3")
    assert owners.take(["b"]) == []
    assert owners.states()["a"].state == "free"


def test_a_session_answers_only_with_the_epoch_and_the_group_of_its_claim(
    owners: Owners,
) -> None:  # O7
    owners.granted(claim("s1", "a"))
    owners.granted(claim("s2", "b", "a"))
    assert owners.attach("s2", 2) is ErrorCode.NONE
    assert owners.attach("s2", 1) is ErrorCode.OWNER_FENCED
    assert owners.attach("s2", 2, "g") is ErrorCode.OWNER_FENCED
    assert owners.attach("s1", 1) is ErrorCode.OWNER_FENCED
    assert owners.renew("s2", 2).lease_ms == 10_000
    assert owners.renew("s2", 1).error is ErrorCode.OWNER_FENCED
