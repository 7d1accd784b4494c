"""The cut through a stream: each record in one batch, and each key in order (R2, R8)."""

import json
from collections import defaultdict
from dataclasses import replace

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
        found = begin(view, cut_of(view, self.positions), self.log_starts())
        if found.unknown:  # deleted since it was looked at
            self.view = view = self.stream
            found = begin(view, cut_of(view, self.positions), self.log_starts())
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

    def log_starts(self) -> dict[int, int]:
        """Those of segments that have something left: of the others nobody needs to ask."""
        return {
            each.index: self.starts[each.index]
            for each in self.stream.segments
            if each.state is not SegmentState.DELETED
            or self.positions.get(each.index, 0) < self.seals[each.index]
        }

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
            assert (
                sum(
                    self.stream.segments[each].high - self.stream.segments[each].low
                    for each in self.positions
                )
                == HASH_SPACE
            )

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


History.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
test_each_record_is_in_one_batch_after_what_it_follows = History.TestCase


# --- by example: 0 splits into 2 and 3, then 2 and 1 merge into 4


def example() -> Stream:
    low, high = stream_of(2).segments
    stream = Stream((replace(high, index=0), replace(low, index=1)))
    stream = resized(stream, 0, ends={0: 10})
    return resized(stream, 1, 2, ends={1: 5, 2: 20})


def cut(positions: dict[int, int]) -> Cut:
    return cut_of(example(), positions)


def test_a_successor_waits_for_the_batch_after_that_of_its_predecessors_end() -> None:  # R8
    assert begin(example(), cut({0: 9, 1: 0}), {0: 0, 1: 0}).cut.reading == {0: 9, 1: 0}
    after = begin(example(), cut({0: 10, 1: 0}), {1: 0, 2: 0, 3: 0})
    assert after.cut.reading == {1: 0, 2: 0, 3: 0}


def test_a_merge_waits_for_the_last_predecessor_and_the_others_stay_in_the_cut() -> None:  # R8
    assert begin(example(), cut({1: 5, 2: 19, 3: 0}), {2: 0, 3: 0}).cut.reading == {
        1: 5,
        2: 19,
        3: 0,
    }
    assert begin(example(), cut({1: 5, 2: 20, 3: 0}), {3: 0, 4: 0}).cut.reading == {3: 0, 4: 0}


def test_what_retention_removed_after_it_was_read_is_no_loss() -> None:  # S6, R2
    stream = emptied(emptied(emptied(example(), 0), 1), 2)
    assert begin(stream, cut_of(stream, {0: 10, 1: 5}), {3: 0}).gone == (
        Gone(segment=2, start=0, end=20),
    )
    assert begin(stream, cut_of(stream, {1: 5, 2: 20, 3: 7}), {3: 7, 4: 0}).gone == ()


def test_what_retention_removed_unread_is_gone_and_the_next_batch_goes_on_after_it() -> None:  # S6
    stream = emptied(example(), 0)
    found = begin(stream, cut_of(stream, {0: 4, 1: 0}), {1: 3, 2: 0, 3: 0})
    assert found == Begin(
        Cut({1: 3, 2: 0, 3: 0}, {}),
        (Gone(segment=0, start=4, end=10), Gone(segment=1, start=0, end=3)),
    )


def test_the_log_starts_of_successors_are_asked_for_once_they_are_reached() -> None:
    assert begin(example(), cut({0: 10, 1: 0}), {1: 0}).unknown == {2, 3}


def test_nothing_is_asked_of_a_segment_that_was_read_to_its_end() -> None:  # S6
    # Retention may have removed it with its files.
    assert begin(example(), cut({1: 5, 2: 19, 3: 0}), {2: 0, 3: 0}).unknown == frozenset()


def test_segments_that_were_empty_are_passed_at_once() -> None:
    stream = resized(resized(stream_of(1), 0, ends={0: 0}), 1, ends={1: 0})
    assert begin(stream, cut_of(stream, {0: 0}), dict.fromkeys(range(5), 0)).cut.reading == {
        2: 0,
        3: 0,
        4: 0,
    }


def test_a_seal_that_is_not_recorded_yet_ends_nothing() -> None:  # R1
    stream = done(split(stream_of(1), 0))
    assert begin(stream, cut_of(stream, {0: 99}), {0: 0}).cut.reading == {0: 99}


def test_markers_after_the_seal_do_not_make_a_finished_segment_longer() -> None:  # R2
    assert available(example(), cut({1: 5, 2: 0, 3: 0}), {1: 9, 2: 3, 3: 8}) == {1: 5, 2: 3, 3: 8}


def test_a_run_that_reads_what_is_there_leaves_out_segments_that_came_later() -> None:
    found = available(example(), cut({3: 0, 4: 0}), {3: 8, 4: 8}, {3: 2})
    assert found == {3: 2, 4: 0}


def test_a_query_begins_at_the_first_records_that_there_are() -> None:
    stream = emptied(emptied(example(), 0), 1)
    starts = {0: 10, 1: 5, 2: 7, 3: 1, 4: 0}
    assert first_cut(stream, starts) == Cut({1: 5, 2: 7, 3: 1}, {})


def test_a_successor_that_lost_its_beginning_before_the_query_began_lost_nothing() -> None:  # S6
    first = first_cut(example(), {0: 0, 1: 0, 2: 6, 3: 0, 4: 0})
    assert first == Cut({0: 0, 1: 0}, {2: 6})
    assert cut(stored(first.positions)) == first
    found = begin(example(), cut({0: 10, 1: 0, 2: 6}), {1: 0, 2: 6, 3: 0})
    assert (found.cut.reading, found.gone) == ({1: 0, 2: 6, 3: 0}, ())


def test_the_end_of_all_segments_leaves_those_that_are_open() -> None:
    assert first_cut(example(), {0: 11, 1: 6, 2: 21, 3: 4, 4: 9}) == Cut({3: 4, 4: 9}, {})
    # An open transaction before the seal of 1: its successor is not reached yet.
    assert first_cut(example(), {0: 11, 1: 2, 2: 21, 3: 4, 4: 9}) == Cut(
        {1: 2, 2: 21, 3: 4}, {4: 9}
    )


def test_the_lag_counts_what_follows_the_cut() -> None:
    assert unread_ends(example(), cut({0: 4, 1: 5}), {0: 11, 3: 8, 4: 9}) == {
        0: 11,
        1: 5,
        2: 20,
        3: 8,
        4: 9,
    }


def test_a_start_names_a_cut_and_the_rest_follows() -> None:
    assert implied_starts(example(), {1, 2, 3}) == {0: 10, 4: 0}
    assert implied_starts(example(), {3, 4}) == {0: 10, 1: 5, 2: 20}


def test_an_end_names_a_cut_and_the_rest_follows() -> None:
    assert implied_ends(example(), {1, 2, 3}) == {0: 10, 4: 0}


def test_a_start_or_an_end_that_leaves_hashes_out_is_refused() -> None:
    with pytest.raises(NoCutError, match="segments 2 do not cover all hashes"):
        implied_starts(example(), {2})
    with pytest.raises(NoCutError, match="there is no segment 7, only 0 to 4"):
        implied_starts(example(), {7})
    with pytest.raises(NoCutError, match="segments 3 are missing"):
        implied_ends(example(), {4})
    with pytest.raises(NoCutError, match="segment 0 is not sealed yet"):
        implied_starts(done(split(stream_of(1), 0)), {1, 2})
    with pytest.raises(NoCutError, match=r"segments \[1\] have no position"):
        first_cut(stream_of(2), {0: 0})


def test_a_read_stops_before_the_successors_of_what_is_not_readable_yet() -> None:  # R8
    assert held_back(example(), {0: 10, 1: 5, 2: 20, 3: 1, 4: 1}) == set()
    assert held_back(example(), {0: 9, 1: 5, 2: 20, 3: 1, 4: 1}) == {2, 3, 4}
