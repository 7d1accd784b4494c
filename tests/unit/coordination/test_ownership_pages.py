"""What operators and watchers see of an ownership shard, and what it takes for damage."""

import pytest

from fencelog.coordination.shard import LogRecord
from fencelog.errors import CorruptionError
from fencelog.types import Instant, Offset
from tests.unit.coordination.owners import Owners, claim


@pytest.fixture
def owners() -> Owners:
    """An empty shard."""
    return Owners()


def test_pages_show_every_resource_once_in_order(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "c", "a"))
    assert [each.resource for each in owners.shard.describe(None, None, None, 9)[1]] == ["a", "c"]
    owners.granted(claim("s2", "b"))
    owners.granted(claim("s3", "z", "y", group="g"))
    owners.granted(claim("s4", "x", group="f"))
    pages = []
    after = None
    has_more = True
    while has_more:
        page, has_more = owners.shard.describe_all(after, 2)
        pages.append([(each.group, each.resource) for each in page])
        after = pages[-1][-1]
    assert pages == [
        [(None, "a"), (None, "b")],
        [(None, "c"), ("f", "x")],
        [("g", "y"), ("g", "z")],
    ]
    assert owners.shard.describe_all((None, "c"), 1)[1]
    _, page, has_more = owners.shard.describe(None, ["c", "b", "never"], "a", 1)
    assert ([each.resource for each in page], has_more) == (["b"], True)
    assert owners.shard.describe("never", None, None, 2) == (-1, [], False)


def test_changes_follow_a_revision_through_a_restart(owners: Owners) -> None:  # O10
    assert owners.shard.changes(None, None, -1) == (-1, [])
    owners.granted(claim("s1", "a"))
    owners.granted(claim("s2", "b"))
    seen, found = owners.shard.changes(None, None, -1)
    assert [each.resource for each in found] == ["a", "b"]
    owners.runtime.crash()
    assert owners.shard.changes(None, None, seen) == (seen, [])
    owners.release("s1")
    revision, (changed,) = owners.shard.changes(None, ["a", "b"], seen)
    assert (changed.resource, changed.state) == ("a", "free")
    assert revision > seen
    assert owners.shard.changes(None, ["b"], seen) == (revision, [])
    assert owners.shard.revision(None) == revision
    assert owners.shard.revision("never") == -1


def test_a_record_of_another_topic_is_damage(owners: Owners) -> None:
    with pytest.raises(CorruptionError):
        owners.shard.replay(LogRecord(b"\0\x09", None), Offset(0), Instant(0.0))


def test_the_end_of_a_claim_that_compaction_has_removed_says_nothing(owners: Owners) -> None:
    owners.granted(claim("s1", "a"))
    owners.release("s1")
    _, end = owners.runtime.log
    other = Owners()
    assert isinstance(end, LogRecord)
    other.shard.replay(end, Offset(1), Instant(0.0))
    assert other.states() == {}
