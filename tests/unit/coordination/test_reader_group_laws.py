"""A reader group against a plain model: any updates, in any order, on a stream that is resized.

The model knows what was read of each segment, and which successors it has. Laws: a segment has one
reader at most; no segment is lost; a position goes back only where somebody says so; all copies of
the state are the same; and a group that nothing happens to becomes balanced and then rests.
"""

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencelog.coordination.reader_group.replay import apply, refusal
from fencelog.coordination.reader_group.rules import (
    Reach,
    Shed,
    Take,
    fair_shares,
    is_balanced,
    next_step,
)
from fencelog.coordination.reader_group.state import EMPTY, GroupState, Settings, dump, load
from fencelog.coordination.reader_group.updates import (
    CheckpointBegun,
    CheckpointDropped,
    CheckpointReached,
    Completed,
    Created,
    Joined,
    Released,
    Reset,
    Took,
    Update,
    WentOffline,
    dump_update,
)
from fencelog.coordination.streams.model import HASH_SPACE, Stream
from fencelog.coordination.streams.rules import created, merge, sealed, split
from fencelog.types import Offset

NAMES = ("a", "b", "c", "d")
END = 100
SETTINGS = Settings(stream="s", topic_id="00")


class Group(RuleBasedStateMachine):
    """The state, what the stream is, and what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.offset = EMPTY, 0
        self.floor: dict[int, int] = {}
        self.completed: set[int] = set()

    @initialize(count=st.integers(1, 4))
    def create(self, count: int) -> None:
        stream = created(count)
        assert isinstance(stream, Stream)
        self.stream = stream
        self.write(Created(SETTINGS, 0, dict.fromkeys(range(count), 0)))

    def write(self, update: Update) -> bool:
        """Write an update as the synchronizer stores it; return whether it has an effect."""
        has_effect = refusal(self.state, update) is None
        before = self.state
        self.state = apply(before, dump_update(update), self.offset)
        self.offset += 1
        if not has_effect:
            assert self.state is before
        return has_effect

    @rule(name=st.sampled_from(NAMES), older=st.booleans())
    def join(self, name: str, older: bool) -> None:
        known = self.state.readers.get(name)
        incarnation = self.offset + 1
        if older and known is not None:
            incarnation = known.incarnation - 1
        self.write(Joined(name, incarnation))
        if older and known is not None:
            assert self.state.readers[name] is known
        else:
            assert not self.state.readers[name].segments

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def go_offline(self, name: str, data: st.DataObject) -> None:
        known = self.state.readers.get(name)
        if known is None:
            return
        is_exact = data.draw(st.booleans())
        positions = {
            index: data.draw(st.integers(0, END))
            for index in known.segments
            if data.draw(st.booleans())
        }
        before = {index: at.offset for index, at in known.segments.items()}
        assert self.write(WentOffline(name, known.incarnation, positions, is_exact))
        for index, at in before.items():
            wanted = positions.get(index, at)
            if is_exact:
                self.floor[index] = wanted
            assert self.state.unassigned[index].offset == (wanted if is_exact else max(wanted, at))

    @rule(name=st.sampled_from(NAMES), may_shed=st.booleans(), take_max=st.integers(1, 3))
    def step(self, name: str, may_shed: bool, take_max: int) -> None:
        if name in self.state.readers:
            self.do(name, may_shed=may_shed, take_max=take_max)

    def do(self, name: str, *, may_shed: bool, take_max: int) -> bool:
        reader = self.state.readers[name]
        step = next_step(self.state, name, may_shed=may_shed, take_max=take_max)
        share = fair_shares(self.state)[name]
        match step:
            case None:
                return False
            case Take(segments):
                assert len(segments) <= take_max
                assert len(reader.segments) + len(segments) <= share
                before = {each: self.state.unassigned[each] for each in segments}
                assert self.write(Took(name, reader.incarnation, segments))
                for each, at in before.items():  # R7: at exactly that position
                    assert self.state.readers[name].segments[each].position == at
            case Shed(segment):
                assert len(reader.segments) > share
                at = reader.segments[segment].offset
                assert self.write(Released(name, reader.incarnation, segment, at))
                assert self.state.unassigned[segment].offset == at
            case Reach(names):
                at = {index: owned.offset for index, owned in reader.segments.items()}
                assert self.write(CheckpointReached(name, reader.incarnation, names, at))
        return True

    @rule(name=st.sampled_from(NAMES), segment=st.integers(0, 20), data=st.data())
    def release(self, name: str, segment: int, data: st.DataObject) -> None:
        reader = self.state.readers.get(name)
        if reader is None:
            return
        known = reader.segments.get(segment)
        at = data.draw(st.integers(0, END))
        is_good = self.write(Released(name, reader.incarnation, segment, at))
        assert is_good == (known is not None and at >= known.offset)

    @rule(name=st.sampled_from(NAMES), segment=st.integers(0, 20))
    def take_of_an_older_incarnation(self, name: str, segment: int) -> None:
        """R6: it changes nothing."""
        reader = self.state.readers.get(name)
        incarnation = 0 if reader is None else reader.incarnation - 1
        assert not self.write(Took(name, incarnation, (segment,)))
        assert not self.write(Released(name, incarnation, segment, END))
        assert not self.write(Completed(name, incarnation, segment, END, {}))
        assert not self.write(CheckpointReached(name, incarnation, (), {segment: END}))
        assert not self.write(WentOffline(name, incarnation, {}))

    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        """A split or a merge, all of it."""
        if len(self.stream.segments) > 18:
            return
        place = data.draw(st.integers(0, len(self.stream.covering) - 1))
        covering = [each.index for each in self.stream.covering]
        if data.draw(st.booleans()) or place + 1 == len(covering):
            changed = split(self.stream, covering[place])
            old = [covering[place]]
        else:
            old = covering[place : place + 2]
            changed = merge(self.stream, old)
        if not isinstance(changed, Stream):
            return
        for each in old:
            changed = sealed(changed, each, Offset(END))
        self.stream = changed

    @rule(name=st.sampled_from(NAMES))
    def complete(self, name: str) -> None:
        reader = self.state.readers.get(name)
        ended = [each for each in (reader.segments if reader else ()) if self.has_ended(each)]
        if reader is None or not ended:
            return
        segment = ended[0]
        after = {each.index: each.predecessors for each in self.stream.successors(segment)}
        done = self.done() | {segment}
        assert self.write(Completed(name, reader.incarnation, segment, END, after))
        for index, before in after.items():
            # R8: readable with the last of its predecessors, and not before
            assert (index in self.state.unassigned) == done.issuperset(before)
            assert (index in self.state.future) != done.issuperset(before)

    def has_ended(self, index: int) -> bool:
        return self.stream.segments[index].end >= 0

    def done(self) -> set[int]:
        """Segments that are before the group's position."""
        found: set[int] = set()
        waiting = [
            *self.state.unassigned,
            *(index for each in self.state.readers.values() for index in each.segments),
        ]
        for each in self.state.future.values():
            found |= set(each.done)
        while waiting:
            for before in self.stream.segments[waiting.pop()].predecessors:
                if before not in found:
                    found.add(before)
                    waiting.append(before)
        return found

    @rule(name=st.sampled_from("xyz"), drop=st.booleans())
    def checkpoint(self, name: str, drop: bool) -> None:
        known = name in self.state.checkpoints
        assert self.write(CheckpointDropped(name) if drop else CheckpointBegun(name)) == (
            known if drop else not known
        )

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        complete = [each for each in self.state.checkpoints.values() if each.is_complete]
        if not complete:
            return
        cut = data.draw(st.sampled_from(complete)).positions
        assert self.write(Reset(cut))
        assert self.state.cut() == cut
        self.floor = dict(cut)

    @invariant()
    def every_segment_is_in_one_place(self) -> None:
        places: list[int] = [*self.state.unassigned, *self.state.future]
        for reader in self.state.readers.values():
            places += reader.segments
        assert len(places) == len(set(places))

    @invariant()
    def nothing_is_lost(self) -> None:
        """Readable segments, and those that merges wait for, cover all keys exactly."""
        covers(self.stream, self.state.cut())
        for each in self.state.checkpoints.values():
            if each.is_complete:
                covers(self.stream, each.positions)

    @invariant()
    def future_segments_wait_for_readable_ones(self) -> None:
        for each in self.state.future.values():
            assert each.waiting

    @invariant()
    def positions_go_back_only_where_somebody_says_so(self) -> None:
        cut = self.state.cut()
        for index, at in cut.items():
            assert at >= self.floor.get(index, 0)
        self.floor = dict(cut)

    @invariant()
    def a_mark_has_all_of_the_state(self) -> None:
        assert load(dump(self.state)) == self.state

    def teardown(self) -> None:
        """R7: left alone, the group becomes balanced, and then nobody does anything."""
        if not self.state.readers:
            return
        for _ in range(200):
            done = [self.do(name, may_shed=True, take_max=2) for name in self.state.readers]
            if not any(done):
                break
        assert is_balanced(self.state)
        assert not self.state.unassigned
        counts = [len(each.segments) for each in self.state.readers.values()]
        assert max(counts) - min(counts) <= 1
        assert all(each.is_complete for each in self.state.checkpoints.values())


def covers(stream: Stream, cut: Any) -> None:
    at = 0
    for each in sorted((stream.segments[index] for index in cut), key=lambda each: each.low):
        assert each.low == at, cut
        at = each.high
    assert at == HASH_SPACE, cut


Group.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_reader_group_laws = Group.TestCase


def test_the_state_of_an_empty_topic_is_no_group() -> None:
    assert GroupState().settings is None
    assert fair_shares(EMPTY) == {}
