"""The commits that a store in this process keeps for its watches."""

import asyncio

import pytest

from fencelog.adapters import change_history
from fencelog.adapters.change_history import ChangeHistory
from fencelog.errors import HistoryLostError
from fencelog.ports import MetadataChange


def added(history: ChangeHistory, *revisions: int) -> None:
    for revision in revisions:
        history.add(revision, [MetadataChange("a", b"", revision)])


async def versions(history: ChangeHistory, revision: int, count: int) -> list[int]:
    watch = history.watch("", revision, lambda: True)
    return [(await anext(watch))[0].version for _ in range(count)]


async def test_only_the_latest_commits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_history, "COMMITS_MAX", 3)
    history = ChangeHistory(begins_after=0)
    added(history, 1, 2, 4, 5, 7)
    assert await versions(history, 0, 5) == [1, 2, 4, 5, 7]
    added(history, 8)
    assert history.begins_after == 4
    assert await versions(history, 4, 3) == [5, 7, 8]
    with pytest.raises(HistoryLostError):
        await versions(history, 2, 1)


async def test_a_history_that_has_not_begun_has_nothing() -> None:
    history = ChangeHistory()
    added(history, 1)
    with pytest.raises(HistoryLostError):
        await versions(history, 0, 1)


async def test_a_watch_that_was_cancelled_while_it_waited_harms_no_other() -> None:
    history = ChangeHistory(begins_after=0)
    cancelled = asyncio.ensure_future(versions(history, 0, 1))
    waiting = asyncio.ensure_future(versions(history, 0, 1))
    await asyncio.sleep(0)
    cancelled.cancel()
    added(history, 1)
    assert await waiting == [1]
