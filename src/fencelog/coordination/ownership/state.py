"""A granted claim, a resource and a group of resources, as the shard holds them."""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from fencelog.coordination.ownership.model import NO_FENCE
from fencelog.types import Offset, TimestampMs


class Phase(Enum):
    """The phase of a granted claim; one whose work after its end is done is forgotten."""

    GRANTING = "granting"
    """Epochs are being raised where they are enforced; it cannot be severed meanwhile (O9)."""
    HELD = "held"
    ENDED = "ended"
    """Released, severed or dead: its resources are free, but others must still be told so."""


class Granted(NamedTuple):
    """One resource of a claim, as it was granted; -1: it has no fence, or not yet."""

    resource: str
    generation: int
    epoch: int
    fence_offset: Offset = NO_FENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A claim that was granted.

    Attributes:
        lease_ms: without renewal for so long the claim ends (O10).
        granted_ms: when it was granted.
        producers_key: what its transactional id begins with, one of its resources, or None.
        resources: what it was granted, in the order of the claim; that key, if any, is last.
    """

    group: str | None
    session: str
    phase: Phase
    holder: str
    host: str
    lease_ms: int
    granted_ms: TimestampMs
    producers_key: str | None
    resources: tuple[Granted, ...]

    @property
    def wanted(self) -> tuple[Granted, ...]:
        """The resources that the claimant named."""
        return self.resources if self.producers_key is None else self.resources[:-1]

    @property
    def epoch(self) -> int:
        """The highest epoch of what the claimant named; with the session it proves the claim."""
        return max(each.epoch for each in self.wanted)


@dataclass(slots=True)
class Resource:
    """A resource that was ever claimed. Only ``replay`` changes it."""

    generation: int
    """The remembered one (O4)."""
    epoch: int
    """Of the last grant (O3)."""
    revision: Offset
    """The offset of the last record about it."""
    session: str | None = None
    """The claim that has this epoch; None once it has ended and its work is done."""
    fence_offset: Offset = NO_FENCE
    """That of this claim."""
    ending: str | None = None
    """The claim that had it and has ended, with work that is not done yet.

    There is one at most: a newer claim's grant is complete only once that work is done, and no
    claim ends before its grant is complete.
    """


CHANGES_SPARE = 1_000
"""Superseded changes that a group keeps, at least."""


def _no_revisions() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class Group:
    """The resources of one group, and the order in which they have changed.

    Invariant: ``_revisions`` and ``_changed`` have the changes in order, also those that a newer
    one of the same resource has superseded, which are half of them at most, beside the spare ones.
    """

    resources: dict[str, Resource] = field(default_factory=dict)
    _revisions: "array[int]" = field(default_factory=_no_revisions, compare=False)
    _changed: list[str] = field(default_factory=list, compare=False)
    _names: list[str] | None = field(default=None, compare=False)
    _is_sorted: bool = field(default=True, compare=False)

    def changed(self, name: str, resource: Resource) -> None:
        """Add a resource, or note that it is the last changed one."""
        if name not in self.resources and self._names is not None:
            self._names.append(name)
            self._is_sorted = False
        self.resources[name] = resource
        if len(self._changed) > 2 * len(self.resources) + CHANGES_SPARE:
            kept = self._latest(0, len(self._changed))
            self._changed = kept
            self._revisions = array("q", [self.resources[each].revision for each in kept])
        self._revisions.append(resource.revision)
        self._changed.append(name)

    @property
    def revision(self) -> Offset:
        """The offset of the last record about any of them; -1 without one."""
        return Offset(self._revisions[-1] if self._revisions else -1)

    def changes(self, seen_revision: int, limit: int) -> tuple[Offset, list[str]]:
        """What the oldest changes after a revision are about, and the revision of the last of them.

        They are ``limit`` or, as those of one record are never parted, a few more; superseded ones
        count. So there may be no names before the last revision.
        """
        revisions = self._revisions
        first = bisect_right(revisions, seen_revision)
        end = first + limit
        if end >= len(revisions):
            return self.revision, self._latest(first, len(revisions))
        revision = Offset(revisions[end - 1])
        return revision, self._latest(first, bisect_right(revisions, revision, lo=end))

    def _latest(self, first: int, end: int) -> list[str]:
        """Return the names of some changes, without the superseded ones."""
        changes = zip(self._revisions[first:end], self._changed[first:end], strict=True)
        return [name for revision, name in changes if self.resources[name].revision == revision]

    def names(self) -> list[str]:
        """All names, in order; kept, since none ever goes, and a few new ones are soon sorted."""
        if self._names is None:
            self._names = sorted(self.resources)
        elif not self._is_sorted:
            self._names.sort()
        self._is_sorted = True
        return self._names
