"""One round of compaction on one log: whether it is due, what it reads, and what it writes.

The storage package reads segments batch by batch and writes the result; the rules are here:

1. ``need_of`` says whether a round is due and how far it may go.
2. ``Round.dirty`` are the segments to give to ``Round.map``, in order, while it asks for more.
3. Each of ``Round.groups`` becomes one file: its batches go through a ``GroupCleaner``, which
   returns what to write, and at the end a ``Cleaned`` segment that replaces the group.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fencelog.log.compaction import KEYS_MAX, Compactor, KeyMapper, live_producers
from fencelog.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from fencelog.log.layout import encode_aborted
from fencelog.log.segment import Segment
from fencelog.log.state import LogState
from fencelog.log.values import SideFiles
from fencelog.types import Buffer, Offset
from fencelog.wire.batch import BatchHeader, read_header

_OFFSET_SPAN_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionNeed:
    """What a round would do to a log, and whether it is due."""

    dirty_bytes: int
    clean_bytes: int
    end: Offset
    """First offset that may not be changed."""
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """Share of bytes never compacted in all bytes that may be compacted."""
        return self.dirty_bytes / max(self.dirty_bytes + self.clean_bytes, 1)


def need_of(
    state: LogState, first_dirty: Offset, limit: Offset, written_base: Offset, now_ms: int
) -> CompactionNeed:
    """Return what there is to compact below ``limit``, in segments below ``written_base``."""
    config = state.config
    dirty = clean = 0
    end = state.segments[0].base_offset
    oldest = -1
    for segment in state.segments[:-1]:
        is_young = config.min_compaction_lag_ms > 0 and (
            segment.newest_timestamp > now_ms - config.min_compaction_lag_ms
        )
        if segment.next_offset > limit or segment.base_offset >= written_base or is_young:
            break
        end = segment.next_offset
        if segment.next_offset <= first_dirty:
            clean += segment.size
            continue
        dirty += segment.size
        if oldest < 0:
            oldest = segment.first_timestamp
    need = CompactionNeed(dirty_bytes=dirty, clean_bytes=clean, end=end, is_due=False)
    is_late = 0 <= oldest < now_ms - config.max_compaction_lag_ms
    is_due = dirty > 0 and (need.dirty_ratio > config.min_cleanable_dirty_ratio or is_late)
    return CompactionNeed(dirty_bytes=dirty, clean_bytes=clean, end=end, is_due=is_due)


def grouped(state: LogState, end: Offset) -> list[list[Segment]]:
    """Return the segments that begin below ``end``, each group small enough for one segment."""
    config = state.config
    entries_max = config.segment_index_bytes // max(OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES)
    groups: list[list[Segment]] = []
    size = entries = 0
    for segment in state.segments[:-1]:
        if segment.base_offset >= end:
            break
        more = max(len(segment.index), len(segment.time_index))
        fits = (
            bool(groups)
            and size + segment.size <= config.segment_bytes
            and entries + more <= entries_max
            and segment.next_offset - groups[-1][0].base_offset <= _OFFSET_SPAN_MAX
        )
        if fits:
            groups[-1].append(segment)
            size, entries = size + segment.size, entries + more
        else:
            groups.append([segment])
            size, entries = segment.size, more
    return groups


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A cleaned segment and what it replaces."""

    segment: Segment
    replaced: tuple[Offset, ...]
    """Base offsets of the segments that it replaces; the first is its own."""
    forgotten: frozenset[Offset]
    """Abort markers in it whose transactions have no other batch left."""
    side_files: SideFiles


class Round:
    """One round on one log; it sees the log as it was when the round began."""

    def __init__(
        self,
        state: LogState,
        first_dirty: Offset,
        end: Offset,
        now_ms: int,
        keys_max: int = KEYS_MAX,
    ) -> None:
        """Everything below ``end`` may be changed (``need_of``)."""
        self._state = state
        self._limit = end
        self._live = live_producers(state)
        self._now_ms = now_ms
        self.map = KeyMapper(state.transactions, max(first_dirty, state.log_start), keys_max)
        self.keeps_deletions = False
        """Whether tombstones and markers stay for the sake of replicas that may lack them."""

    @property
    def end(self) -> Offset:
        """Everything below is mapped, and clean once every group was replaced."""
        return self.map.end

    def dirty(self) -> list[Offset]:
        """Return the base offsets of the segments to map."""
        return [
            segment.base_offset
            for segment in self._state.segments[:-1]
            if self.map.end < segment.next_offset <= self._limit
        ]

    def groups(self) -> "Iterator[GroupCleaner]":
        """Yield, after the mapping, each file that is to be written."""
        compactor = Compactor(
            self._state,
            self.map,
            self._live,
            self._now_ms,
            keeps_deletions=self.keeps_deletions,
        )
        for group in grouped(self._state, self.end):
            yield GroupCleaner(self._state, group, compactor)


class GroupCleaner:
    """Cleans adjacent segments into one."""

    def __init__(self, state: LogState, group: list[Segment], compactor: Compactor) -> None:
        """``compactor`` is shared by all groups, because transactions cross their borders."""
        self._state = state
        self._compactor = compactor
        self._end = group[-1].next_offset
        self.base_offsets = tuple(segment.base_offset for segment in group)
        self._segment = Segment(group[0].base_offset)
        self._pending: list[Buffer] = []
        self.is_changed = len(group) > 1
        """Whether the output differs from the input."""

    def visit(self, header: BatchHeader, batch: memoryview) -> None:
        """Clean the next batch of the group."""
        is_last = header.next_offset == self._end
        written = self._compactor.visit(header, batch, is_last=is_last)
        if written is None:
            self.is_changed = True
            return
        self.is_changed = self.is_changed or written is not batch
        interval = self._state.config.index_interval_bytes
        after = read_header(written)
        self._segment.append(
            after.size,
            after.last_offset,
            after.max_timestamp,
            interval,
            has_records=after.record_count > 0,
            is_undated=after.is_undated,
        )
        self._pending.append(written)

    def take(self) -> list[Buffer]:
        """Return what is to be written next."""
        pending, self._pending = self._pending, []
        return pending

    def finish(self) -> Cleaned:
        """Return the cleaned segment, once every batch was visited and is written."""
        segment = self._segment
        assert segment.next_offset == self._end, (segment.next_offset, self._end)
        segment.seal()
        base_offset = segment.base_offset
        forgotten = frozenset(
            offset for offset in self._compactor.forgotten if base_offset <= offset < self._end
        )
        left = [
            entry
            for entry in self._state.transactions.aborted
            if base_offset <= entry.last_offset < self._end and entry.last_offset not in forgotten
        ]
        side_files = SideFiles(
            segment.index.encode(), segment.time_index.encode(), encode_aborted(left)
        )
        return Cleaned(segment, self.base_offsets, forgotten, side_files)
