"""The cut through a stream: each record in one batch, and no key's records out of order (R2, R8)."""

import json
from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fencelog.coordination.streams.model import (
    COVERING,
    ENDED,
    HASH_SPACE,
    SegmentState,
    Stream,
)
from fencelog.coordination.streams.rules import created, emptied, merge, sealed, split
from fencelog.spark.offsets import admit, from_json, to_json
from fencelog.spark.stream_cut import (
    Begin,
    Cut,
    Gone,
    NoCutError,
    available,
    begin,
    cut_of,
    first_cut,
    held_back,
    implied_ends,
    implied_starts,
    unread_ends,
)
from fencelog.types import Offset, TopicPartition

T = "s"


def stream_of(count: int) -> Stream:
    stream = created(count)
    assert isinstance(stream, Stream)
    return stream


def done(result: object) -> Stream:
    assert isinstance(result, Stream), result
    return result


def resized(stream: Stream, *indexes: int, ends: dict[int, int]) -> Stream:
    """The stream after a split or a merge of these segments, sealed at these ends."""
    stream = done(split(stream, indexes[0]) if len(indexes) == 1 else merge(stream, indexes))
    for index in indexes:
        stream = sealed(stream, index, Offset(ends[index]))
    return stream


def stored(positions: dict[int, int]) -> dict[int, int]:
    """What is left of positions that were in a checkpoint."""
    offsets = {TopicPartition(T, index): offset for index, offset in positions.items()}
    text = json.dumps(to_json(offsets, streams=[T]))
    return {each.partition: offset for each, offset in from_json(json.loads(text)).items()}


class History(RuleBasedStateMachine):
    """A stream that is written, split, merged and trimmed while batches of it are planned."""

    @initialize(count=st.integers(1, 4))
    def create(self, count: int) -> None:
        self.stream = stream_of(count)
        self.view = self.stream
        self.logs: dict[int, list[bool]] = defaultdict(list)  # whether an offset is a record's
        self.seals: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.starts: dict[int, int] = defaultdict(int)
        self.batches: dict[tuple[int, int], int] = {}
        self.positions = stored(first_cut(self.stream, dict.fromkeys(range(count), 0)).positions)
        self.number = 0
        self.open_most = count

    # --- the stream

    @rule(key_hash=st.integers(0, HASH_SPACE - 1), count=st.integers(1, 5))
    def write(self, key_hash: int, count: int) -> None:
        index = self.stream.segment_of(key_hash).index
        if index not in self.seals:
            self.logs[index] += [True] * count

    @rule(key_hash=st.integers(0, HASH_SPACE - 1))
    def begin_transaction(self, key_hash: int) -> None:
        index = self.stream.segment_of(key_hash).index
        if index not in self.seals:
            self.held.setdefault(index, len(self.logs[index]))
            self.logs[index].append(True)

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def end_transaction(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[index]
        self.logs[index].append(False)  # also after the seal

    @rule(data=st.data(), parts=st.integers(1, 3))
    def resize(self, data: st.DataObject, parts: int) -> None:
        ready = [each for each in self.stream.covering if each.state is SegmentState.OPEN]
        at = data.draw(st.integers(0, max(0, len(ready) - 1)))
        chosen = [each.index for each in ready[at : at + parts]]
        if not chosen or len(self.stream.segments) > 40:
            return
        result = split(self.stream, chosen[0]) if parts == 1 else merge(self.stream, chosen)
        if isinstance(result, Stream):
            self.stream = result
            self.open_most = max(self.open_most, len(self.stream.covering) + parts)

    def sealing(self) -> list[int]:
        return [each.index for each in self.stream.segments if each.state is SegmentState.SEALING]

    @rule(data=st.data())
    @precondition(lambda self: self.sealing())
    def seal(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.sealing()))
        if index not in self.seals:
            self.seals[index] = len(self.logs[index])
            self.logs[index].append(False)

    @rule()
    def record_seals(self) -> None:
        for index in self.sealing():
            if index in self.seals:
                self.stream = sealed(self.stream, index, Offset(self.seals[index]))

    @rule(data=st.data())
    def trim_what_was_read(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.stream.segments) - 1))
        read = [offset for segment, offset in self.batches if segment == index]
        to = data.draw(st.integers(0, max(read, default=-1) + 1))
        ended = self.stream.segments[index].state in ENDED
        left = any(self.logs[index][offset] for offset in range(to, len(self.logs[index])))
        self.starts[index] = max(self.starts[index], to)
        if ended and not left:
            self.starts[index] = self.seals[index]
            self.stream = emptied(self.stream, index)

    # --- the query

    @rule()
    def look(self) -> None:
        """The next batch is planned from this, although the stream may have changed since."""
        self.view = self.stream

    @rule(limit=st.none() | st.integers(1, 6))
    def batch(self, limit: int | None) -> None:
        if len(self.view.segments) <= max(self.positions):
            self.view = self.stream
        view = self.view
        starts = {each.index: self.starts[each.index] for each in view.segments}
        found = begin(view, cut_of(view, self.positions), starts)
        assert (found.gone, found.unknown) == ((), frozenset())
        ends = dict(available(view, found.cut, self.readable(found.cut)))
        if limit is not None:
            places = {TopicPartition(T, each): offset for each, offset in ends.items()}
            begins = {TopicPartition(T, e): offset for e, offset in found.cut.reading.items()}
            ends = {e.partition: offset for e, offset in admit(begins, places, limit).items()}
        for index, end in ends.items():
            # As ``partitions`` does it, from the stored positions alone.
            for offset in range(self.positions.get(index, 0), end):
                if self.logs[index][offset]:
                    assert (index, offset) not in self.batches, "read once"
                    self.batches[index, offset] = self.number
        self.positions = stored(Cut(ends, found.cut.later).positions)
        self.number += 1

    def readable(self, cut: Cut) -> dict[int, int]:
        return {index: self.held.get(index, len(self.logs[index])) for index in cut.reading}

    # --- what holds

    @invariant()
    def successors_come_in_later_batches(self) -> None:
        if not hasattr(self, "stream"):
            return
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for (index, _), number in self.batches.items():
            first[index] = min(first.get(index, number), number)
            last[index] = max(last.get(index, number), number)
        newest: dict[int, int] = {}  # the last batch with a record before the segment's
        for each in self.stream.segments:
            newest[each.index] = max(
                (max(newest[p], last.get(p, -1)) for p in each.predecessors), default=-1
            )
            assert first.get(each.index, self.number) > newest[each.index]

    @invariant()
    def the_cut_has_no_history(self) -> None:
        if hasattr(self, "stream"):
            assert len(self.positions) <= self.open_most
            assert sum(
                self.stream.segments[each].high - self.stream.segments[each].low
                for each in self.positions
            ) == HASH_SPACE

    def teardown(self) -> None:
        if not hasattr(self, "stream"):
            return
        self.held.clear()
        for index in self.sealing():
            self.seals.setdefault(index, len(self.logs[index]))
        self.record_seals()
        self.view = self.stream
        for _ in range(len(self.stream.segments) + 1):
            self.batch(None)
            self.successors_come_in_later_batches()
        unread = [
            (index, offset)
            for index, log in self.logs.items()
            for offset, record in enumerate(log)
            if record and (index, offset) not in self.batches
        ]
        assert unread == []


History.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
test_each_record_is_in_one_batch_after_what_it_follows = History.TestCase
