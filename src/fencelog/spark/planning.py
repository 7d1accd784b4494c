"""Resolves a read's options on the cluster: partitions, offsets, and lost records."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fencelog.client.model import DataLossError, Isolation, OffsetSpec
from fencelog.coordination.streams.model import ENDED, SegmentState, Stream
from fencelog.spark.driver_commit.ledger import LEDGER
from fencelog.spark.offsets import Offsets, TopicIds, without
from fencelog.spark.options import ConnectionOptions, OptionError, Subscription
from fencelog.spark.positions import Position, Positions
from fencelog.spark.stream_cut import NoCutError, implied_ends, implied_starts
from fencelog.types import NO_TOPIC_ID, TopicId, TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client


def connect(options: ConnectionOptions) -> "Client":
    """This process's client for these options; Python workers are reused between batches."""
    from fencelog.client.blocking import Client

    return Client.shared(
        options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_s=options.request_timeout_ms / 1000,
        api_timeout_s=options.api_timeout_ms / 1000,
    )


Implied = Callable[[Stream, Collection[int]], dict[int, int]]
"""The positions of segments that need no name, from those that have one."""


@dataclass(frozen=True)
class Subscribed:
    """The partitions to read now, sorted, and the ids of their topics.

    ``streams``: those topics that are streams. Their partitions are all segments, also such that
    are deleted.
    """

    partitions: list[TopicPartition]
    topic_ids: TopicIds
    streams: Mapping[str, Stream] = field(default_factory=dict)

    @property
    def ordinary(self) -> list[TopicPartition]:
        """The partitions of topics that are no streams."""
        return [each for each in self.partitions if each.topic not in self.streams]


def subscribed(
    client: "Client",
    subscription: Subscription,
    *,
    known: Mapping[str, tuple[TopicId, int]] | None = None,
    no_streams: Collection[TopicId] = (),
) -> Subscribed:
    """What there is to read now. Named topics must exist.

    ``known``: segments that a description of a stream must have, by topic. ``no_streams``: topics
    of which that is known: nobody needs to be asked.
    """
    if subscription.pattern is not None:
        matching = re.compile(subscription.pattern)
        topics = [
            topic
            for topic in client.topics()
            if not topic.internal
            and topic.name != LEDGER.topic  # internal too, but only to us
            and matching.fullmatch(topic.name)
        ]
    else:
        assigned = (each.topic for each in subscription.partitions)
        topics = client.topics(sorted({*subscription.topics, *assigned}))
    ids = {topic.name: topic.topic_id for topic in topics if topic.topic_id != NO_TOPIC_ID}
    asked = [name for name in sorted(ids) if ids[name] not in no_streams]
    described = client.streams_among(asked, known) if asked else []
    streams = {each.name: each.stream for each in described}
    ids |= {each.name: each.topic_id for each in described}
    counts = {topic.name: [each.partition for each in topic.partitions] for topic in topics}
    counts |= {name: list(range(len(each.segments))) for name, each in streams.items()}
    partitions = sorted(TopicPartition(topic, each) for topic in counts for each in counts[topic])
    for assignment in subscription.partitions:
        if assignment not in partitions:
            count = sum(each.topic == assignment.topic for each in partitions)
            raise OptionError(
                f"option 'assign' names {assignment}, but topic '{assignment.topic}' has"
                f" {count} partitions"
            )
    return Subscribed(sorted(subscription.partitions) or partitions, ids, streams)


def starts(
    client: "Client", positions: Positions, found: Subscribed, isolation: Isolation
) -> dict[TopicPartition, int]:
    """The offset at which each partition is begun; OptionError if one is missing.

    Of a stream a cut is enough: what is before it is read, and what is after it is not.
    """
    return _resolve(client, positions, found, isolation, implied_starts)


def stops(
    client: "Client", positions: Positions, found: Subscribed, isolation: Isolation
) -> dict[TopicPartition, int]:
    """The offset at which each partition is left; OptionError if one is missing.

    Of a stream a cut is enough: what is before it is read to its end.
    """
    return _resolve(client, positions, found, isolation, implied_ends)


def _resolve(
    client: "Client",
    positions: Positions,
    found: Subscribed,
    isolation: Isolation,
    implied: Implied,
) -> dict[TopicPartition, int]:
    if positions.by_time:
        return _resolve_times(client, positions, found, isolation, implied)
    partitions, streams = found.partitions, found.streams
    wanted: dict[TopicPartition, Position] = dict(positions.named)
    if positions.everywhere is not None:
        wanted = dict.fromkeys(partitions, positions.everywhere)
    wanted |= _implied(dict(positions.named), found, implied)
    _refuse_missing(wanted, partitions)
    resolved: dict[TopicPartition, int] = {}
    for end in ("earliest", "latest"):
        asked = [each for each in partitions if wanted[each] == end]
        spec: OffsetSpec = "earliest" if end == "earliest" else "latest"
        resolved |= ends(client, asked, spec, isolation, streams)
    for each in partitions:
        position = wanted[each]
        if isinstance(position, int):
            resolved[each] = position
    return resolved


def ends(
    client: "Client",
    partitions: Sequence[TopicPartition],
    spec: OffsetSpec,
    isolation: Isolation,
    streams: Mapping[str, Stream] | None = None,
) -> dict[TopicPartition, int]:
    """Earliest or latest offsets; the latest is the LSO or the HW, by isolation level.

    Of a deleted segment there is nothing to ask: it is over at its end.
    """
    deleted: dict[TopicPartition, int] = {}
    for each in partitions if streams else ():
        stream = (streams or {}).get(each.topic)
        if stream is not None and stream.segments[each.partition].state is SegmentState.DELETED:
            deleted[each] = stream.segments[each.partition].end
    asked = [each for each in partitions if each not in deleted] if deleted else partitions
    return (client.offsets(asked, spec, isolation) if asked else {}) | deleted


def lost(
    start: Offsets, earliest: Offsets, latest: Offsets, made_anew: Collection[str] = ()
) -> list[str]:
    """One sentence for each partition whose records at ``start`` are gone.

    Only the log start shows a loss: inside a log, offsets without a record (markers, aborted or
    compacted records) are normal. All of a topic in ``made_anew`` is lost (S9).
    """
    sentences = [
        f"topic '{topic}' was deleted and created again since this query read it"
        for topic in sorted(made_anew)
    ]
    for partition, offset in sorted(without(start, made_anew).items()):
        if partition not in latest:
            sentences.append(f"{partition} no longer exists (next offset was {offset})")
        elif offset < earliest[partition]:
            sentences.append(
                f"{partition}: offsets {offset} to {earliest[partition] - 1} were deleted"
            )
        elif offset > latest[partition]:
            sentences.append(
                f"{partition}: the log ends at offset {latest[partition]}, below the start offset"
                f" {offset}"
            )
    return sentences


def data_loss(sentences: Sequence[str]) -> DataLossError:
    """The error for lost records with ``failOnDataLoss``."""
    return DataLossError(
        f"records are lost: {'; '.join(sentences)}."
        " To continue without them set option 'failOnDataLoss' to false"
    )


def _implied(
    named: Collection[TopicPartition], found: Subscribed, implied: Implied
) -> dict[TopicPartition, int]:
    """The positions of segments of streams of which others are named. Raises OptionError."""
    positions: dict[TopicPartition, int] = {}
    for topic, stream in found.streams.items():
        segments = {each.partition for each in named if each.topic == topic}
        if not segments:
            continue
        try:
            rest = implied(stream, segments)
        except NoCutError as error:
            raise OptionError(f"stream '{topic}': offsets or timestamps: {error}") from error
        positions |= {TopicPartition(topic, each): offset for each, offset in rest.items()}
    return positions


def _resolve_times(
    client: "Client",
    positions: Positions,
    found: Subscribed,
    isolation: Isolation,
    implied: Implied,
) -> dict[TopicPartition, int]:
    times: Mapping[TopicPartition, int] = dict(positions.named_at_ms)
    partitions, streams = found.partitions, found.streams
    if positions.everywhere_at_ms is not None:
        times = dict.fromkeys(partitions, positions.everywhere_at_ms)
    resolved = _implied(dict(positions.named_at_ms), found, implied)
    partitions = [each for each in partitions if each not in resolved]
    _refuse_missing(times, partitions)
    for time_ms in sorted(set(times.values())):
        asked = [each for each in partitions if times[each] == time_ms]
        resolved |= ends(client, asked, time_ms, isolation, streams)
    for each in partitions:
        # Nothing that late will come to a segment that is sealed.
        if resolved[each] < 0 and each.topic in streams:
            segment = streams[each.topic].segments[each.partition]
            if segment.state in ENDED:
                resolved[each] = segment.end
    beyond = [each for each in partitions if resolved[each] < 0]
    if beyond and positions.beyond_the_end is None:
        raise OptionError(
            f"{beyond[0]} has no record at or after timestamp {times[beyond[0]]}:"
            " use an earlier one, or set option 'startingOffsetsByTimestampStrategy' to latest"
        )
    return resolved | ends(client, beyond, "latest", isolation)


def _refuse_missing(
    wanted: Mapping[TopicPartition, object], partitions: Sequence[TopicPartition]
) -> None:
    missing = [str(each) for each in partitions if each not in wanted]
    if missing:
        raise OptionError(
            f"offsets or timestamps are missing for {', '.join(missing)}: give one for every"
            " partition (-2 is the earliest, -1 the latest offset)"
        )
