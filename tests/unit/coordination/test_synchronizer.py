"""A shared state: its records, their replay, and updates whose answer is lost (R4)."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelog.coordination.reader_group.replay import apply
from fencelog.coordination.reader_group.state import EMPTY, dump, load
from fencelog.coordination.synchronizer import replica as replicas
from fencelog.coordination.synchronizer.records import (
    MARK,
    UPDATE,
    ForeignRecordError,
    Mark,
    SynchronizerError,
    Update,
    UpdateId,
    Written,
    decode,
    encode_mark,
    encode_updates,
)
from fencelog.coordination.synchronizer.replica import Answer, Replica, Schema, after
from fencelog.errors import ErrorCode
from fencelog.types import Offset, TimestampMs, TopicPartition
from fencelog.wire.hot.append_tags import Revision
from fencelog.wire.records import Record, read_records

PLACE = TopicPartition("state", 0)
ME = UpdateId("me", 7, 1)
RETRIABLE = frozenset({ErrorCode.NETWORK_EXCEPTION})


def add(total: int, value: object, offset: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} at {offset} is no number")
    return total + value


def number(value: object) -> int:
    assert isinstance(value, int)
    return value


SUM = Schema(initial=0, apply=add, dump=lambda total: total, load=number)


def read(batch: bytes | bytearray, base: int = 0) -> list[Record]:
    return [each._replace(offset=Offset(base + each.offset)) for each in read_records(batch)]


def plain(headers: tuple[tuple[str, bytes | None], ...], value: bytes | None) -> Record:
    return Record(Offset(3), TimestampMs(0), None, value, headers)


def test_updates_and_marks_are_read_as_they_were_written() -> None:
    # R4
    (first, second) = read(encode_updates(ME, [{"a": 1}, [2]], 5))
    assert decode(PLACE, first) == Update(ME, {"a": 1})
    assert decode(PLACE, second) == Update(ME._replace(number=2), [2])
    written = (Written(ME, 4),)
    (mark,) = read(encode_mark(ME, [1, 2], written, 5))
    assert decode(PLACE, mark) == Mark(ME, [1, 2], written)


def test_large_updates_are_compressed() -> None:
    assert len(encode_updates(ME, ["x" * 10_000], 5)) < 1_000


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ((), b"1"),
        ((("traceparent", b"00"),), b"1"),
        (((UPDATE, None),), b"1"),
        (((UPDATE, b"[1]"),), b"1"),
        (((UPDATE, b'[1,"me",7,1]'),), None),
        (((UPDATE, b'[1,"me",7,1]'),), b"\xff"),
        (((UPDATE, b'[1,"me",7,1]'),), b"[" * 100_000),
        (((UPDATE, b'[2,"me",7,1]'),), b"1"),
        (((UPDATE, b'[1,"me",Infinity,1]'),), b"1"),
        (((MARK, b'[1,"me",7,1]'),), b"1"),
        ((("other", b'[1,"me",7,1]'),), b"1"),
    ],
)
def test_a_foreign_record_is_an_error_that_names_topic_and_offset(
    headers: tuple[tuple[str, bytes | None], ...], value: bytes | None
) -> None:
    with pytest.raises(ForeignRecordError, match="offset 3 of state-0 is no update"):
        decode(PLACE, plain(headers, value))


def test_what_is_no_json_or_too_much_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_updates(ME, [b"bytes"], 0)
    with pytest.raises(ValueError, match="JSON"):
        encode_updates(ME, [float("nan")], 0)
    with pytest.raises(ValueError, match="0 updates in one step"):
        encode_updates(ME, [], 0)
    with pytest.raises(ValueError, match="1001 updates in one step"):
        encode_updates(ME, [1] * 1001, 0)
    with pytest.raises(ValueError, match="255 bytes"):
        encode_updates(ME._replace(writer="x" * 256), [1], 0)


def test_what_an_answer_means() -> None:
    # R4
    assert after(ErrorCode.NONE, RETRIABLE) is Answer.STORED
    assert after(ErrorCode.STALE_REVISION, RETRIABLE) is Answer.READ_ON
    assert after(ErrorCode.NETWORK_EXCEPTION, RETRIABLE) is Answer.READ_ON
    assert after(ErrorCode.MESSAGE_TOO_LARGE, RETRIABLE) is Answer.FAILED


def test_a_repeated_update_is_applied_once() -> None:
    # R4
    copy = Replica(PLACE, SUM)
    batch = encode_updates(ME, [5], 0)
    copy.replay(read(batch), 1, 0)
    copy.replay(read(batch, 1), 2, 0)
    assert copy.state == 5
    copy.replay(read(encode_updates(ME._replace(incarnation=8), [5], 0), 2), 3, 0)
    assert copy.state == 10


def test_records_below_the_revision_are_not_applied_again() -> None:
    copy = Replica(PLACE, SUM)
    both = read(encode_updates(ME, [5, 6], 0))
    copy.replay(both[:1], 1, 0)
    copy.replay(both, 2, 0)
    assert copy.state == 11
    assert copy.revision == Revision(0, 2)


def test_an_update_is_found_at_its_offset() -> None:
    # R4
    copy = Replica(PLACE, SUM)
    assert copy.offset_of(ME) is None
    copy.replay(read(encode_updates(ME, [1, 2, 3], 0), 4), 7, 0)
    assert copy.offset_of(ME) == 4
    assert copy.offset_of(ME._replace(number=3)) == 6
    assert copy.offset_of(ME._replace(number=4)) is None
    assert copy.last_of("me", 7) == 3
    assert copy.last_of("me", 8) == 0
    assert copy.last_of("you", 7) == 0


def test_what_was_written_is_the_same_as_what_is_read() -> None:
    # R4
    writer, reader = Replica(PLACE, SUM), Replica(PLACE, SUM)
    writer.wrote(ME, 2, writer.prepare([1, 2]), 3)
    reader.replay(read(encode_updates(ME, [1, 2], 0)), 2, 3)
    assert (writer.state, writer.revision) == (reader.state, reader.revision) == (3, (3, 2))
    assert writer.writers == reader.writers
    assert writer.updates == reader.updates == 2


def test_a_late_joiner_begins_at_the_mark_with_what_is_in_it() -> None:
    # R4
    writer = Replica(PLACE, SUM)
    writer.wrote(ME, 2, writer.prepare([1, 2]), 3)
    mark = encode_mark(ME, writer.state, writer.writers, 0)
    writer.wrote_mark(3)
    assert (writer.marked_at, writer.updates) == (2, 0)
    late = Replica(PLACE, SUM)
    late.begin(2)
    late.replay(read(mark, 2), 3, 3)
    assert (late.state, late.revision, late.writers) == (3, writer.revision, writer.writers)
    # A lost answer is settled also by who reads on at the mark.
    late.replay(read(encode_updates(ME, [1, 2], 0), 3), 5, 3)
    assert late.state == 3
    late.check_complete()


def test_a_log_without_its_beginning_and_without_a_mark_is_an_error() -> None:
    copy = Replica(PLACE, SUM)
    copy.check_complete()
    copy.begin(4)
    with pytest.raises(SynchronizerError, match="begins at offset 4, and not with a mark"):
        copy.check_complete()
    with pytest.raises(SynchronizerError, match="the state is lost"):
        copy.replay(read(encode_updates(ME, [1], 0), 4), 5, 0)


def test_an_update_of_another_state_is_an_error_that_names_the_offset() -> None:
    copy = Replica(PLACE, SUM)
    with pytest.raises(SynchronizerError, match="update at offset 6 of state-0 does not belong"):
        copy.replay(read(encode_updates(ME, ["x"], 0), 6), 7, 0)
    with pytest.raises(TypeError):
        copy.prepare(["x"])


def test_an_update_that_no_number_can_hold_does_not_belong_to_a_reader_group() -> None:
    groups = Schema(initial=EMPTY, apply=apply, dump=dump, load=load)
    created = b'["created",["s","00","earliest",null],Infinity,[[0,0]]]'
    with pytest.raises(SynchronizerError, match="update at offset 3 of state-0 does not belong"):
        Replica(PLACE, groups).replay([plain(((UPDATE, b'[1,"me",7,1]'),), created)], 4, 0)


def test_the_writers_that_wrote_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "WRITERS_MAX", 2)
    copy = Replica(PLACE, SUM)
    for place, name in enumerate("abac"):
        update = encode_updates(UpdateId(name, 0, place + 1), [1], 0)
        copy.replay(read(update, place), place + 1, 0)
    assert [each.identity.writer for each in copy.writers] == ["a", "c"]


class Writer:
    """A writer that reads and writes a list of batches as the broker would let it."""

    def __init__(self, name: str, log: "list[bytearray]") -> None:
        self.copy = Replica(PLACE, SUM)
        self.identity = UpdateId(name, 0, 1)
        self.log = log
        self.flying: tuple[bytearray, Revision] | None = None

    def read(self) -> None:
        for offset in range(self.copy.revision.offset, len(self.log)):
            self.copy.replay(read(self.log[offset], offset), offset + 1, 0)

    def send(self, is_lost: bool) -> bool:
        """Send one update, the same until it is known to be stored; return whether that is so."""
        if self.copy.offset_of(self.identity) is not None:
            self.identity = self.identity._replace(number=self.identity.number + 1)
            return True
        state = self.copy.prepare([1])
        self.flying = encode_updates(self.identity, [1], 0), self.copy.revision
        if is_lost or not self.arrive():
            return False
        self.copy.wrote(self.identity, 1, state, 0)
        return False

    def arrive(self) -> bool:
        """Let the request that is under way arrive; return whether it was stored."""
        assert self.flying is not None
        batch, condition = self.flying
        self.flying = None
        if condition != (0 if self.log else -1, len(self.log)):
            return False
        self.log.append(batch)
        return True


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["read", "send", "lose", "arrive"]))))
def test_each_update_counts_once_whatever_answers_are_lost(
    steps: Sequence[tuple[int, str]],
) -> None:
    # R4
    log: list[bytearray] = []
    writers = [Writer(name, log) for name in "abc"]
    done = 0
    todo: list[tuple[int, Any]] = [*steps, *((n, "settle") for n in range(3))]
    for which, step in todo:
        writer = writers[which]
        if step == "read":
            writer.read()
        elif step == "arrive":
            if writer.flying is not None:
                writer.arrive()
        elif step == "settle":
            writer.read()
            while not writer.send(is_lost=False):
                writer.read()
            done += 1
        else:
            done += writer.send(is_lost=step == "lose")
    for writer in writers:
        writer.read()
        assert writer.copy.state == done == len(log)
