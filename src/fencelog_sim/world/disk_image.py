"""The disk image: files and directories as programs see them, and what of them is stable.

Not stable are the bytes of a file since its last sync, and each change of a directory's names since
its own. A directory is a name like any other in its parent, and lost with that name. A sync that
failed leaves pages that read well, count as clean, and may never have been written.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TypeAlias

Entry: TypeAlias = "Inode | Directory"
PAGE_BYTES = 4096
LOST_BYTES = 256
"""What a power cut takes of a file at once, instead of a page: files are small in a run."""
BEHIND_A_HOLE = 60
"""Bytes that may survive behind zeros: no whole batch, which D3 would take for damage to promised
data, and a run has no operator to tell otherwise."""
LOST_SHARE = 0.2
"""Of these pieces, those that were not written back before."""
WRITTEN_BACK = (0.1, 0.5, 0.8, 0.9)
"""The shares of unsynced files that the kernel wrote back by itself; files are old, or new."""
Change: TypeAlias = "dict[str, Inode | Directory | None]"
"""Names given and, by None, taken; whole or not at all."""


class Loss(Enum):
    """What a power cut leaves of what was not synced."""

    ALL = "nothing unsynced survives"
    NONE = "everything survives, and is stable from then on"
    TORN = "some, all or nothing of each file, and of the changes of each directory"
    HOLES = "as torn, but bytes near the end may be zeros"
    PAGES = "as torn, but any page of what was not synced may be zeros"


@dataclass(eq=False, slots=True)
class Inode:
    """A file. Bytes are added at the end and removed there, so what is stable is a length."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    """Bytes below are stable, or count as clean; see ``doubtful``."""
    doubtful: list[tuple[int, int]] = field(default_factory=list)
    """Ranges below ``synced``, in order, that a failed sync took for written."""
    rewritten: list[tuple[int, int]] = field(default_factory=list)
    """Ranges written once more since the last sync, with the bytes that they had."""
    removed: bytes = b""
    """Stable bytes that followed, until the truncation is synced."""
    flipped: int | None = None
    """Position of a byte in which one bit is wrong until an operator repairs it."""
    writes: int = 0
    is_named: bool = True
    openings: int = 0

    def sync(self, end: int) -> None:
        """Make the dirty bytes below ``end`` stable."""
        self.synced = max(self.synced, end)

    def sync_changes(self) -> None:
        """Make stable what was written once more, and what was removed."""
        self.removed = b""
        for start, stop in self.rewritten:
            self.doubtful = [rest for each in self.doubtful for rest in _without(each, start, stop)]
        self.rewritten.clear()

    def fail_sync(self, end: int) -> None:
        """Take the dirty bytes below ``end`` for clean; no later sync writes them."""
        self.rewritten.clear()
        if end > self.synced:
            self.doubtful.append((self.synced, end))
            self.synced = end

    def truncate(self, size: int) -> int:
        """Remove what is at ``size`` and after it; return how many bytes that were."""
        count = len(self.data) - size
        self.removed = bytes(self.data[size : self.synced]) + self.removed
        del self.data[size:]
        self.synced = min(self.synced, size)
        self.doubtful = [
            rest for each in self.doubtful for rest in _without(each, size, sys.maxsize)
        ]
        return count

    def survivor(self, loss: Loss, random: Random, whole: float) -> "Inode":
        """The file after a power cut; ``whole``: how likely all of it was written back before."""
        if loss is Loss.NONE:
            return Inode(bytearray(self.data), len(self.data), flipped=self.flipped)
        is_page = self.writes == 1 and self.synced == 0 and len(self.data) <= PAGE_BYTES
        if loss is Loss.ALL:
            kept = self.data[: self.synced]
        elif random.random() < whole:
            kept = self.data[:]
        elif is_page:
            kept = self.data[:0]  # written once: it is there or not
        else:
            some = random.randint(self.synced, len(self.data))
            kept = self.data[: random.choice((self.synced, self.synced, some))]
        if loss is Loss.HOLES and len(kept) > self.synced and not is_page:
            start = random.randint(self.synced, len(kept))
            end = random.randint(max(start, len(kept) - BEHIND_A_HOLE), len(kept))
            kept[start:end] = bytes(end - start)
        if loss is Loss.PAGES and not is_page:
            _lose_pages(kept, self.synced, random)
        for start, end in reversed(self.doubtful):
            cut = start if loss is Loss.ALL else random.randint(start, end)
            if end == len(kept) and (loss is Loss.ALL or random.random() < 0.5):
                del kept[cut:]
            else:
                kept[cut:end] = bytes(end - cut)
        if (
            self.removed
            and len(kept) == self.synced
            and (loss is Loss.ALL or random.random() < 0.5)
        ):
            kept += self.removed
        return Inode(kept, len(kept), flipped=self.flipped)


def _without(found: tuple[int, int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """What is left of a range without another one."""
    if found[0] < min(start, found[1]):
        yield found[0], min(start, found[1])
    if max(end, found[0]) < found[1]:
        yield max(end, found[0]), found[1]


def _lose_pages(data: bytearray, synced: int, random: Random) -> None:
    """Put zeros in the place of some of what follows the synced bytes."""
    for start in range(synced, len(data), LOST_BYTES):
        if random.random() < LOST_SHARE:
            end = min(start + LOST_BYTES, len(data))
            data[start:end] = bytes(end - start)


@dataclass(eq=False, slots=True)
class Directory:
    """Names as seen, names as stable, and the changes that lie between."""

    names: dict[str, Entry] = field(default_factory=dict)
    stable: dict[str, Entry] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    synced: int = 0
    """How many changes were made stable so far; they are no longer in ``changes``."""

    def change(self, change: Change) -> None:
        """Give and take names, as one step."""
        _apply(change, self.names)
        self.changes.append(change)

    def sync(self, end: int) -> None:
        """Make the first ``end`` changes of all stable."""
        count = max(end - self.synced, 0)
        for change in self.changes[:count]:
            _apply(change, self.stable)
        del self.changes[:count]
        self.synced += count

    def survivor(self, loss: Loss, random: Random, seen: dict[int, Entry]) -> "Directory":
        """The directory after a power cut, with all in it; ``seen`` has what was met before."""
        after = Directory()
        seen[id(self)] = after
        whole = random.choice(WRITTEN_BACK)
        for name, entry in self._surviving_names(loss, random).items():
            if id(entry) not in seen:
                seen[id(entry)] = (
                    entry.survivor(loss, random, whole)
                    if isinstance(entry, Inode)
                    else entry.survivor(loss, random, seen)
                )
            after.names[name] = seen[id(entry)]
        after.stable = dict(after.names)
        return after

    def _surviving_names(self, loss: Loss, random: Random) -> dict[str, Entry]:
        if loss is Loss.NONE:
            return self.names
        names = dict(self.stable)
        if loss is not Loss.ALL and self.changes:
            # A journal keeps changes in order; without one each is kept or lost by itself.
            in_order = random.random() < 0.5
            end = random.randint(0, len(self.changes)) if in_order else len(self.changes)
            for change in self.changes[:end]:
                if in_order or random.random() < 0.5:
                    _apply(change, names)
        return names

    def files(self) -> Iterator[Inode]:
        """All files below, as seen."""
        for entry in self.names.values():
            if isinstance(entry, Inode):
                yield entry
            else:
                yield from entry.files()

    def count(self) -> int:
        """How many names are below."""
        below = (e.count() for e in self.names.values() if isinstance(e, Directory))
        return len(self.names) + sum(below)


@dataclass(eq=False, slots=True)
class DiskImage:
    """The drive: a tree of files and its free space."""

    root: Directory = field(default_factory=Directory)
    capacity: int | None = None
    """Bytes; None for no end of them."""
    used: int = 0

    def take(self, size: int) -> int:
        """Take as many of these bytes as there is space for; returns their number."""
        if self.capacity is not None:
            size = max(min(size, self.capacity - self.used), 0)
        self.used += size
        return size

    def give_back(self, inode: Inode) -> None:
        """Free a file's bytes once it has neither a name nor an opening."""
        if not inode.is_named and inode.openings == 0:
            self.used -= len(inode.data)

    def closed(self) -> "DiskImage":
        """The same drive after the end of the process that had files open."""
        for inode in self.root.files():
            inode.openings = 0
        return DiskImage(self.root, self.capacity, _bytes_of(self.root))

    def survivor(self, loss: Loss, random: Random) -> "DiskImage":
        """The drive after a power cut."""
        root = self.root.survivor(loss, random, {})
        return DiskImage(root, self.capacity, _bytes_of(root))


def _bytes_of(root: Directory) -> int:
    return sum(len(inode.data) for inode in root.files())


def _apply(change: Change, names: dict[str, Entry]) -> None:
    for name, entry in change.items():
        if entry is None:
            names.pop(name, None)
        else:
            names[name] = entry
