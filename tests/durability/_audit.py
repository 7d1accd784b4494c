"""Checks a trace: what was not on stable storage when a response said that it is (D1, D2)."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

PRODUCE, CREATE_TOPICS, INIT_PRODUCER_ID = 0, 19, 22
OFFSET_COMMIT, ADD_PARTITIONS, END_TXN = 8, 24, 26
JOIN, COMMIT_VERSION = 10000, 10001
FULL = 2

STATE_OF = {
    OFFSET_COMMIT: "__consumer_offsets-",
    INIT_PRODUCER_ID: "__transaction_state-",
    ADD_PARTITIONS: "__transaction_state-",
    END_TXN: "__transaction_state-",
    JOIN: "__fencelog_versioned-",
    COMMIT_VERSION: "__fencelog_versioned-",
}
"""Whose answer waits for which internal topic."""


@dataclass
class Audit:
    """What the events so far leave unsynced, and what was answered too early."""

    topic: str
    """The topic whose records are followed; no transaction writes to it."""
    unsynced: dict[str, int] = field(default_factory=dict)
    """Log files with the number of their last write that no sync covers."""
    unnamed: dict[str, int] = field(default_factory=dict)
    """Names that no sync of their directory covers."""
    problems: list[str] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)
    wrote: Counter[str] = field(default_factory=Counter)
    """Writes and new names by partition, over all."""
    commits: int = 0
    commits_for: Counter[int] = field(default_factory=Counter)
    """Requests during which the metadata store committed."""
    _count: int = 0
    _syncs: dict[str, list[int]] = field(default_factory=dict)
    _asked_at: dict[int, int] = field(default_factory=dict)

    def read(self, trace: Path) -> "Audit":
        """Check all events of a trace, oldest first; a next trace goes on where one ended."""
        for line in trace.read_text().splitlines():
            self._count += 1
            event = json.loads(line)
            what = event.pop("what")
            match what:
                case "started":
                    self._syncs.clear()
                case "metadata":
                    self._committed(event["synchronous"])
                case "asked":
                    self._asked_at[event["api"]] = self.commits
                case "answered":
                    self._answered(event["api"])
                case _:
                    self._touched(what, event["path"], event.get("old"))
        return self

    # -- what happens to files -----------------------------------------------------------------

    def _touched(self, what: str, path: str, old: str | None) -> None:
        match what:
            case "wrote":
                self._wrote(path)
            case "made directory":
                self.unnamed[path] = self._count
            case "made":
                self._named(path)
            case "renamed":
                assert old is not None
                self._renamed(old, path)
            case "sync begins":
                self._syncs.setdefault(path, []).append(self._count)
            case _:
                assert what == "synced", what
                self._synced(path)

    def _wrote(self, path: str) -> None:
        if path.endswith((".log", ".log.cleaned")):
            self.unsynced[path] = self._count
            self.wrote[Path(path).parent.name] += 1

    def _named(self, path: str) -> None:
        # Side files are made anew where they are missing: their names may get lost.
        if path.endswith((".log", "partition.metadata")):
            self.unnamed[path] = self._count

    def _renamed(self, old: str, new: str) -> None:
        self.unnamed.pop(old, None)
        self._named(new)
        if new.endswith(".log"):
            self.unsynced.pop(new, None)
            if old in self.unsynced:
                self.unsynced[new] = self.unsynced.pop(old)

    def _synced(self, path: str) -> None:
        """Covered is what happened before the sync began."""
        begun = self._syncs[path].pop(0)
        if self.unsynced.get(path, begun) < begun:
            del self.unsynced[path]
        for name, number in list(self.unnamed.items()):
            if number < begun and str(Path(name).parent) == path:
                del self.unnamed[name]

    def _committed(self, synchronous: int) -> None:
        self.commits += 1
        if synchronous != FULL:
            self.problems.append(f"the metadata store commits at synchronous = {synchronous}")

    # -- what is answered ----------------------------------------------------------------------

    def _answered(self, api: int) -> None:
        self.answers[api] += 1
        if self.commits > self._asked_at.get(api, self.commits):
            self.commits_for[api] += 1
        kept = self.topic + "-" if api in (PRODUCE, CREATE_TOPICS) else STATE_OF.get(api)
        if kept is None:
            return
        for path in self.unsynced:
            if Path(path).parent.name.startswith(kept):
                self.problems.append(f"answer to API {api} left, {path} was written and not synced")
        for path in self.unnamed:
            if any(part.startswith(kept) for part in Path(path).parts[-2:]):
                self.problems.append(f"answer to API {api} left, the name {path} was not synced")
