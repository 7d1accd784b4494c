"""One reader's copy of a shared state: the replay of its log, and what an answer means (R4).

An update names the revision up to which its writer has read; if anything was appended since, it is
refused, and its function runs again on the newer state. Which update of each writer was stored
last is part of the state, so that a writer that got no answer finds out by reading on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from fencelog.coordination.synchronizer.records import (
    Mark,
    SynchronizerError,
    UpdateId,
    Written,
    decode,
)
from fencelog.errors import ErrorCode
from fencelog.types import TopicPartition
from fencelog.wire.hot.append_tags import Revision
from fencelog.wire.records import Record

S = TypeVar("S")
WRITERS_MAX = 2_000
"""Writers whose last update is remembered: those who wrote last."""
NOTHING_READ = Revision(-1, 0)


@dataclass(frozen=True, kw_only=True)
class Schema(Generic[S]):
    """What a state is, and how it changes. States are values: ``apply`` returns another one.

    Attributes:
        initial: the state of an empty topic.
        apply: the state after an update, which is at this offset. It raises ValueError for what is
            no update of this state, and depends on nothing but its arguments.
        dump: the state as a JSON value, for a mark.
        load: the state of such a value. Raises ValueError where it is none.
    """

    initial: S
    apply: Callable[[S, object, int], S]
    dump: Callable[[S], object]
    load: Callable[[object], S]


class Answer(Enum):
    """What to do after a conditional append."""

    STORED = "stored"
    READ_ON = "read on"
    """Something was appended since, or nobody knows: the log says which."""
    FAILED = "failed"


def after(code: ErrorCode, retriable: Iterable[ErrorCode]) -> Answer:
    """Return what the answer to a conditional append means; a lost one is NETWORK_EXCEPTION."""
    if code is ErrorCode.NONE:
        return Answer.STORED
    if code is ErrorCode.STALE_REVISION or code in retriable:
        return Answer.READ_ON
    return Answer.FAILED


class Replica(Generic[S]):
    """A state, as far as its log was read. ``replay`` and ``wrote`` change it.

    Attributes:
        schema: what the state is.
        state: the newest state that is known.
        revision: up to where the log was read.
        marked_at: the offset of the last mark; -1 without one.
        updates: how many were read since.
    """

    def __init__(self, partition: TopicPartition, schema: Schema[S]) -> None:
        """Nothing is read yet."""
        self._partition, self.schema = partition, schema
        self._writers: dict[str, Written] = {}
        self.begin(0)

    def begin(self, log_start: int) -> None:
        """Begin at the start of the log: with the initial state, or with the mark that is there."""
        self.state = self.schema.initial
        self._writers.clear()
        self._log_start = log_start
        self._is_complete = log_start == 0
        self.revision = Revision(-1, log_start)
        self.marked_at = -1
        self.updates = 0

    @property
    def writers(self) -> tuple[Written, ...]:
        """The last update of each writer that is remembered."""
        return tuple(self._writers.values())

    def last_of(self, writer: str, incarnation: int) -> int:
        """Return the number of the last update of an incarnation that is in the state, or 0."""
        known = self._writers.get(writer)
        if known is None or known.identity.incarnation != incarnation:
            return 0
        return known.identity.number

    def offset_of(self, identity: UpdateId) -> int | None:
        """Return where this update is, None if it is not in the state.

        The writer has sent nothing newer than the step that it is in.
        """
        known = self._writers.get(identity.writer)
        if known is None or not self._has(identity):
            return None
        return known.offset - (known.identity.number - identity.number)

    def _has(self, identity: UpdateId) -> bool:
        return self.last_of(identity.writer, identity.incarnation) >= identity.number

    def replay(self, records: Iterable[Record], next_offset: int, leader_epoch: int) -> None:
        """Apply what was read up to ``next_offset``; the last batch is of this leader epoch.

        Raises ForeignRecordError, and SynchronizerError where the log does not begin with a mark
        although what was before is deleted.
        """
        for record in records:
            if record.offset >= self.revision.offset:
                self._apply(record)
        self.revision = Revision(leader_epoch, next_offset)

    def prepare(self, values: Sequence[object]) -> S:
        """Return the state after these updates, if they are stored at the revision.

        Raises ValueError for what is no update of this state: stored, it would stop everybody.
        """
        state = self.state
        for place, value in enumerate(values):
            state = self.schema.apply(state, value, self.revision.offset + place)
        return state

    def wrote(self, first: UpdateId, count: int, state: S, leader_epoch: int) -> None:
        """Take over what was prepared: these updates are stored at the revision."""
        self.updates += count
        self.state = state
        last = first._replace(number=first.number + count - 1)
        self._remember(Written(last, self.revision.offset + count - 1))
        self.revision = Revision(leader_epoch, self.revision.offset + count)

    def wrote_mark(self, leader_epoch: int) -> None:
        """Take note of a mark that is stored at the revision."""
        self.marked_at, self.updates = self.revision.offset, 0
        self.revision = Revision(leader_epoch, self.revision.offset + 1)

    def check_complete(self) -> None:
        """Raise SynchronizerError if the log has been read and there is no state in it."""
        if not self._is_complete:
            raise self._incomplete()

    def _apply(self, record: Record) -> None:
        found = decode(self._partition, record)
        try:
            if isinstance(found, Mark):
                self._mark(found, record.offset)
            elif not self._is_complete:
                raise self._incomplete()
            else:
                self._update(found.identity, found.value, record.offset)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise _unreadable(self._partition, record.offset, error) from error

    def _mark(self, mark: Mark, offset: int) -> None:
        self.state = self.schema.load(mark.state)
        self._writers = {each.identity.writer: each for each in mark.writers}
        self._is_complete = True
        self.marked_at, self.updates = offset, 0

    def _update(self, identity: UpdateId, value: object, offset: int) -> None:
        self.updates += 1
        if self._has(identity):
            return  # it is repeated
        self.state = self.schema.apply(self.state, value, offset)
        self._remember(Written(identity, offset))

    def _remember(self, written: Written) -> None:
        writer = written.identity.writer
        self._writers.pop(writer, None)
        self._writers[writer] = written
        if len(self._writers) > WRITERS_MAX:
            del self._writers[next(iter(self._writers))]

    def _incomplete(self) -> SynchronizerError:
        return SynchronizerError(
            f"{self._partition} begins at offset {self._log_start}, and not with a mark: retention "
            "or an operator has deleted updates, and the state is lost. Delete the topic and "
            "create the state anew; set retention.ms=-1 and retention.bytes=-1 on it"
        )


def _unreadable(partition: TopicPartition, offset: int, error: Exception) -> SynchronizerError:
    return SynchronizerError(
        f"the update at offset {offset} of {partition} does not belong to this state: {error}; "
        "a state of another kind is in this topic, or a newer version of the program wrote it"
    )
