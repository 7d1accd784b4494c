"""What a leader counts: the high watermark, and who is in sync (F2)."""

from fencelog.replication.leader import LeaderProgress, Leadership
from fencelog.types import Instant, LeaderEpoch, NodeId, Offset

LAG_S = 30.0


def leading(
    isr: tuple[int, ...] = (1, 2, 3),
    *,
    epoch_start: int = 0,
    high_watermark: int = 0,
    min_isr: int = 2,
    all_replicas: bool = False,
) -> LeaderProgress:
    return LeaderProgress(
        Leadership(
            NodeId(1),
            (NodeId(1), NodeId(2), NodeId(3)),
            tuple(map(NodeId, isr)),
            LeaderEpoch(5),
            Offset(epoch_start),
            Offset(high_watermark),
            min_isr,
        ),
        all_replicas=all_replicas,
        now=Instant(0.0),
    )


def acknowledge(
    progress: LeaderProgress,
    node: int,
    fetch_end: int,
    durable: int,
    at: float,
    log_end: int,
    log_start: int = 0,
) -> int:
    return progress.acknowledged(
        NodeId(node),
        Offset(fetch_end),
        Offset(durable),
        Instant(at),
        log_end=Offset(log_end),
        log_start=Offset(log_start),
    )


def change(
    progress: LeaderProgress, at: float, log_end: int, log_start: int = 0
) -> tuple[NodeId, ...] | None:
    start = Offset(log_start)
    return progress.isr_change(Instant(at), LAG_S, log_end=Offset(log_end), log_start=start)


def test_the_high_watermark_is_what_the_slowest_member_has_made_durable() -> None:
    progress = leading()
    assert progress.flushed(Offset(10)) == 0
    assert acknowledge(progress, 2, 10, 8, 1, 10) == 0
    assert acknowledge(progress, 3, 10, 5, 1, 10) == 5
    assert acknowledge(progress, 3, 10, 9, 1, 10) == 8


def test_it_never_goes_back() -> None:
    progress = leading((1, 2), high_watermark=7)
    progress.flushed(Offset(10))
    assert acknowledge(progress, 2, 3, 3, 1, 10) == 7


def test_an_acknowledgement_is_never_above_the_followers_log() -> None:
    progress = leading((1, 2))
    progress.flushed(Offset(10))
    assert acknowledge(progress, 2, 4, 9, 1, 10) == 4


def test_it_does_not_move_while_too_few_are_in_sync() -> None:
    progress = leading((1,))
    assert not progress.has_enough
    assert progress.flushed(Offset(10)) == 0
    assert progress.require(1) == 10


def test_fewer_replicas_than_required_are_enough_if_all_are_in_sync() -> None:
    alone = Leadership(
        NodeId(1), (NodeId(1),), (NodeId(1),), LeaderEpoch(0), Offset(0), Offset(0), 2
    )
    progress = LeaderProgress(alone, all_replicas=False, now=Instant(0.0))
    assert progress.flushed(Offset(3)) == 3


def test_a_replica_that_is_added_counts_once_it_has_joined() -> None:
    one, two = NodeId(1), NodeId(2)
    alone = Leadership(one, (one,), (one,), LeaderEpoch(0), Offset(0), Offset(0), 1)
    progress = LeaderProgress(alone, all_replicas=False, now=Instant(0.0))
    assert progress.flushed(Offset(3)) == 3
    acknowledge(progress, 2, 3, 3, 1, 3)
    assert change(progress, 1, 3) is None  # nobody has said that it is a replica
    progress.placed((two, one))
    assert progress.settled((one,)) == 3
    assert change(progress, 1, 3) is None
    acknowledge(progress, 2, 3, 3, 1, 3)
    assert change(progress, 1, 3) == (two, one)
    progress.proposed((two, one))
    assert progress.flushed(Offset(9)) == 3
    assert progress.settled((two, one)) == 3
    assert acknowledge(progress, 2, 9, 8, 1, 9) == 8


def test_with_commit_all_every_replica_counts() -> None:
    progress = leading((1, 2), all_replicas=True)
    progress.flushed(Offset(10))
    assert acknowledge(progress, 2, 10, 10, 1, 10) == 0
    assert acknowledge(progress, 3, 4, 4, 1, 10) == 4


def test_a_leader_serves_once_everything_of_earlier_leaders_is_committed() -> None:
    progress = leading((1, 2), epoch_start=6, high_watermark=4)
    progress.flushed(Offset(6))
    assert not progress.serves
    acknowledge(progress, 2, 6, 6, 1, 6)
    assert progress.serves


def test_who_is_behind_for_too_long_leaves() -> None:
    progress = leading()
    acknowledge(progress, 2, 10, 10, 1, 10)
    acknowledge(progress, 3, 4, 4, 1, 10)
    assert change(progress, LAG_S, 10) is None
    assert change(progress, LAG_S + 0.5, 10) == (1, 2)


def test_who_always_has_what_was_there_a_request_ago_stays() -> None:
    progress = leading((1, 2))
    for second in range(100):  # never at the end of the log
        acknowledge(progress, 2, second * 10, second * 10, second, second * 10 + 10)
        assert change(progress, second, second * 10 + 10) is None


def test_an_idle_follower_that_has_everything_stays() -> None:
    progress = leading((1, 2))
    acknowledge(progress, 2, 10, 10, 1, 10)
    assert change(progress, 500, 10) is None
    assert change(progress, 505, 11) is None  # a record came: it has its time again
    assert change(progress, 531, 11) == (1,)


def test_who_has_everything_and_does_not_make_it_durable_leaves() -> None:
    progress = leading()
    progress.flushed(Offset(10))
    acknowledge(progress, 2, 10, 10, 1, 10)
    acknowledge(progress, 3, 10, 5, 1, 10)
    assert change(progress, 1 + LAG_S, 10) is None
    assert change(progress, 1.1 + LAG_S, 10) == (1, 2)
    acknowledge(progress, 3, 10, 10, 50, 10)
    assert change(progress, 1000, 10) is None, "it has nothing to flush"


def test_who_flushes_all_the_time_a_little_later_stays() -> None:
    progress = leading()
    for second in range(1, 100):
        for follower in (2, 3):
            acknowledge(progress, follower, 10 * second, 10 * second - 5, second, 10 * second)
        assert change(progress, second, 10 * second) is None


def test_who_has_caught_up_joins() -> None:
    progress = leading((1, 2), epoch_start=6, high_watermark=4)
    progress.flushed(Offset(10))
    acknowledge(progress, 2, 10, 10, 1, 10)
    assert change(progress, 1, 10) is None
    acknowledge(progress, 3, 10, 5, 1, 10)  # not all of it is durable
    assert change(progress, 1, 10) is None
    acknowledge(progress, 3, 10, 10, 2, 10)
    assert change(progress, 2, 10) == (1, 2, 3)


def test_nobody_joins_below_the_epochs_start() -> None:
    progress = leading((1,), epoch_start=6, high_watermark=4)
    acknowledge(progress, 2, 5, 5, 1, 5)
    assert change(progress, 1, 5) is None


def test_nobody_joins_who_begins_below_the_leader() -> None:  # D4
    progress = leading((1,))
    progress.flushed(Offset(10))
    acknowledge(progress, 2, 10, 10, 1, 10, log_start=6)
    assert change(progress, 1, 10, log_start=7) is None
    assert change(progress, 1, 10, log_start=6) == (1, 2)


def test_the_low_watermark_is_where_the_last_in_sync_replica_begins() -> None:  # D4
    progress = leading((1, 2))
    assert progress.low_watermark(Offset(8)) == -1  # it may begin anywhere
    acknowledge(progress, 2, 10, 10, 1, 10, log_start=5)
    assert progress.low_watermark(Offset(8)) == 5
    acknowledge(progress, 3, 10, 10, 1, 10, log_start=4)
    assert progress.low_watermark(Offset(8)) == 5
    progress.proposed((NodeId(1), NodeId(2), NodeId(3)))
    assert progress.low_watermark(Offset(8)) == 4
    progress.settled((NodeId(1),))
    assert progress.low_watermark(Offset(8)) == 8


def test_a_proposal_counts_old_and_new_members_until_it_is_settled() -> None:
    progress = leading((1, 2))
    progress.flushed(Offset(10))
    acknowledge(progress, 2, 10, 10, 1, 10)
    assert progress.high_watermark == 10
    acknowledge(progress, 3, 10, 10, 1, 10)
    progress.proposed((NodeId(1), NodeId(3)))
    assert change(progress, 2, 10) is None
    progress.flushed(Offset(20))
    assert acknowledge(progress, 3, 20, 20, 2, 20) == 10  # 2 may still be a member
    assert progress.settled((NodeId(1), NodeId(3))) == 20


def test_the_high_watermark_waits_for_who_may_have_joined() -> None:
    progress = leading((1, 2))
    progress.flushed(Offset(10))
    acknowledge(progress, 2, 10, 10, 1, 10)
    acknowledge(progress, 3, 10, 10, 1, 10)
    progress.proposed((NodeId(1), NodeId(2), NodeId(3)))
    progress.flushed(Offset(20))
    assert acknowledge(progress, 2, 20, 20, 2, 20) == 10  # 3 may be a member already
    assert acknowledge(progress, 3, 20, 20, 2, 20) == 20


def test_a_smaller_proposal_is_too_few_at_once() -> None:
    progress = leading((1, 2))
    progress.proposed((NodeId(1),))
    assert not progress.has_enough
    progress.settled((NodeId(1), NodeId(2)))
    assert progress.has_enough


def test_who_has_left_says_again_what_it_has() -> None:
    progress = leading()
    acknowledge(progress, 2, 10, 10, 1, 10)
    assert progress.has_heard(NodeId(2))
    assert progress.is_member(NodeId(2))
    progress.settled((NodeId(1), NodeId(3)))
    assert not progress.has_heard(NodeId(2))
    assert not progress.is_member(NodeId(2))
    assert change(progress, 2, 10) is None


def test_a_follower_that_has_disconnected_holds_the_high_watermark() -> None:
    progress = leading((1, 2))
    acknowledge(progress, 2, 10, 10, 1, 10)
    progress.disconnected(NodeId(2))
    assert progress.flushed(Offset(10)) == 0
    assert acknowledge(progress, 2, 6, 6, 1, 10) == 6


def test_a_broker_that_is_no_replica_changes_nothing() -> None:
    progress = leading((1, 2, 9))
    assert progress.isr == (1, 2)
    progress.flushed(Offset(10))
    acknowledge(progress, 9, 10, 10, 1, 10)
    progress.disconnected(NodeId(9))
    assert not progress.has_heard(NodeId(9))
    assert acknowledge(progress, 2, 10, 10, 1, 10) == 10
