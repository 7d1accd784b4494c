"""What is news on a stream: the rest is not sent, and nothing is forgotten."""

from fencelog.replication.session import FollowerSession, LeaderSession, Position, Watermarks
from fencelog.types import LeaderEpoch, Offset

MARKS = Watermarks(Offset(5), Offset(0))


def at(fetch_offset: int, durable: int = 0, epoch: int = 1) -> Position:
    return Position(LeaderEpoch(epoch), Offset(fetch_offset), epoch, Offset(durable), Offset(0))


# -- the follower's side ---------------------------------------------------------------------------


def test_a_position_is_told_once() -> None:
    session = FollowerSession[str]()
    session.follow("a", at(5))
    assert session.take(9).positions == [("a", at(5))]
    session.follow("a", at(5))
    assert not session.has_news
    session.follow("a", at(5, durable=5))
    assert session.take(9).positions == [("a", at(5, durable=5))]


def test_idle_partitions_are_in_no_request() -> None:
    session = FollowerSession[int]()
    for number in range(1000):
        session.follow(number, at(5))
    session.take(1000)
    session.follow(7, at(6))
    assert session.take(1000).positions == [(7, at(6))]
    assert len(session) == 1000


def test_one_request_has_so_many_positions_and_the_next_the_rest() -> None:
    session = FollowerSession[int]()
    for number in range(5):
        session.follow(number, at(5))
    assert [key for key, _ in session.take(3).positions] == [0, 1, 2]
    assert [key for key, _ in session.take(3).positions] == [3, 4]


def test_what_is_forgotten_is_told_if_it_was_known() -> None:
    session = FollowerSession[str]()
    session.follow("a", at(5))
    session.follow("b", at(5))
    session.forget("b")
    assert session.take(9) == ([("a", at(5))], [])
    session.forget("a")
    assert session.take(9) == ([], ["a"])
    assert "a" not in session


def test_a_position_said_again_is_that_of_a_new_partition() -> None:
    session = FollowerSession[str]()
    session.follow("a", at(5))
    session.take(9)
    session.again("a")
    assert session.take(9) == ([("a", at(5))], ["a"])
    session.again("unknown")
    assert not session.has_news


def test_a_new_connection_begins_with_everything() -> None:
    session = FollowerSession[str]()
    session.follow("a", at(5))
    session.follow("b", at(5))
    session.take(9)
    session.forget("b")
    session.restart()
    assert session.take(9) == ([("a", at(5))], [])


# -- the leader's side -----------------------------------------------------------------------------


def test_a_new_position_is_looked_at_and_then_waits_for_changes() -> None:
    session = LeaderSession[str]()
    session.moved("a", at(5))
    assert list(session.ready) == ["a"]
    assert session.look("a") == at(5)
    assert session.answered("a", at(5), MARKS, ends_position=False)  # it learns the watermarks
    assert not session.ready
    assert not session.changed("a", Offset(5))
    assert list(session.stale) == ["a"]
    assert session.changed("a", Offset(6))
    assert list(session.ready) == ["a"]


def test_watermarks_are_told_once() -> None:
    session = LeaderSession[str]()
    session.moved("a", at(5))
    session.look("a")
    session.answered("a", at(5), MARKS, ends_position=False)
    assert session.look("a") == at(5)
    assert not session.answered("a", at(5), MARKS, ends_position=False)


def test_records_are_sent_once_for_a_position() -> None:
    session = LeaderSession[str]()
    session.moved("a", at(5))
    session.look("a")
    assert session.answered("a", at(5), MARKS, ends_position=True)
    session.moved("a", at(5, durable=5))  # it has not seen the records yet
    assert not session.changed("a", Offset(9))
    assert not session.may_send("a")
    session.moved("a", at(9, durable=5))
    assert session.may_send("a")
    assert list(session.ready) == ["a"]


def test_an_answer_for_a_position_that_was_left_meanwhile_is_left_out() -> None:
    session = LeaderSession[str]()
    session.moved("a", at(5))
    session.look("a")
    session.moved("a", at(3))
    assert not session.answered("a", at(5), MARKS, ends_position=True)
    assert list(session.ready) == ["a"]
    session.forget("a")
    assert not session.answered("a", at(3), MARKS, ends_position=True)


def test_what_is_forgotten_has_no_changes() -> None:
    session = LeaderSession[str]()
    session.moved("a", at(5))
    assert session.partitions() == ["a"]
    session.forget("a")
    assert not session.changed("a", Offset(9))
    assert session.look("a") is None
    assert session.position("a") is None
    assert len(session) == 0
    session.moved("a", at(5))
    assert session.may_send("a")
    assert session.position("a") == at(5)


def test_a_follower_that_has_all_gets_no_answer_of_watermarks_alone() -> None:
    session = LeaderSession[str]()
    session.moved("a", at(5))
    session.has_all("a")
    assert list(session.ready) == ["a"]  # it knows no watermarks yet
    session.look("a")
    assert session.answered("a", at(5), MARKS, ends_position=True)
    session.moved("a", at(9))
    session.has_all("a")
    assert not session.ready
    assert list(session.stale) == ["a"]
    assert session.changed("a", Offset(12))
    assert list(session.ready) == ["a"]
