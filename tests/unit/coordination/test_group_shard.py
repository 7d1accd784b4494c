"""Committed offsets of groups without members, in Kafka's bytes, and against a plain dictionary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.group.commit import Commit
from fencelog.coordination.group.metadata import read_group
from fencelog.coordination.group.model import (
    Caller,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    Protocol,
    SyncRequest,
    Ticket,
)
from fencelog.coordination.group.offsets import Kept, OffsetTable
from fencelog.coordination.group.records import (
    CommittedOffset,
    read_key,
    read_value,
    write_offset,
)
from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.shard import LogRecord
from fencelog.errors import CorruptionError, ErrorCode
from fencelog.types import (
    NO_PRODUCER_ID,
    Instant,
    LeaderEpoch,
    Offset,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from tests.support.runtime import Runtime

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
AT_7 = CommittedOffset(Offset(7), LeaderEpoch(2), "note", TimestampMs(1))

# Laid out by hand from OffsetCommitKey.json and OffsetCommitValue.json.
KEY = bytes.fromhex("0001 0001") + b"g" + bytes.fromhex("0001") + b"a" + bytes.fromhex("00000001")
VALUE_3 = (
    bytes.fromhex("0003 0000000000000007 00000002 0004") + b"note" + (1).to_bytes(8, "big")
)  # fmt: skip
VALUE_2 = bytes.fromhex("0002 0000000000000007 0004") + b"note" + (1).to_bytes(8, "big")
VALUE_1 = b"\x00\x01" + VALUE_2[2:] + (9).to_bytes(8, "big")


@pytest.fixture
def runtime() -> Runtime[GroupShard]:
    """A small shard."""
    return Runtime(
        lambda epoch: GroupShard(
            epoch, GroupLimits(groups_max=1, partitions_max=2, metadata_bytes_max=4)
        )
    )


def commit(
    runtime: Runtime[GroupShard],
    group: str,
    *partitions: TopicPartition,
    metadata: str = "",
    member_id: str = "",
    generation: int = -1,
) -> dict[TopicPartition, ErrorCode]:
    offsets = {each: CommittedOffset(Offset(7), metadata=metadata) for each in partitions}
    return runtime.append(
        runtime.shard.commit(
            Commit(group=group, offsets=offsets, caller=Caller(member_id, generation)),
            now=runtime.now,
            wall_ms=runtime.wall_ms,
        )
    )


def test_the_bytes_are_kafkas() -> None:
    assert write_offset("g", A1, AT_7) == LogRecord(KEY, VALUE_3)


@pytest.mark.parametrize(
    ("value", "leader_epoch"), [(VALUE_1, -1), (VALUE_2, -1), (VALUE_3, 2)], ids=["1", "2", "3"]
)
def test_older_values_are_read(value: bytes, leader_epoch: int) -> None:
    expected = CommittedOffset(Offset(7), LeaderEpoch(leader_epoch), "note", TimestampMs(1))
    assert read_value(value) == expected


@pytest.mark.parametrize("value", [b"", b"\x00\x04" + VALUE_3[2:], VALUE_3 + b"x", VALUE_3[:-1]])
def test_a_value_that_makes_no_sense_is_damage(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        read_value(value)


def test_records_of_a_kind_that_is_not_known_are_left_alone(runtime: Runtime[GroupShard]) -> None:
    key_of_another_kind = b"\x00\x03\x00\x01g"
    assert read_key(key_of_another_kind) is None
    runtime.shard.replay(LogRecord(key_of_another_kind, b"?"), Offset(0), Instant(0))
    assert runtime.shard.fetch("g") == {}


def test_what_is_committed_is_fetched_and_stamped(runtime: Runtime[GroupShard]) -> None:
    assert commit(runtime, "g", A0, A1) == {A0: ErrorCode.NONE, A1: ErrorCode.NONE}
    stored = CommittedOffset(Offset(7), commit_ms=runtime.wall_ms)
    assert runtime.shard.fetch("g") == {A0: stored, A1: stored}
    assert runtime.shard.fetch("g", [A1, B0]) == {A1: stored}
    assert runtime.shard.fetch("nobody") == {}


def test_a_commit_in_the_name_of_a_member_is_refused(runtime: Runtime[GroupShard]) -> None:
    assert commit(runtime, "g", A0, member_id="m") == {A0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert commit(runtime, "g", A0, generation=1) == {A0: ErrorCode.ILLEGAL_GENERATION}
    assert commit(runtime, "", A0) == {A0: ErrorCode.INVALID_GROUP_ID}
    assert runtime.log == []


def test_beyond_a_bound_nothing_is_stored(runtime: Runtime[GroupShard]) -> None:
    assert commit(runtime, "g", A0, metadata="12345") == {A0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert commit(runtime, "g", A0, metadata="1234") == {A0: ErrorCode.NONE}
    assert commit(runtime, "g", A0, A1)[A1] is ErrorCode.NONE
    assert commit(runtime, "g", B0) == {B0: ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert commit(runtime, "h", A0) == {A0: ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert commit(runtime, "g", A1) == {A1: ErrorCode.NONE}


def test_what_members_say_of_themselves_together_is_bounded() -> None:
    limits = GroupLimits(subscriptions_bytes_max=25, initial_delay_s=0)
    runtime = Runtime(lambda epoch: GroupShard(epoch, limits))

    def join(number: int, size: int, member_id: str = "") -> ErrorCode:
        request = JoinRequest(
            group="g",
            member_id=member_id,
            protocols=(Protocol("range", b"x" * size),),
            knows_member_id_required=False,
        )
        decision = runtime.shard.join(
            request,
            Ticket(number),
            fresh_id=f"m{number}",
            now=runtime.now,
            wall_ms=runtime.wall_ms,
        )
        told = dict(runtime.append(decision))
        answer = told.get(Ticket(number), JoinAnswer())
        assert isinstance(answer, JoinAnswer)
        return answer.error

    assert join(1, 21) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join(2, 10) is ErrorCode.NONE
    assert join(3, 6) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join(4, 5) is ErrorCode.NONE
    # Of its own say a member's newest counts.
    assert join(5, 10, "m2") is ErrorCode.NONE
    assert join(6, 11, "m2") is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_static_member_that_is_back_is_stored_with_its_subscription() -> None:
    runtime = Runtime(lambda epoch: GroupShard(epoch, GroupLimits(initial_delay_s=0)))
    request = JoinRequest(
        group="g",
        instance_id="i",
        protocols=(Protocol("range", b"topics"),),
        knows_member_id_required=True,
    )
    clock = {"now": runtime.now, "wall_ms": runtime.wall_ms}
    shard = runtime.shard
    runtime.append(shard.join(request, Ticket(1), fresh_id="m1", **clock))
    sync = SyncRequest(group="g", caller=Caller("m1", 1, "i"), assignments=(("m1", b"share"),))
    runtime.append(shard.sync(sync, Ticket(2), **clock))
    runtime.append(shard.join(request, Ticket(3), fresh_id="m2", **clock))
    stored = runtime.log[-1]
    assert isinstance(stored, LogRecord)
    assert stored.value is not None
    (member,) = read_group("g", stored.value).members
    assert (member.member_id, member.subscription, member.assignment) == ("m2", b"topics", b"share")


@pytest.mark.parametrize(
    ("caller", "names_none"),
    [(Caller("", -1), True), (Caller("", 0), False), (Caller("m", -1), False)],
)
def test_who_names_neither_member_nor_generation_is_no_member(
    caller: Caller, names_none: bool
) -> None:
    assert caller.names_no_member is names_none


def test_a_group_with_committed_and_pending_offsets_is_one() -> None:
    table = OffsetTable()
    kept = Kept(AT_7, Offset(3))
    table.store("both", A0, kept)
    table.store_pending(ProducerId(9), "both", A1, kept)
    for group in ("pending", "other"):
        table.store_pending(ProducerId(9), group, A0, kept)
    assert list(table.groups()) == ["both", "pending", "other"]
    assert len(table) == 3


def test_the_offsets_on_a_deleted_topic_are_forgotten(runtime: Runtime[GroupShard]) -> None:
    commit(runtime, "g", A0, B0)
    assert runtime.shard.topics() == {"a", "b"}
    runtime.append(runtime.shard.topics_deleted(["a"]))
    assert list(runtime.shard.fetch("g")) == [B0]
    assert runtime.shard.topics_deleted(["a"]).records == ()


names = ("g", "h")
partitions = st.sampled_from([A0, A1, B0])
offsets = st.dictionaries(partitions, st.integers(0, 9), max_size=3)
commits = st.tuples(st.sampled_from(names), offsets)


@given(st.lists(st.one_of(commits, partitions, st.none()), max_size=12))
def test_the_shard_is_a_dictionary_that_survives_crashes(
    steps: list[tuple[str, dict[TopicPartition, int]] | TopicPartition | None],
) -> None:  # E15
    runtime = Runtime(GroupShard)
    model: dict[str, dict[TopicPartition, int]] = {name: {} for name in names}
    for step in steps:
        if step is None:
            runtime.crash()
        elif isinstance(step, TopicPartition):
            runtime.append(runtime.shard.topics_deleted([step.topic]))
            for known in model.values():
                for at in [at for at in known if at.topic == step.topic]:
                    del known[at]
        else:
            group, asked = step
            committed = {at: CommittedOffset(Offset(offset)) for at, offset in asked.items()}
            request = Commit(group=group, offsets=committed)
            runtime.append(runtime.shard.commit(request, now=runtime.now, wall_ms=runtime.wall_ms))
            model[group].update(asked)
        fetched = {group: runtime.shard.fetch(group) for group in names}
        assert {
            group: {at: committed.offset for at, committed in found.items()}
            for group, found in fetched.items()
        } == model


PRODUCERS = (ProducerId(7), ProducerId(8))
steps = st.one_of(
    st.tuples(st.sampled_from((NO_PRODUCER_ID, *PRODUCERS)), partitions, st.integers(0, 99)),
    st.tuples(st.sampled_from(PRODUCERS), st.booleans()),
    st.none(),
)


@given(st.lists(steps, max_size=15))
def test_an_offset_in_a_transaction_counts_from_its_marker_and_from_its_place_in_the_log(
    script: list[tuple[ProducerId, TopicPartition, int] | tuple[ProducerId, bool] | None],
) -> None:  # E8, E10, E15
    runtime = Runtime(GroupShard)
    # Every offset that was ever written: place in the log, partition, offset, whether it counts.
    written: list[tuple[TopicPartition, int, ProducerId, bool | None]] = []
    for step in script:
        if step is None:
            runtime.crash()
        elif len(step) == 2:
            producer, commits = step
            runtime.end(producer, commit=commits)
            written = [
                (at, to, owner, commits if owner == producer and counts is None else counts)
                for at, to, owner, counts in written
            ]
        else:
            producer, at, to = step
            asked = Commit(
                group="g", offsets={at: CommittedOffset(Offset(to))}, producer_id=producer
            )
            runtime.append(runtime.shard.commit(asked, now=runtime.now, wall_ms=runtime.wall_ms))
            written.append((at, to, producer, True if producer == NO_PRODUCER_ID else None))
        expected = {at: to for at, to, _, counts in written if counts}
        fetched = runtime.shard.fetch("g")
        assert {at: found.offset for at, found in fetched.items()} == expected
        assert runtime.shard.pending("g") == {at for at, _, _, counts in written if counts is None}
