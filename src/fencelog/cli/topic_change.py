"""``fencelog topic alter`` and ``fencelog topic delete-records``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fencelog.adapters.system_clock import SystemClock
from fencelog.cli.output import Row, UsageError
from fencelog.cli.start_offsets import At, Beginning, End, Exactly, Start, parse_start
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client


def changes(settings: Mapping[str, str], unset: Sequence[str]) -> dict[str, str | None]:
    """Merge the configs to set and to reset. Raises UsageError if a key is in both."""
    both = sorted(settings.keys() & set(unset))
    if both:
        raise UsageError(f"--unset {both[0]}: -c sets the same config; give one of them")
    return {**settings, **dict.fromkeys(unset)}


def alter(
    client: "Client", name: str, settings: Mapping[str, str | None], partitions: int | None
) -> Row:
    """Change one topic; return what was changed."""
    row: Row = {"topic": name}
    if partitions is not None:
        client.add_partitions(name, partitions)
        row["partitions"] = partitions
    if settings:
        client.configure_topic(name, settings)
        row["configs"] = dict(settings)
    return row


def delete_records(
    client: "Client", name: str, partitions: Sequence[int] | None, before: str
) -> list[Row]:
    """Delete the records before an offset, ``end`` or a time; return each partition's log start.

    In a partition without a record at or after the time, all records are deleted.
    """
    wanted = parse_start(before, now_ms=SystemClock().now_ms())
    numbers = client.partitions([name])[name]
    unknown = sorted(set(partitions or ()) - set(numbers))
    if unknown:
        raise UsageError(f"-p {unknown[0]}: {name} has partitions 0 to {len(numbers) - 1}")
    places = [TopicPartition(name, number) for number in partitions or numbers]
    starts = client.delete_records(_offsets(client, places, wanted))
    return [
        {"topic": name, "partition": place.partition, "log_start_offset": starts[place]}
        for place in places
    ]


def _offsets(
    client: "Client", places: Sequence[TopicPartition], wanted: Start
) -> dict[TopicPartition, int]:
    ends = client.offsets(places, "latest", "replicated")
    match wanted:
        case Exactly(offset):
            return dict.fromkeys(places, offset)
        case End(back):
            return {place: max(ends[place] - back, 0) for place in places}
        case At(timestamp_ms):
            found = client.offsets(places, timestamp_ms, "replicated")
            return {p: found[p] if found[p] >= 0 else ends[p] for p in places}
        case Beginning():
            raise UsageError(
                "-o beginning: there is nothing to delete before it; give end, N or @TIME"
            )
