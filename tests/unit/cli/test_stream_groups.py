"""Cuts on the command line, when ``-e`` ends, and what is shown of a reader group."""

import io
from pathlib import Path

import pytest

from fencelog.cli.output import UsageError
from fencelog.cli.stream_cut import parse_place
from fencelog.cli.stream_group import Unread, description
from fencelog.cli.stream_read import default_name, is_behind
from fencelog.client.streams.group_model import (
    ReaderDescription,
    ReaderGroupDescription,
    check_name,
)
from fencelog.client.streams.model import StreamDescription
from fencelog.coordination.streams.model import Stream
from fencelog.coordination.streams.rules import created, merge, sealed, split, unsealed
from fencelog.types import Offset, TopicId

TOPIC_ID = TopicId(b"0123456789abcdef")
CUT = f'{{"stream": "orders", "topic_id": "{TOPIC_ID.hex()}", "segments": {{"0": 8, "1": 0}}}}'


def done(outcome: object) -> Stream:
    """The stream once its seals are committed, at 10."""
    assert isinstance(outcome, Stream), outcome
    for index in unsealed(outcome):
        outcome = sealed(outcome, index, Offset(10))
    return outcome


@pytest.fixture
def stream() -> Stream:
    """0 was split into 2 and 3, then 3 and 1 were merged into 4."""
    return done(merge(done(split(done(created(2)), 0)), [3, 1]))


@pytest.mark.parametrize(
    ("cut", "ends", "wanted"),
    [
        ({0: 10, 1: 5}, {0: 10, 1: 5}, True),
        ({0: 9, 1: 5}, {0: 10, 1: 5}, False),
        ({2: 0, 3: 0, 1: 5}, {0: 10, 1: 5}, True),  # 0 is completed
        ({2: 0, 4: 0}, {0: 10, 1: 5}, True),
        ({0: 10, 1: 10}, {2: 0, 4: 0}, False),  # its successors are not begun
        ({2: 7, 3: 10, 1: 10}, {2: 7, 4: 0}, False),
        ({2: 7, 4: 3}, {2: 7, 4: 3}, True),
        ({2: 7, 4: 2}, {2: 7, 4: 3}, False),
        ({2: 0, 3: 10, 1: 4}, {0: 11, 1: 5}, False),
        ({0: 10, 1: 5}, {0: 11, 1: 5}, True),  # a segment ends at its seal
    ],
)
def test_a_reader_is_at_the_end_once_its_group_has_all_before_it(  # R10
    stream: Stream, cut: dict[int, int], ends: dict[int, int], wanted: bool
) -> None:
    assert is_behind(stream, cut, ends) is wanted


def test_a_place_is_a_word_a_cut_or_the_name_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R10
    for word in ("beginning", "start", "earliest"):
        assert parse_place(word, "--to").start == "earliest"
    for word in ("end", "latest"):
        assert parse_place(word, "--to").start == "latest"
    file = tmp_path / "cut.json"
    file.write_text(CUT, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CUT.encode())))
    for text in (CUT, str(file), "-"):
        place = parse_place(text, "--to")
        assert place.is_cut
        assert (place.start, place.stream) == ({0: 8, 1: 0}, "orders")
    noon = parse_place("noon", "--to")
    assert (noon.name, noon.start, noon.is_cut) == ("noon", "noon", False)


@pytest.mark.parametrize("text", ["{", "{}", '{"segments": 3}', '{"segments": {"a": 1}}'])
def test_what_is_no_cut_is_refused_with_what_prints_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"--to: expected a stream cut, as `fencelog stream cut`"):
        parse_place(text, "--to")


def test_a_cut_of_another_stream_is_refused(stream: Stream) -> None:
    def described(name: str, topic_id: bytes) -> StreamDescription:
        return StreamDescription(name=name, topic_id=TopicId(topic_id), segments=stream.segments)

    place = parse_place(CUT, "--to")
    place.check(described("orders", TOPIC_ID))
    with pytest.raises(UsageError, match="the cut is of stream orders, not clicks"):
        place.check(described("clicks", TOPIC_ID))
    with pytest.raises(UsageError, match="of an earlier stream orders, which was deleted"):
        place.check(described("orders", b"another-one-----"))
    parse_place('{"segments": {"0": 1}}', "--to").check(described("clicks", TOPIC_ID))


def test_a_reader_has_a_name_that_a_group_accepts() -> None:
    assert check_name("reader", default_name()) == default_name()


def test_a_group_is_shown_with_who_has_which_segment_and_what_waits() -> None:  # R5
    found = ReaderGroupDescription(
        name="audit",
        stream="orders",
        readers=(ReaderDescription(name="one", incarnation=3, segments={2: 5}),),
        unassigned={1: 4},
        future={4: (1, 3)},
        checkpoints={"noon": {0: 7}, "midnight": None},
        is_finished=False,
    )
    shown = description(found, {2: 6, 1: 4}, Unread(events=9, size=700))
    segments = shown["segments"]
    assert segments == [
        {"segment": 1, "state": "unassigned", "reader": None, "position": 4, "waits_for": []},
        {"segment": 2, "state": "read", "reader": "one", "position": 6, "waits_for": []},
        {"segment": 4, "state": "waiting", "reader": None, "position": None, "waits_for": [1, 3]},
    ]
    assert shown["readers"] == [{"reader": "one", "incarnation": 3, "segments": [2]}]
    assert shown["checkpoints"] == [
        {"checkpoint": "noon", "complete": True, "segments": {"0": 7}},
        {"checkpoint": "midnight", "complete": False, "segments": None},
    ]
    assert (shown["group"], shown["stream"]) == ("audit", "orders")
    assert (shown["unread"], shown["unread_bytes"]) == (9, 700)
