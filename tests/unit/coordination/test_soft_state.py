"""What a group holds in memory only: members, their sessions, and what a load makes of them."""

import math
from dataclasses import replace

import pytest

from fencelog.coordination.group.group import sync_answer
from fencelog.coordination.group.metadata import StoredGroup, StoredMember
from fencelog.coordination.group.model import (
    NEW_MEMBER_TIMEOUT_S,
    SESSION,
    SYNC,
    Alarm,
    GroupState,
    Protocol,
    SyncAnswer,
)
from fencelog.coordination.group.soft_state import Member, SoftState
from fencelog.coordination.timers import Timers
from fencelog.types import Instant, TimestampMs

NOW = Instant(100.0)
MEMBER = StoredMember(
    member_id="m",
    instance_id=None,
    client_id="c",
    client_host="h",
    rebalance_timeout_ms=20_000,
    session_timeout_ms=10_000,
    subscription=b"topics",
    assignment=b"share",
)
GROUP = StoredGroup(
    group="g",
    protocol_type="consumer",
    generation=7,
    protocol="range",
    leader="m",
    changed_ms=TimestampMs(5),
    members=(MEMBER,),
)


def deadlines(timers: Timers[Alarm]) -> dict[Alarm, float]:
    """Every deadline, in the way that a shard learns of them."""
    found = {}
    while (due := timers.next_due()) is not None:
        found.update(dict.fromkeys(timers.take_due(due), due))
    return found


def new_member(name: str = "m") -> Member:
    return Member(
        member_id=name,
        instance_id=None,
        client_id="c",
        client_host="h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocols=(Protocol("range", b"topics"),),
    )


def test_a_new_group_is_empty_and_of_no_type() -> None:
    soft = SoftState("g", Timers())
    assert (soft.state, soft.protocol_type, soft.leader) == (GroupState.EMPTY, "", None)


def test_an_id_that_was_given_is_kept_for_one_session() -> None:
    timers: Timers[Alarm] = Timers()
    SoftState("g", timers).add_pending("m", 10_000, NOW)
    assert deadlines(timers) == {Alarm(SESSION, "g", "m"): NOW + 10}


def test_an_id_that_was_given_back_has_no_deadline() -> None:
    timers: Timers[Alarm] = Timers()
    soft = SoftState("g", timers)
    soft.add_pending("m", 10_000, NOW)
    soft.remove_pending("m")
    assert (soft.pending, deadlines(timers)) == ({}, {})


def test_a_new_member_waits_for_its_first_generation_beyond_its_session() -> None:
    timers: Timers[Alarm] = Timers()
    member = new_member()
    SoftState("g", timers).add(member, "consumer", NOW)
    assert member.is_new
    assert deadlines(timers) == {Alarm(SESSION, "g", "m"): NOW + NEW_MEMBER_TIMEOUT_S}


@pytest.mark.parametrize(("protocol", "metadata"), [("range", b"topics"), ("sticky", b"")])
def test_a_member_has_no_subscription_under_a_protocol_that_it_does_not_know(
    protocol: str, metadata: bytes
) -> None:
    assert new_member().metadata(protocol) == metadata


@pytest.mark.parametrize(
    ("assignment", "state", "sync_s"),
    [(b"share", GroupState.STABLE, math.inf), (b"", GroupState.COMPLETING, 20)],
)
def test_after_a_load_sessions_begin_and_who_has_no_share_is_waited_for(
    assignment: bytes, state: GroupState, sync_s: float
) -> None:
    timers: Timers[Alarm] = Timers()
    stored = replace(GROUP, members=(replace(MEMBER, assignment=assignment),))
    soft = SoftState.restored(stored, timers, NOW)
    assert soft.state is state
    assert soft.members["m"].protocols == (Protocol("range", b"topics"),)
    found = deadlines(timers)
    assert found[Alarm(SESSION, "g", "m")] == NOW + 10
    assert found.get(Alarm(SYNC, "g"), math.inf) == NOW + sync_s


def test_a_stored_member_without_a_protocol_keeps_its_subscription() -> None:
    soft = SoftState.restored(replace(GROUP, protocol=None), Timers(), NOW)
    assert soft.members["m"].protocols == (Protocol("", b"topics"),)


def test_a_share_comes_with_the_type_and_the_protocol_of_its_generation() -> None:
    told = SyncAnswer(protocol_type="consumer", protocol="range", assignment=b"share")
    assert sync_answer(GROUP, b"share") == told
