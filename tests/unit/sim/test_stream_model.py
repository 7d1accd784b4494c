"""What the monitor of streams finds in the metadata, change by change."""

import json
from collections.abc import Sequence

import pytest

from fencelog.broker.metadata.catalog import TOPIC_PREFIX
from fencelog.coordination.streams import rules
from fencelog.coordination.streams.model import (
    LogEnd,
    SegmentState,
    Stream,
    StreamSegment,
    with_state,
)
from fencelog.ports import MetadataChange
from fencelog.types import LeaderEpoch, Offset, TopicPartition
from fencelog_sim.monitors.stream_model import StreamModel

ID = "00" * 16
SEAL = Offset(7)
END = LogEnd(Offset(9), LeaderEpoch(1))


def problems(*streams: Stream, seals: Sequence[int] = (0, 1), topic_id: str = ID) -> list[str]:
    """What is wrong with these states of one stream, of which these segments have seals."""

    def seal_problem(name: TopicPartition, offset: int) -> str | None:
        return None if name.partition in seals and offset == SEAL else "no seal"

    def removal_problem(name: TopicPartition, segment: StreamSegment) -> str | None:
        assert segment.removed is not None
        return None if segment.removed.offset == END.offset else f"{name} ends elsewhere"

    model = StreamModel(seal_problem, removal_problem)
    return [
        problem for stream in streams for problem in model.take([change(stream, topic_id=topic_id)])
    ]


def change(stream: Stream, *, topic_id: str = ID) -> MetadataChange:
    value = {"id": topic_id, "partitions": len(stream.segments), "stream": stream.stored()}
    return MetadataChange(f"{TOPIC_PREFIX}s", json.dumps(value).encode(), 1)


def new(count: int = 1) -> Stream:
    stream = rules.created(count)
    assert isinstance(stream, Stream)
    return stream


def splitting() -> Stream:
    stream = rules.split(new(), 0)
    assert isinstance(stream, Stream)
    return stream


def merging() -> Stream:
    stream = rules.merge(new(2), [0, 1])
    assert isinstance(stream, Stream)
    return stream


def with_states(stream: Stream, **states: SegmentState) -> Stream:
    """The stream with segments in these states; ``s1`` is segment 1."""
    return stream.changed(
        [with_state(stream.segments[int(name[1:])], each) for name, each in states.items()]
    )


def test_a_split_and_a_merge_are_sound() -> None:
    split = splitting()
    assert problems(new(), split, rules.sealed(split, 0, SEAL)) == []
    merge = merging()
    first = rules.sealed(merge, 0, SEAL)
    assert problems(new(2), merge, first, rules.sealed(first, 1, SEAL)) == []


def test_a_successor_is_open_only_once_every_seal_is_committed() -> None:  # R2
    split, merge = splitting(), merging()
    (found, _, _) = problems(new(), split, rules.sealed(split, 0, SEAL), seals=[])
    assert found == "s: segment 0 is sealed at 7: no seal (R2)"
    first = rules.sealed(merge, 0, SEAL)
    early = with_states(first, s0=SegmentState.SEALED, s1=SegmentState.SEALED, s2=SegmentState.OPEN)
    early = early.changed([with_state(early.segments[1], SegmentState.SEALED, SEAL)])
    assert problems(new(2), merge, first, early, seals=[0]) != []


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        pytest.param(new(2), "was made with", id="an index that is used again"),
        pytest.param(
            with_states(splitting(), s0=SegmentState.OPEN, s1=SegmentState.OPENING),
            "open after sealing",
            id="a state that goes back",
        ),
    ],
)
def test_a_segment_changes_by_its_next_state_only(after: Stream, problem: str) -> None:  # R1, R2
    assert any(problem in each for each in problems(splitting(), after))


def test_ranges_that_leave_a_gap_are_reported() -> None:  # R1
    stream = new(2)
    gap = Stream((stream.segments[0], with_state(stream.segments[1], SegmentState.OPENING)))
    (found,) = problems(gap)
    assert "the open segments end at" in found


def test_another_topic_of_the_name_is_another_stream() -> None:
    model = StreamModel(lambda name, offset: None, lambda name, segment: None)
    assert list(model.take([change(splitting())])) == []
    assert list(model.take([change(new(), topic_id="11" * 16)])) == []


def test_files_are_given_up_once_where_the_log_has_ended() -> None:  # R1
    deleted = rules.emptied(rules.sealed(splitting(), 0, SEAL), 0)
    gone = rules.removed(deleted, 0, END)
    assert problems(deleted, gone, gone) == []
    early = rules.removed(deleted, 0, LogEnd(Offset(8), LeaderEpoch(1)))
    what = "s: segment 0 is without files from LogEnd(offset={}, leader_epoch=1): {} (R1)"
    assert problems(deleted, early) == [what.format(8, "s-0 ends elsewhere")]
    again = "its log has ended at LogEnd(offset=8, leader_epoch=1)"
    assert problems(early, gone) == [what.format(9, again)]
