"""Where a stream's next batch may begin and end: asks the cluster what ``stream_cut`` must know.

Partitions of ordinary topics are read each for itself. Of a stream those segments are read whose
predecessors earlier batches have finished (R8).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencelog.client.model import Isolation
from fencelog.coordination.streams.model import COVERING, Stream
from fencelog.errors import FencelogError
from fencelog.spark.offsets import Offsets, cap
from fencelog.spark.planning import Subscribed, ends, lost
from fencelog.spark.stream_cut import (
    Begin,
    Cut,
    NoCutError,
    available,
    begin,
    cut_of,
    finished,
    first_cut,
    held_back,
    unread_ends,
)
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client

Cuts = Mapping[str, Cut]
"""By topic, of those topics that are streams."""


@dataclass(frozen=True, kw_only=True)
class NextBatch:
    """What the next batch may read.

    Attributes:
        begins: where each partition is begun that may be read.
        latest: how far each of them may be read, by isolation level.
        later: where segments begin that follow; to be stored with the ends.
        unread: the ends of all that is or will be read, for the lag.
        lost: a sentence for each partition whose records are gone.
    """

    begins: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]
    later: dict[TopicPartition, int]
    unread: dict[TopicPartition, int]
    lost: list[str]


def next_batch(
    client: "Client",
    found: Subscribed,
    begun: Offsets,
    isolation: Isolation,
    *,
    made_anew: Collection[str] = (),
    ceiling: Offsets | None = None,
) -> NextBatch:
    """Plan the batch after these positions.

    ``begun`` without topics that were deleted and created again, which are ``made_anew``.
    ``ceiling``: what the run reads at most, for the trigger AvailableNow.
    """
    before = _cuts(client, found, begun, isolation)
    ordinary = found.ordinary
    earliest, begins = _begin(client, found, before, isolation)
    cuts = {topic: each.cut for topic, each in begins.items()}
    asked = [*ordinary, *_unfinished(found.streams, cuts)]
    newest = ends(client, asked, "latest", isolation, found.streams)
    of_ordinary = {each: newest[each] for each in ordinary}
    gone = lost(
        {each: offset for each, offset in begun.items() if each.topic not in found.streams},
        earliest,
        of_ordinary,
        made_anew,
    )
    plan = NextBatch(
        # A new partition, also of a topic that was created again, is read from its first record.
        begins={each: begun.get(each, earliest[each]) for each in ordinary},
        latest=dict(of_ordinary) if ceiling is None else cap(of_ordinary, ceiling),
        later={},
        unread=dict(of_ordinary),
        lost=gone,
    )
    for topic, each in begins.items():
        _add(plan, topic, found.streams[topic], each, newest, ceiling)
    return plan


def ends_now(
    client: "Client", found: Subscribed, isolation: Isolation
) -> dict[TopicPartition, int]:
    """Return the present end of everything: where a run ends that reads what is there.

    A sealed segment ends at its seal, however many of its records can be read yet.
    """
    sealed = {
        TopicPartition(topic, each.index): int(each.end)
        for topic, stream in found.streams.items()
        for each in stream.segments
        if each.end >= 0
    }
    asked = [*found.ordinary, *_covering(found.streams)]
    return (
        ends(client, [each for each in asked if each not in sealed], "latest", isolation) | sealed
    )


def first_cuts(found: Subscribed, positions: Offsets) -> dict[TopicPartition, int]:
    """Return the positions of a query that begins: of each stream those of a cut."""
    first = {each: positions[each] for each in found.ordinary}
    for topic, stream in found.streams.items():
        cut = first_cut(stream, _of_topic(topic, positions))
        first |= _places(topic, cut.positions)
    return first


def unreadable(found: Subscribed, stops: Offsets) -> list[TopicPartition]:
    """Return segments of which a read to the present ends reads nothing.

    An open transaction holds back the last records of one before them, and so what follows.
    """
    return [
        TopicPartition(topic, index)
        for topic, stream in found.streams.items()
        for index in sorted(held_back(stream, _of_topic(topic, stops)))
    ]


def _cuts(
    client: "Client", found: Subscribed, begun: Offsets, isolation: Isolation
) -> dict[str, Cut]:
    """Return the cuts that were stored; of streams that are new their first records."""
    cuts: dict[str, Cut] = {}
    for topic, stream in found.streams.items():
        stored = _of_topic(topic, begun)
        if not stored:
            segments = [each for each in found.partitions if each.topic == topic]
            first = ends(client, segments, "earliest", isolation, found.streams)
            cuts[topic] = first_cut(stream, _of_topic(topic, first))
            continue
        try:
            cuts[topic] = cut_of(stream, stored)
        except NoCutError as error:
            raise FencelogError(
                f"stream '{topic}': the checkpoint has offsets that do not fit it: {error}."
                " Was it edited, or taken from another query? Begin with a new checkpoint"
            ) from error
    return cuts


def _begin(
    client: "Client", found: Subscribed, before: Cuts, isolation: Isolation
) -> tuple[dict[TopicPartition, int], dict[str, Begin]]:
    """Return the log starts that were needed, and where each stream's part of the batch begins."""
    earliest: dict[TopicPartition, int] = {}
    asked = found.ordinary
    while True:
        begins = {
            topic: begin(found.streams[topic], cut, _of_topic(topic, earliest))
            for topic, cut in before.items()
        }
        asked += [
            TopicPartition(topic, index) for topic in begins for index in begins[topic].unknown
        ]
        if not asked:
            return earliest, begins
        earliest |= ends(client, sorted(asked), "earliest", isolation, found.streams)
        asked = []


def _add(
    plan: NextBatch,
    topic: str,
    stream: Stream,
    found: Begin,
    newest: Offsets,
    ceiling: Offsets | None,
) -> None:
    latest = _of_topic(topic, newest)
    limit = None if ceiling is None else _of_topic(topic, ceiling)
    plan.begins.update(_places(topic, found.cut.reading))
    plan.latest.update(_places(topic, available(stream, found.cut, latest, limit)))
    plan.later.update(_places(topic, found.cut.later))
    plan.unread.update(_places(topic, unread_ends(stream, found.cut, latest)))
    plan.lost.extend(
        f"{topic}-{each.segment}: offsets {each.start} to {each.end - 1} were deleted"
        for each in found.gone
    )
    plan.lost.extend(
        f"{topic}-{index}: the log ends at offset {latest[index]}, below the start offset {offset}"
        for index, offset in found.cut.reading.items()
        if index in latest and latest[index] < offset and not finished(stream, index, offset)
    )


def _unfinished(streams: Mapping[str, Stream], cuts: Cuts) -> list[TopicPartition]:
    """Return the segments whose ends are not known: those that are read, and for the lag the open.

    What is sealed in between is known to end at its seal.
    """
    reading = {
        TopicPartition(topic, index)
        for topic, cut in cuts.items()
        for index, position in cut.reading.items()
        if not finished(streams[topic], index, position)
    }
    return sorted(reading.union(_covering(streams)))


def _covering(streams: Mapping[str, Stream]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, each.index)
        for topic, stream in streams.items()
        for each in stream.segments
        if each.state in COVERING
    ]


def _of_topic(topic: str, offsets: Offsets) -> dict[int, int]:
    return {each.partition: offset for each, offset in offsets.items() if each.topic == topic}


def _places(topic: str, offsets: Mapping[int, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, index): offset for index, offset in offsets.items()}
