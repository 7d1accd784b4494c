"""Wraps a few methods of live objects, so that a monitor sees what passes through them.

Only the objects of one run are changed, never a class, and nothing is awaited that was not before:
the order of events stays what it is.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from fencelog.broker.coordinators.producer_ids import ProducerIds
from fencelog.broker.coordinators.runtime import (
    NO_TRANSACTION,
    CoordinatorRuntime,
    InTransaction,
    Loaded,
)
from fencelog.broker.partitions.partition import Partition
from fencelog.coordination.group.offsets import Kept
from fencelog.coordination.group.records import CommittedOffset
from fencelog.coordination.group.shard import Commit, GroupShard
from fencelog.coordination.shard import Decision, LogRecord, partition_for
from fencelog.errors import ErrorCode
from fencelog.log.values import MarkerToWrite, Rejected
from fencelog.types import Instant, Offset, ProducerId, TopicPartition

Runtime: TypeAlias = CoordinatorRuntime[Any]
Make: TypeAlias = Callable[[Any], object]
"""Takes a method, returns what is called in its place."""
Appended: TypeAlias = Callable[[Loaded[Any], int, tuple[LogRecord, ...]], None]
Marked: TypeAlias = Callable[[Loaded[Any], MarkerToWrite], None]
Answered: TypeAlias = Callable[[Partition, int], None]
Replied: TypeAlias = Callable[[Partition, object], None]


def wrap(owner: object, name: str, make: Make) -> None:
    """Put what ``make`` makes of a method in its place, on this object only."""
    setattr(owner, name, make(getattr(owner, name)))


def touching(touched: Callable[[Partition], None], partition: Partition) -> Make:
    """For ``Purgatory.advance``: tells which partition has moved."""

    def make(advance: Callable[[Offset], None]) -> object:
        def advance_and_tell(high_watermark: Offset) -> None:
            touched(partition)
            advance(high_watermark)

        return advance_and_tell

    return make


def tap_producer_ids(ids: ProducerIds, tell: Callable[[ProducerId], None]) -> None:
    """Tell each producer id that is handed out."""

    def make(take: Callable[[], Awaitable[ProducerId]]) -> object:
        async def take_and_tell() -> ProducerId:
            taken = await take()
            tell(taken)
            return taken

        return take_and_tell

    wrap(ids, "take", make)


def tap_commits(shard: GroupShard, tell: Callable[[str, TopicPartition, int], None]) -> None:
    """Tell each offset that a request commits: group, partition, offset."""

    def make(commit: Callable[..., Decision[dict[TopicPartition, ErrorCode]]]) -> object:
        def commit_and_tell(
            asked: Commit, **how: object
        ) -> Decision[dict[TopicPartition, ErrorCode]]:
            decision = commit(asked, **how)
            for partition, error in decision.response.items():
                if error is ErrorCode.NONE:
                    tell(asked.group, partition, asked.offsets[partition].offset)
            return decision

        return commit_and_tell

    wrap(shard, "commit", make)


def tap_offsets(
    shard: GroupShard, tell: Callable[[str, Mapping[TopicPartition, Kept]], None]
) -> None:
    """Tell of each question for a group's offsets what the shard has, with each record's place."""

    def make(fetch: Callable[..., dict[TopicPartition, CommittedOffset]]) -> object:
        def fetch_and_tell(
            group: str, partitions: Collection[TopicPartition] | None = None
        ) -> dict[TopicPartition, CommittedOffset]:
            found = fetch(group, partitions)
            known = shard._offsets.committed(group)
            tell(group, {each: Kept(found[each], known[each].at) for each in found})
            return found

        return fetch_and_tell

    wrap(shard, "fetch", make)


def tap_runtime(
    runtime: Runtime,
    *,
    loaded: Callable[[Loaded[Any]], None],
    appended: Appended,
    marked: Marked,
    answered: Answered,
    replied: Replied,
) -> None:
    """Tell of each load, of each append by its base offset, of each marker that a shard follows,
    and of each answer.

    ``answered`` is given the end of the log as the rule saw and left it; ``replied`` is given what
    a decision says to others than who asked.
    """
    wrap(runtime, "_load", _loading(loaded))
    wrap(runtime, "_marked", _marking(marked))
    wrap(runtime, "_append", _appending(appended))
    wrap(runtime, "decide_on", _deciding(answered))
    wrap(runtime, "decide_in", _deciding_in(answered))
    wrap(runtime, "carry_out", _carrying_out(answered, replied))
    wrap(runtime, "read", _reading(runtime, answered))


def _loading(loaded: Callable[[Loaded[Any]], None]) -> Make:
    def make(load: Callable[[int], Awaitable[Loaded[Any]]]) -> object:
        async def load_and_tell(index: int) -> Loaded[Any]:
            found = await load(index)
            loaded(found)
            return found

        return load_and_tell

    return make


def _marking(marked: Marked) -> Make:
    def make(mark: Callable[..., None]) -> object:
        def mark_and_tell(owner: Loaded[Any], markers: Sequence[MarkerToWrite]) -> None:
            mark(owner, markers)
            for marker in markers:
                marked(owner, marker)

        return mark_and_tell

    return make


def _appending(appended: Appended) -> Make:
    def make(append: Callable[..., Rejected | None]) -> object:
        def append_and_tell(
            owner: Loaded[Any],
            records: tuple[LogRecord, ...],
            now: Instant,
            transaction: InTransaction = NO_TRANSACTION,
        ) -> Rejected | None:
            base_offset = owner.partition.log.log_end_offset
            rejected = append(owner, records, now, transaction)
            if rejected is None:
                appended(owner, base_offset, records)
            return rejected

        return append_and_tell

    return make


def _deciding(answered: Answered) -> Make:
    def make(decide_on: Callable[..., Awaitable[object]]) -> object:
        async def decide_and_tell(
            owner: Loaded[Any], rule: Callable[[Any, Instant], Decision[object]]
        ) -> object:
            ends: list[int] = []

            def noted(shard: object, now: Instant) -> Decision[object]:
                decision = rule(shard, now)
                ends.append(owner.partition.log.log_end_offset + len(decision.records))
                return decision

            response = await decide_on(owner, noted)
            answered(owner.partition, ends[0])
            return response

        return decide_and_tell

    return make


def _deciding_in(answered: Answered) -> Make:
    def make(decide_in: Callable[..., Awaitable[object]]) -> object:
        async def decide_and_tell(
            owner: Loaded[Any],
            transaction: InTransaction,
            rule: Callable[[Any, Instant], Decision[object]],
        ) -> object:
            ends: list[int] = []

            def noted(shard: object, now: Instant) -> Decision[object]:
                decision = rule(shard, now)
                ends.append(owner.partition.log.log_end_offset + len(decision.records))
                return decision

            response = await decide_in(owner, transaction, noted)
            if not isinstance(response, Rejected):
                answered(owner.partition, ends[0])
            return response

        return decide_and_tell

    return make


def _carrying_out(answered: Answered, replied: Replied) -> Make:
    def make(carry_out: Callable[..., None]) -> object:
        def carry_out_and_tell(
            owner: Loaded[Any],
            rule: Callable[[Any, Instant], Decision[object]],
            then: Callable[[object], None],
        ) -> None:
            ends: list[int] = []

            def noted(shard: object, now: Instant) -> Decision[object]:
                decision = rule(shard, now)
                ends.append(owner.partition.log.log_end_offset + len(decision.records))
                return decision

            def then_tell(response: object) -> None:
                answered(owner.partition, ends[0])
                replied(owner.partition, response)
                then(response)

            carry_out(owner, noted, then_tell)

        return carry_out_and_tell

    return make


def _reading(runtime: Runtime, answered: Answered) -> Make:
    def make(read: Callable[..., Awaitable[object]]) -> object:
        async def read_and_tell(key: str, question: Callable[[Any], object]) -> object:
            seen: list[tuple[Partition, int]] = []

            def noted(shard: object) -> object:
                index = partition_for(key, runtime.partition_count)
                partition = runtime._loading[index].result().partition
                seen.append((partition, partition.log.log_end_offset))
                return question(shard)

            answer = await read(key, noted)
            answered(*seen[0])
            return answer

        return read_and_tell

    return make
