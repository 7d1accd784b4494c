"""The latest commits of a metadata store that runs in this process, for its watches."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from fencelog.errors import HistoryLostError
from fencelog.ports import MetadataChange

COMMITS_MAX = 10_000
"""As many are kept at least; a watch that is further behind reads a snapshot anew."""


class _Commit(NamedTuple):
    revision: int
    changes: Sequence[MetadataChange]


class ChangeHistory:
    """Commits in order. It has those after ``begins_after``, which is None until it is known."""

    def __init__(self, begins_after: int | None = None) -> None:
        """No commit yet."""
        self.begins_after = begins_after
        self._commits: list[_Commit] = []
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, revision: int, changes: Sequence[MetadataChange]) -> None:
        """Keep a commit, which is newer than all others, and tell the watches."""
        self._commits.append(_Commit(revision, changes))
        if len(self._commits) >= 2 * COMMITS_MAX:
            self.forget(self._commits[-COMMITS_MAX - 1].revision)
        self.wake()

    def forget(self, revision: int) -> None:
        """Drop the commits up to this one, as a store's compaction does."""
        if self.begins_after is not None and revision > self.begins_after:
            self.begins_after = revision
        del self._commits[: self._position(revision)]
        self.wake()

    def wake(self) -> None:
        """Let every watch look again: for news, and whether it goes on."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def watch(
        self, prefix: str, revision: int, is_open: Callable[[], bool]
    ) -> AsyncIterator[Sequence[MetadataChange]]:
        """Yield the changes of each commit after a revision; end when ``is_open`` says no.

        Raises HistoryLostError if the commits after the revision are not kept.
        """
        while is_open():
            if self.begins_after is None or revision < self.begins_after:
                raise HistoryLostError(f"the metadata store has no changes since {revision}")
            position = self._position(revision)
            if position == len(self._commits):
                news = asyncio.get_running_loop().create_future()
                self._waiting.append(news)
                await news
                continue
            revision, changes = self._commits[position]
            found = [each for each in changes if each.key.startswith(prefix)]
            if found:
                yield found

    def _position(self, revision: int) -> int:
        return bisect_right(self._commits, revision, key=lambda each: each.revision)
