"""Owners of commits in the group shard: who may commit where, and what outlives what (O8, O9)."""

import pytest

from fencelog.coordination.group.commit import Commit
from fencelog.coordination.group.model import (
    NO_MEMBER,
    Caller,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    Protocol,
    Ticket,
)
from fencelog.coordination.group.records import CommittedOffset
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.owners import read_owner, write_commits_owner
from fencelog.coordination.shard import Decision, LogRecord
from fencelog.errors import CorruptionError, ErrorCode
from fencelog.log.config import OwnershipKind
from fencelog.log.ownership import Owner
from fencelog.types import NO_PRODUCER_ID, Instant, Offset, ProducerId, TopicPartition
from fencelog.wire.own import owned_id, producers_key
from tests.support.runtime import Runtime

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NAME = producers_key("g", "orders")
NONE, FENCED = ErrorCode.NONE, ErrorCode.OWNER_FENCED
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def owner(epoch: int, *, live: bool = True, named: bool = True) -> Owner:
    """The claim of one epoch, with a session and a transactional id of its own."""
    return Owner("g", epoch, f"s{epoch}", owned_id(NAME, epoch) if named else None, "me", live)


@pytest.fixture
def runtime() -> Runtime[GroupShard]:
    """A shard in which group ``g`` has an owner of epoch 5 on partition 0 of ``a``."""
    runtime = Runtime(lambda epoch: GroupShard(epoch, GroupLimits(initial_delay_s=0)))
    set_owner(runtime, owner(4))
    assert set_owner(runtime, owner(5)) is NONE
    return runtime


def set_owner(runtime: Runtime[GroupShard], new: Owner, *partitions: TopicPartition) -> ErrorCode:
    return runtime.append(runtime.shard.set_owner("g", new, partitions or (A0,)))


def commit(
    runtime: Runtime[GroupShard],
    *partitions: TopicPartition,
    session: str | None = None,
    producer: str | None = None,
    setting: OwnershipKind = "if-owned",
    fenced: bool = False,
    caller: Caller = NO_MEMBER,
    group: str = "g",
) -> ErrorCode | dict[TopicPartition, ErrorCode]:
    """Commit offset 7; ``producer``: the transactional id, for one in a transaction."""
    where = partitions or (A0,)
    answers = runtime.append(
        runtime.shard.commit(
            Commit(
                group=group,
                offsets=dict.fromkeys(where, CommittedOffset(Offset(7))),
                caller=caller,
                fenced=frozenset(where) if fenced else frozenset(),
                ownership=dict.fromkeys(where, setting),
                session=session,
                producer_id=NO_PRODUCER_ID if producer is None else ProducerId(1),
                transactional_id=producer,
            ),
            now=runtime.now,
            wall_ms=runtime.wall_ms,
        )
    )
    return answers if partitions else answers[A0]


@pytest.mark.parametrize(
    ("session", "producer", "error"),
    [
        (None, None, REFUSED),
        ("s5", None, NONE),
        ("s4", None, FENCED),
        ("of another partition", None, REFUSED),
        (None, owned_id(NAME, 5), NONE),
        ("s4", owned_id(NAME, 5), NONE),
        (None, owned_id(NAME, 4), ErrorCode.INVALID_PRODUCER_EPOCH),
        (None, "mine", REFUSED),
        ("s5", "mine", REFUSED),
    ],
)
def test_only_the_live_owner_commits(  # O8
    runtime: Runtime[GroupShard], session: str | None, producer: str | None, error: ErrorCode
) -> None:
    assert commit(runtime, session=session, producer=producer) is error
    assert bool(runtime.shard.fetch("g") or runtime.shard.pending("g")) is (error is NONE)


def test_a_claim_without_a_transactional_id_commits_in_no_transaction(
    runtime: Runtime[GroupShard],
) -> None:
    set_owner(runtime, owner(6, named=False))
    assert commit(runtime, producer="mine") is REFUSED
    assert commit(runtime, producer=owned_id(NAME, 5)) is REFUSED


@pytest.mark.parametrize(
    ("setting", "while_owned", "afterwards"),
    [("off", NONE, NONE), ("if-owned", REFUSED, NONE), ("required", REFUSED, REFUSED)],
)
def test_the_topic_says_when_an_owner_is_needed(  # O8
    runtime: Runtime[GroupShard],
    setting: OwnershipKind,
    while_owned: ErrorCode,
    afterwards: ErrorCode,
) -> None:
    assert commit(runtime, setting=setting) is while_owned
    assert commit(runtime, A1, setting=setting) == {A1: afterwards}
    set_owner(runtime, owner(5, live=False))
    assert commit(runtime, setting=setting) is afterwards
    ended = FENCED if setting == "required" else NONE
    assert commit(runtime, session="s5", setting=setting) is ended
    over = ErrorCode.INVALID_PRODUCER_EPOCH if setting == "required" else NONE
    assert commit(runtime, producer=owned_id(NAME, 5), setting=setting) is over


def test_other_partitions_and_other_groups_have_owners_of_their_own(
    runtime: Runtime[GroupShard],
) -> None:
    assert commit(runtime, A0, A1) == {A0: REFUSED, A1: NONE}
    assert commit(runtime, group="h") is NONE


def test_the_epoch_only_grows_and_an_end_is_final(runtime: Runtime[GroupShard]) -> None:  # O3
    repeated = runtime.shard.set_owner("g", owner(5), [A0])
    assert repeated == Decision((), NONE)
    assert runtime.shard.set_owner("g", owner(4, live=False), [A0]) == Decision((), FENCED)
    set_owner(runtime, owner(5, live=False))
    assert runtime.shard.set_owner("g", owner(5), [A0]) == Decision((), NONE)
    assert commit(runtime, setting="required", session="s5") is FENCED
    set_owner(runtime, owner(6))
    assert commit(runtime, session="s5") is FENCED
    assert commit(runtime, session="s6") is NONE


def test_where_a_later_owner_is_known_the_other_partitions_are_raised(
    runtime: Runtime[GroupShard],
) -> None:
    assert set_owner(runtime, owner(4), A0, A1) is FENCED
    assert commit(runtime, A0, A1, session="s4") == {A0: FENCED, A1: NONE}


def join(runtime: Runtime[GroupShard]) -> Caller:
    """A member of ``g``, whose group waits for its assignment."""
    request = JoinRequest(
        group="g", protocols=(Protocol("range", b""),), knows_member_id_required=False
    )
    decision = runtime.shard.join(
        request, Ticket(1), fresh_id="m", now=runtime.now, wall_ms=runtime.wall_ms
    )
    runtime.append(decision)
    (answer,) = (each.answer for each in decision.response)
    assert isinstance(answer, JoinAnswer)
    return Caller("m", answer.generation)


def test_the_owner_need_not_be_a_member_and_a_member_is_not_the_owner(
    runtime: Runtime[GroupShard],
) -> None:  # E8
    member = join(runtime)
    assert commit(runtime, A1, session="s5") == {A1: ErrorCode.UNKNOWN_MEMBER_ID}
    assert commit(runtime, session="s5", fenced=True) is NONE
    assert commit(runtime, producer=owned_id(NAME, 5), fenced=True) is NONE
    assert commit(runtime, caller=member) is REFUSED
    stale = member._replace(generation=member.generation + 1)
    assert commit(runtime, session="s5", caller=stale) is ErrorCode.ILLEGAL_GENERATION


def test_an_owner_outlives_its_groups_offsets_its_topic_and_the_group(
    runtime: Runtime[GroupShard],
) -> None:  # O3
    commit(runtime, session="s5")
    runtime.append(runtime.shard.delete_offsets("g", [A0]))
    commit(runtime, session="s5")
    runtime.append(runtime.shard.topics_deleted(["a"]))
    commit(runtime, session="s5")
    runtime.append(runtime.shard.delete_group("g"))
    commit(runtime, session="s5")
    for _ in range(2):
        runtime.expire()
        runtime.advance(3650 * 86_400)
    runtime.expire()
    assert runtime.shard.fetch("g") == {}
    runtime.crash()
    assert commit(runtime) is REFUSED
    assert runtime.shard.set_owner("g", owner(4), [A0]) == Decision((), FENCED)


def test_set_owner_repeated_after_a_crash_anywhere_ends_the_same() -> None:  # O9
    decisions = 3
    for lost in range(decisions * 2 + 1):
        runtime: Runtime[GroupShard] = Runtime(GroupShard)
        for step in range(decisions):
            set_owner(runtime, owner(step), A0, A1)
        runtime.crash(keep=lost)
        set_owner(runtime, owner(decisions - 1), A0, A1)
        assert commit(runtime, A0, A1, session="s2") == {A0: NONE, A1: NONE}
        refused = commit(runtime, A0, A1, session="s1")
        assert isinstance(refused, dict)
        assert set(refused.values()) <= {FENCED, REFUSED}, "its record may be lost"


@pytest.mark.parametrize("value", [None, b"", b"\0\1"])
def test_an_owner_that_makes_no_sense_is_damage(value: bytes | None) -> None:
    with pytest.raises(CorruptionError):
        read_owner(value)
    record = LogRecord(write_commits_owner("g", A0, owner(1)).key, value)
    with pytest.raises(CorruptionError):
        Runtime(GroupShard).shard.replay(record, Offset(0), Instant(0))
