"""Which partition coordinates a key, and that each coordinator has the common shape."""

import pytest

from fencelog.coordination.group.shard import GroupShard
from fencelog.coordination.shard import Shard, java_hash, partition_for
from fencelog.coordination.transaction.shard import TransactionShard
from fencelog.coordination.versioned.shard import VersionedShard
from fencelog.types import CoordinatorEpoch, Instant, TimestampMs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),  # the famous one: abs() of it would stay negative
        ("ä", 228),
        ("\N{GRINNING FACE}", 1772899),  # two UTF-16 units
    ],
)
def test_a_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_partition_is_never_negative() -> None:
    assert partition_for("polygenelubricants", 16) == 0
    assert {partition_for(f"key-{number}", 16) for number in range(200)} == set(range(16))


def test_every_coordinator_has_the_common_shape() -> None:
    shards: list[Shard] = [
        TransactionShard(CoordinatorEpoch(1)),
        VersionedShard(CoordinatorEpoch(1)),
        GroupShard(CoordinatorEpoch(1)),
    ]
    for shard in shards:
        assert shard.next_deadline() is None
        assert shard.expire(Instant(0.0), TimestampMs(0)).records == ()
