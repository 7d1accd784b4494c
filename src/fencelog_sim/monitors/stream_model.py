"""What the metadata say of every stream, change by change (R1, R2).

After each change the covering ranges are exact, a segment has the range and the predecessors that
it was made with, its state has gone on by one step at most, and it is open only if the seal of each
predecessor is committed where the metadata say.
"""

import json
from collections.abc import Callable, Iterator, Sequence

from fencelog.broker.metadata.catalog import TOPIC_PREFIX
from fencelog.coordination.streams.model import (
    ENDED,
    NO_END,
    SegmentState,
    Stream,
    StreamSegment,
)
from fencelog.errors import CorruptionError
from fencelog.ports import MetadataChange
from fencelog.types import TopicPartition

ORDER = tuple(SegmentState)
"""A state is followed by the next one, or by none."""
SealProblem = Callable[[TopicPartition, int], str | None]
"""Why a segment's log has no committed seal at an offset; None if it has."""
RemovalProblem = Callable[[TopicPartition, StreamSegment], str | None]
"""Why the files of a segment may not be removed as the metadata say; None if they may."""


class StreamModel:
    """The streams that there are, as the metadata store has them."""

    def __init__(self, seal_problem: SealProblem, removal_problem: RemovalProblem) -> None:
        """No stream yet."""
        self._seal_problem = seal_problem
        self._removal_problem = removal_problem
        self._streams: dict[str, tuple[str, Stream]] = {}
        """Topic id and segments by name."""
        self.resizes = self.removals = 0
        """Successors that were opened, and segments that have no files any more."""

    def take(self, changes: Sequence[MetadataChange]) -> Iterator[str]:
        """Apply what a commit has changed; yield what is wrong with it."""
        for change in changes:
            if change.key.startswith(TOPIC_PREFIX):
                name = change.key.removeprefix(TOPIC_PREFIX)
                yield from (f"{name}: {each}" for each in self._topic(name, change.value))

    def _topic(self, name: str, value: bytes | None) -> Iterator[str]:
        fields = {} if value is None else json.loads(value)
        known_id, known = self._streams.pop(name, ("", None))
        if "stream" not in fields:
            if known is not None and fields.get("id") == known_id:
                yield "it is no stream any more (R1)"
            return
        try:
            stream = Stream.of_stored(name, fields["stream"])
        except CorruptionError as error:
            yield f"{error} (R1)"
            return
        self._streams[name] = fields["id"], stream
        if fields["partitions"] != len(stream.segments):
            yield f"{fields['partitions']} partitions and {len(stream.segments)} segments (R1)"
        before = known.segments if known is not None and fields["id"] == known_id else ()
        yield from self._changed(name, before, stream)

    def _changed(self, name: str, before: Sequence[StreamSegment], stream: Stream) -> Iterator[str]:
        if len(stream.segments) < len(before):
            yield f"{len(before)} segments have become {len(stream.segments)} (R1)"
        for segment in stream.segments:
            known = before[segment.index] if segment.index < len(before) else None
            if known is not None:
                yield from _step(known, segment)
                yield from self._removed(name, known, segment)
            if known is None or known.state is segment.state:
                continue
            if segment.state is SegmentState.OPEN:
                self.resizes += 1
                yield from self._opened(name, stream, segment)
            elif segment.state is SegmentState.SEALED:
                yield from self._sealed(name, segment.index, segment, "is sealed")

    def _opened(self, name: str, stream: Stream, segment: StreamSegment) -> Iterator[str]:
        for index in segment.predecessors:
            predecessor = stream.segments[index]
            what = f"is open, whose predecessor {index} {predecessor.state.value}"
            if predecessor.state not in ENDED:
                yield f"segment {segment.index} {what} (R2)"
            yield from self._sealed(name, segment.index, predecessor, what)

    def _removed(self, name: str, known: StreamSegment, segment: StreamSegment) -> Iterator[str]:
        if known.removed == segment.removed:
            return
        self.removals += 1
        problem = self._removal_problem(TopicPartition(name, segment.index), segment)
        if known.removed is not None:
            problem = f"its log has ended at {known.removed}"
        if problem is not None:
            yield f"segment {segment.index} is without files from {segment.removed}: {problem} (R1)"

    def _sealed(self, name: str, index: int, segment: StreamSegment, what: str) -> Iterator[str]:
        problem = self._seal_problem(TopicPartition(name, segment.index), segment.end)
        if problem is not None:
            yield f"segment {index} {what} at {segment.end}: {problem} (R2)"


def _step(known: StreamSegment, segment: StreamSegment) -> Iterator[str]:
    """Yield what of a segment may not have become so."""
    made, now = ((each.low, each.high, each.predecessors) for each in (known, segment))
    if made != now:
        yield f"segment {segment.index} was made with {made} and has {now} (R1)"
    if ORDER.index(segment.state) - ORDER.index(known.state) not in (0, 1):
        yield f"segment {segment.index}: {segment.state.value} after {known.state.value} (R2)"
    if known.end not in (NO_END, segment.end):
        yield f"segment {segment.index} ends at {segment.end} after {known.end} (R2)"
