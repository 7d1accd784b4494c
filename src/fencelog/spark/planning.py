"""Resolves a read's options on the cluster: partitions, offsets, and lost records."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencelog.client.model import DataLossError, Isolation, OffsetSpec
from fencelog.spark.driver_commit.ledger import LEDGER
from fencelog.spark.offsets import Offsets, TopicIds, without
from fencelog.spark.options import ConnectionOptions, OptionError, Subscription
from fencelog.spark.positions import Position, Positions
from fencelog.types import NO_TOPIC_ID, TopicPartition

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


@dataclass(frozen=True)
class Subscribed:
    """The partitions to read now, sorted, and the ids of their topics."""

    partitions: list[TopicPartition]
    topic_ids: TopicIds


def subscribed(client: "Client", subscription: Subscription) -> Subscribed:
    """What there is to read now. Named topics must exist."""
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
    partitions = sorted(
        TopicPartition(topic.name, each.partition) for topic in topics for each in topic.partitions
    )
    for assignment in subscription.partitions:
        if assignment not in partitions:
            count = sum(each.topic == assignment.topic for each in partitions)
            raise OptionError(
                f"option 'assign' names {assignment}, but topic '{assignment.topic}' has"
                f" {count} partitions"
            )
    ids = {topic.name: topic.topic_id for topic in topics if topic.topic_id != NO_TOPIC_ID}
    return Subscribed(sorted(subscription.partitions) or partitions, ids)


def resolve(
    client: "Client",
    positions: Positions,
    partitions: Sequence[TopicPartition],
    isolation: Isolation,
) -> dict[TopicPartition, int]:
    """The offset of each partition at these positions; OptionError if one is missing."""
    if positions.by_time:
        return _resolve_times(client, positions, partitions, isolation)
    wanted: Mapping[TopicPartition, Position] = dict(positions.named)
    if positions.everywhere is not None:
        wanted = dict.fromkeys(partitions, positions.everywhere)
    _refuse_missing(wanted, partitions)
    resolved: dict[TopicPartition, int] = {}
    for end in ("earliest", "latest"):
        asked = [each for each in partitions if wanted[each] == end]
        resolved |= ends(client, asked, "earliest" if end == "earliest" else "latest", isolation)
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
) -> dict[TopicPartition, int]:
    """Earliest or latest offsets; the latest is the LSO or the HW, by isolation level."""
    return client.offsets(partitions, spec, isolation) if partitions else {}


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


def _resolve_times(
    client: "Client",
    positions: Positions,
    partitions: Sequence[TopicPartition],
    isolation: Isolation,
) -> dict[TopicPartition, int]:
    times: Mapping[TopicPartition, int] = dict(positions.named_at_ms)
    if positions.everywhere_at_ms is not None:
        times = dict.fromkeys(partitions, positions.everywhere_at_ms)
    _refuse_missing(times, partitions)
    resolved: dict[TopicPartition, int] = {}
    for time_ms in sorted(set(times.values())):
        asked = [each for each in partitions if times[each] == time_ms]
        resolved |= ends(client, asked, time_ms, isolation)
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
