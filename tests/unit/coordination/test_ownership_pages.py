"""What operators and watchers see of an ownership shard, and what it takes for damage."""

from typing import Any

import pytest

from fencelog.coordination.ownership.state import CHANGES_SPARE, Group, Resource
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


class Counted(dict[str, Any]):
    """Counts what is looked up."""

    lookups = 0

    def __getitem__(self, key: str) -> Any:
        self.lookups += 1
        return super().__getitem__(key)


def test_a_pass_over_changes_looks_at_some_of_them_however_many_there_are() -> None:  # O10
    each, limit = 10, 25
    group = Group()
    for number in range(10_000):
        group.changed(f"{number}", Resource(1, 1, Offset(number // each)))
    group.resources = counted = Counted(group.resources)
    seen, found = -1, []
    while seen != group.revision:
        counted.lookups = 0
        seen, names = group.changes(seen, limit)
        assert counted.lookups <= limit + each
        assert {int(name) // each for name in names} <= set(range(seen - 3, seen + 1))
        found += names
    assert found == [str(number) for number in range(10_000)]
    assert group.changes(seen, limit) == (seen, [])


def test_superseded_changes_are_forgotten() -> None:
    group = Group()
    for number in range(10 * CHANGES_SPARE):
        for offset, name in enumerate(("often", f"once {number}") if number < 3 else ("often",)):
            group.changed(name, Resource(1, 1, Offset(2 * number + offset)))
            assert len(group._changed) == len(group._revisions) <= CHANGES_SPARE + 10
    seen, found = -1, []
    while seen != group.revision:
        seen, names = group.changes(seen, 100)
        found += names
    assert found == ["once 0", "once 1", "once 2", "often"]


def test_changes_are_told_in_several_answers_where_they_are_many(owners: Owners) -> None:  # O10
    owners.granted(claim("s1", "a", "b", "c"))
    owners.granted(claim("s2", "d"))
    owners.granted(claim("s3", "e"))
    owners.release("s2")
    seen, answers = -1, []
    while seen != owners.shard.revision(None):
        seen, states = owners.shard.changes(None, None, seen, 2)
        answers.append([state.resource for state in states])
    assert answers == [["a", "b", "c"], ["e"], ["d"]]  # d was changed twice


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
