"""The proof of every byte: all that a partition's log means, and when two logs mean the same."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fencelog.log.partition_log import PartitionLog
from fencelog.log.segment import Segment
from fencelog.log.values import AbortedTransaction, EpochStart, OpenTransaction
from fencelog.types import ProducerId
from fencelog.wire.batch import BatchHeader


class SegmentMeaning(NamedTuple):
    """A segment and its indexes."""

    base_offset: int
    size: int
    next_offset: int
    index: bytes
    time_index: tuple[tuple[int, int], ...]
    max_timestamp: int
    first_timestamp: int


class Meaning(NamedTuple):
    """Everything that an answer to a client or the next append is made from."""

    log_start: int
    log_end: int
    last_stable_offset: int
    producers: tuple[tuple[ProducerId, tuple[Any, ...]], ...]
    open_transactions: tuple[OpenTransaction, ...]
    aborted: tuple[AbortedTransaction, ...]
    epochs: tuple[EpochStart, ...]
    segments: tuple[SegmentMeaning, ...]
    highest_producer_id: int


def meaning_of(log: PartitionLog) -> Meaning:
    """What a log means now, all of it durable."""
    state = log._state
    open_offsets = [first for _, first in state.transactions.open()]
    return Meaning(
        log_start=state.log_start,
        log_end=state.log_end,
        last_stable_offset=max(min([*open_offsets, state.log_end]), state.log_start),
        producers=tuple(sorted((pid, state._key()) for pid, state in state.producers.items())),
        open_transactions=tuple(log.open_transactions()),
        aborted=tuple(state.transactions.aborted),
        epochs=state.epochs.entries,
        segments=tuple(_segment(each) for each in state.segments if each.size),
        highest_producer_id=state.highest_producer_id,
    )


def _segment(segment: Segment) -> SegmentMeaning:
    times = segment.time_index
    entries = list(zip(times._timestamps, times._offsets, strict=True))
    if segment.max_timestamp > (entries[-1][0] if entries else -1):
        # Made when the segment is full or closed: no answer depends on when.
        entries.append((segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset))
    return SegmentMeaning(
        segment.base_offset,
        segment.size,
        segment.next_offset,
        segment.index.encode(),
        tuple(entries),
        segment.max_timestamp,
        segment.first_timestamp,
    )


def disagreement(live: Meaning, again: Meaning, stored: Sequence[BatchHeader]) -> str | None:
    """Why a log that was made again is not the one that a broker had; None: nobody can tell.

    ``stored`` are its batches. What went with deleted or compacted batches may be missing: older
    batches of a window, aborted transactions of which nothing is left, where their epochs began.
    """
    for name in _SAME:
        if getattr(live, name) != getattr(again, name):
            return f"{name}: {getattr(live, name)}, again {getattr(again, name)}"
    if [pid for pid, _ in live.producers] != [pid for pid, _ in again.producers]:
        return "known producers"
    for (pid, ours), (_, theirs) in zip(live.producers, again.producers, strict=True):
        if not _is_same_producer(ours, theirs):
            return f"producer {pid}: {ours}, again {theirs}"
    for header in stored:
        if header.base_offset >= live.log_start and _facts(live, header) != _facts(again, header):
            return f"the batch at {header.base_offset}"
    return None


_SAME = (
    "log_start",
    "log_end",
    "last_stable_offset",
    "open_transactions",
    "segments",
    "highest_producer_id",
)


def _is_same_producer(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    epoch, sequence, window, *rest = ours
    again = theirs[2]
    is_newest_part = again == window[len(window) - len(again) :] and bool(again) == bool(window)
    return is_newest_part and theirs == (epoch, sequence, again, *rest)


def _facts(meaning: Meaning, header: BatchHeader) -> tuple[bool, int]:
    """Whether a batch is void, and its leader epoch, as the state has them."""
    offset = header.base_offset
    void = any(
        entry.producer_id == header.producer_id and entry.first_offset <= offset < entry.last_offset
        for entry in meaning.aborted
    )
    epoch = max(entry.epoch for entry in meaning.epochs if entry.offset <= offset)
    assert epoch == header.leader_epoch, (epoch, header)
    return void and header.is_transactional, epoch
