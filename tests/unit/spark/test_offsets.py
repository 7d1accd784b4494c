"""Offsets: one spelling for one state, and fair shares of a limit."""

import json

from hypothesis import given
from hypothesis import strategies as st

from fencelog.spark.offsets import (
    OffsetRange,
    admit,
    cap,
    from_json,
    is_unpinned,
    ranges,
    recreated,
    split,
    to_json,
    topic_ids,
    without,
)
from fencelog.types import TopicId, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ID, OTHER_ID = TopicId(bytes([1] * 16)), TopicId(bytes([2] * 16))

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "init"]), st.integers(0, 12))
offset_maps = st.dictionaries(partitions, st.integers(0, 10_000), min_size=1, max_size=8)


def test_the_shape_is_kafkas_connectors() -> None:
    assert json.dumps(to_json({B0: 3, A1: 2, A0: 1})) == '{"a": {"0": 1, "1": 2}, "b": {"0": 3}}'


@given(offset_maps, st.randoms(use_true_random=False))
def test_equal_offsets_are_equal_text_whatever_their_order(offsets, random) -> None:
    shuffled = list(offsets.items())
    random.shuffle(shuffled)
    assert json.dumps(to_json(dict(shuffled))) == json.dumps(to_json(offsets))


@given(offset_maps, st.booleans())
def test_offsets_survive_spark_with_and_without_the_mark(offsets, unpinned) -> None:
    stored = json.loads(json.dumps(to_json(offsets, unpinned=unpinned)))
    assert from_json(stored) == offsets
    assert is_unpinned(stored) is unpinned


def test_topic_ids_are_written_as_kafka_prints_them_for_the_topics_that_are_read() -> None:
    stored = to_json({B0: 3, A0: 1}, {"c": ID, "b": ID, "a": OTHER_ID})
    assert json.dumps(stored) == (
        '{"@ids": {"a": "AgICAgICAgICAgICAgICAg", "b": "AQEBAQEBAQEBAQEBAQEBAQ"},'
        ' "a": {"0": 1}, "b": {"0": 3}}'
    )
    assert from_json(stored) == {A0: 1, B0: 3}
    assert topic_ids(stored) == {"a": OTHER_ID, "b": ID}


def test_a_topic_with_another_id_was_created_again() -> None:  # S9
    assert recreated({"a": ID, "b": ID}, {"a": OTHER_ID, "b": ID}) == {"a"}
    assert without({A0: 1, A1: 2, B0: 3}, {"a"}) == {B0: 3}


def test_without_an_id_on_one_side_a_topic_is_the_same() -> None:
    assert recreated({}, {"a": ID}) == recreated({"a": ID}, {}) == set()


@given(offset_maps, st.integers(1, 5_000), st.data())
def test_a_limit_is_used_up_and_never_passed(start, limit, data) -> None:
    latest = {each: offset + data.draw(st.integers(0, 500)) for each, offset in start.items()}
    admitted = admit(start, latest, limit)
    waiting = sum(latest.values()) - sum(start.values())
    assert sum(admitted.values()) - sum(start.values()) == min(limit, waiting)
    assert all(start[each] <= admitted[each] <= latest[each] for each in start)


def test_shares_follow_what_waits() -> None:
    assert admit({A0: 0, B0: 0}, {A0: 900, B0: 100}, 100) == {A0: 90, B0: 10}


def test_a_small_partition_beside_a_large_one_gets_its_share() -> None:
    assert admit({A0: 0, B0: 0}, {A0: 1_000_000, B0: 1}, 10) == {A0: 9, B0: 1}


def test_a_limit_below_the_number_of_partitions_reaches_all_of_them_in_turn() -> None:
    start, latest = {A0: 0, A1: 0, B0: 0}, {A0: 9, A1: 9, B0: 9}
    served = []
    for _ in range(3):
        end = admit(start, latest, 1)
        served += [each for each in end if end[each] > start[each]]
        start = end
    assert sorted(served) == [A0, A1, B0]


def test_a_ceiling_holds_back_later_records_and_later_partitions() -> None:
    assert cap({A0: 10, B0: 5}, {A0: 7}) == {A0: 7}


def test_only_partitions_with_news_are_read() -> None:
    assert ranges({A0: 1, A1: 5, B0: 9}, {A0: 4, A1: 5, B0: 2}, {"a": ID}) == [
        OffsetRange(partition=A0, start=1, end=4, topic_id=ID)
    ]


@given(st.integers(1, 1_000), st.integers(1, 1_000), st.integers(0, 40))
def test_cut_ranges_cover_the_same_offsets_without_overlap(first, second, pieces_min) -> None:
    whole = [
        OffsetRange(partition=A0, start=7, end=7 + first, topic_id=ID),
        OffsetRange(partition=B0, start=0, end=second, topic_id=OTHER_ID),
    ]
    pieces = split(whole, pieces_min)
    covered, expected = (
        [
            (each.topic_id, each.partition, offset)
            for each in wanted
            for offset in range(each.start, each.end)
        ]
        for wanted in (pieces, whole)
    )
    assert covered == expected
    assert all(piece.size > 0 for piece in pieces)


def test_a_minimum_of_partitions_cuts_the_large_range() -> None:
    pieces = split([OffsetRange(partition=A0, start=0, end=100)], 4)
    assert [(piece.start, piece.end) for piece in pieces] == [
        (0, 25),
        (25, 50),
        (50, 75),
        (75, 100),
    ]


def test_a_maximum_of_offsets_cuts_every_range_that_exceeds_it() -> None:
    wanted = [
        OffsetRange(partition=A0, start=0, end=10),
        OffsetRange(partition=B0, start=5, end=9),
    ]
    assert [each.size for each in split(wanted, size_max=4)] == [3, 3, 4, 4]
    assert [each.size for each in split(wanted, 7, size_max=9)] == [2, 3, 2, 3, 2, 2]
