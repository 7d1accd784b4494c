"""Groups in Kafka's bytes: GroupMetadataKey and GroupMetadataValue."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.group.metadata import (
    StoredGroup,
    StoredMember,
    forget_group,
    read_group,
    read_group_key,
    write_group,
)
from fencelog.coordination.group.subscription import subscribed_topics
from fencelog.coordination.shard import LogRecord
from fencelog.errors import CorruptionError
from fencelog.types import TimestampMs
from tests.support.groups import subscription

MEMBER = StoredMember(
    member_id="m",
    instance_id="i",
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=300,
    session_timeout_ms=45,
    subscription=b"sub",
    assignment=b"as",
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


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


# Laid out by hand from GroupMetadataKey.json and GroupMetadataValue.json.
KEY = b"\x00\x02" + text("g")
HEAD = text("consumer") + (7).to_bytes(4, "big") + text("range") + text("m")
MEMBER_IDS = {0: text("m"), 3: text("m") + text("i")}
CLIENT = text("c") + text("/h")
CONTENT = (45).to_bytes(4, "big") + b"\0\0\0\x03sub" + b"\0\0\0\x02as"
REBALANCE = (300).to_bytes(4, "big")
CHANGED = (5).to_bytes(8, "big")
ONE = (1).to_bytes(4, "big")
VALUES = {
    0: b"\0\0" + HEAD + ONE + MEMBER_IDS[0] + CLIENT + CONTENT,
    1: b"\0\x01" + HEAD + ONE + MEMBER_IDS[0] + CLIENT + REBALANCE + CONTENT,
    2: b"\0\x02" + HEAD + CHANGED + ONE + MEMBER_IDS[0] + CLIENT + REBALANCE + CONTENT,
    3: b"\0\x03" + HEAD + CHANGED + ONE + MEMBER_IDS[3] + CLIENT + REBALANCE + CONTENT,
}


def test_the_bytes_of_a_group_are_kafkas() -> None:
    assert write_group(GROUP) == LogRecord(KEY, VALUES[3])
    assert forget_group("g") == LogRecord(KEY, None)


@pytest.mark.parametrize("version", VALUES)
def test_older_values_of_a_group_are_read(version: int) -> None:
    member = MEMBER if version == 3 else replace(MEMBER, instance_id=None)
    if version == 0:
        member = replace(member, rebalance_timeout_ms=45)  # one timeout was both
    changed_ms = TimestampMs(5 if version >= 2 else -1)
    expected = replace(GROUP, members=(member,), changed_ms=changed_ms)
    assert read_group("g", VALUES[version]) == expected


def test_the_key_of_an_offset_is_no_group() -> None:
    assert read_group_key(KEY) == "g"
    assert read_group_key(b"\x00\x01" + text("g") + text("t") + ONE) is None


@pytest.mark.parametrize(
    "value", [b"", b"\0\x04" + VALUES[3][2:], VALUES[3][:-1], VALUES[3] + b"x"]
)
def test_a_group_that_makes_no_sense_is_damage(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        read_group("g", value)


names = st.text(max_size=3)
members = st.builds(
    StoredMember,
    member_id=names,
    instance_id=st.none() | names,
    client_id=names,
    client_host=names,
    rebalance_timeout_ms=st.integers(0, 1 << 31 - 1),
    session_timeout_ms=st.integers(0, 1 << 31 - 1),
    subscription=st.binary(max_size=4),
    assignment=st.binary(max_size=4),
)


@given(st.lists(members, max_size=3), st.none() | names, st.none() | names)
def test_what_is_written_of_a_group_is_read(
    some: list[StoredMember], protocol: str | None, leader: str | None
) -> None:
    group = replace(GROUP, members=tuple(some), protocol=protocol, leader=leader)
    record = write_group(group)
    assert record.value is not None
    assert read_group("g", record.value) == group


def test_the_topics_of_a_subscription_are_read_whatever_follows_them() -> None:
    assert subscribed_topics(subscription(["a", "b"], b"owned")) == {"a", "b"}
    assert subscribed_topics(subscription([], b"owned")) == set()


@given(st.binary(max_size=20))
def test_bytes_that_are_no_subscription_say_nothing_of_topics(data: bytes) -> None:
    found = subscribed_topics(data)
    assert found is None or all(isinstance(topic, str) for topic in found)
