"""What a follower does with its leader's answer for one partition (F2, F7).

Before it takes any record it finds the fork: its request has the epoch of its last batch and its
log's end; a leader whose log differs answers with where it ends that epoch. The follower truncates
there and asks again, until the logs agree (KIP-320, KIP-595).
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from fencelog.errors import ErrorCode
from fencelog.log.values import EpochStart
from fencelog.replication.session import Position
from fencelog.types import LeaderEpoch, Offset
from fencelog.wire.batch import BatchHeader

EndOfEpoch: TypeAlias = Callable[[int], EpochStart | None]
"""Returns the newest epoch of a log that is not above the given one, and its end (F7)."""


class LocalEnd(NamedTuple):
    """A follower's log, as far as a decision needs it."""

    leader_epoch: LeaderEpoch
    """The epoch that it follows."""
    log_start: Offset
    log_end: Offset
    high_watermark: Offset
    last_epoch: int
    """The epoch of the last batch; -1 for a log that never had one."""
    end_of_epoch: EndOfEpoch


class PartitionAnswer(NamedTuple):
    """What the leader answered, without the records."""

    error: ErrorCode
    leader_epoch: int
    """The leader's epoch; -1 if it does not lead the partition."""
    fetch_offset: Offset
    """The position that it answers; -1 if the position is to be sent again."""
    high_watermark: Offset
    log_start: Offset
    diverging: EpochStart | None
    """Where the logs differ: the leader's end of an epoch; None if they agree."""


class Append(NamedTuple):
    """Append the records, if there are any, then take the leader's watermarks."""

    high_watermark: Offset
    log_start: Offset


class Truncate(NamedTuple):
    """Cut the log here, then ask again."""

    offset: Offset


class CopySnapshot(NamedTuple):
    """The log ends before the leader's first batch: begin anew with its producer snapshot."""


class Retry(NamedTuple):
    """Send the position again after a while: the leader, or this broker, does not know the other's
    state yet.
    """

    reason: str
    is_usual: bool = False
    """Whether that is so for a moment at each change of the leadership."""


class Again(NamedTuple):
    """Send the position again now."""


class Refuse(NamedTuple):
    """The logs contradict each other: take the replica offline."""

    reason: str


class Nothing(NamedTuple):
    """The answer is for a position that the replica has left."""


Decision: TypeAlias = Append | Truncate | CopySnapshot | Retry | Again | Refuse | Nothing

_USUAL = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "it does not lead the partition",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it does not know the partition",
    ErrorCode.FENCED_LEADER_EPOCH: "it leads a newer epoch",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "it does not know of its leadership yet",
}


def decide(local: LocalEnd, answer: PartitionAnswer) -> Decision:
    """Return what to do with the leader's answer for the position that was sent last."""
    if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return _out_of_range(local, answer)
    if answer.error is not ErrorCode.NONE:
        return Retry(_USUAL.get(answer.error, answer.error.name), answer.error in _USUAL)
    if answer.fetch_offset < 0:
        return Again()
    if _is_late(local, answer):
        return Nothing()
    if answer.diverging is not None:
        return _fork(local, answer.diverging)
    return Append(answer.high_watermark, answer.log_start)


def _is_late(local: LocalEnd, answer: PartitionAnswer) -> bool:
    """Whether the answer is from another leadership or for a position that was left."""
    return answer.leader_epoch != local.leader_epoch or answer.fetch_offset != local.log_end


def _out_of_range(local: LocalEnd, answer: PartitionAnswer) -> Decision:
    if _is_late(local, answer):
        return Nothing()
    if local.log_end < answer.log_start:
        # Nothing committed is lost: the leader deletes only what is committed (D4).
        return CopySnapshot()
    return Refuse(
        f"the log begins and ends at {local.log_end}, which is outside the leader's log from "
        f"{answer.log_start} on"
    )


def _fork(local: LocalEnd, diverging: EpochStart) -> Decision:
    """Return where to cut: the leader's end of an epoch, or where this log ends it, if earlier."""
    mine = local.end_of_epoch(diverging.epoch)
    if mine is None or diverging.offset < 0:
        return Retry(f"it names epoch {diverging.epoch}, which is above its own")
    offset = min(diverging.offset, mine.offset)
    if offset < local.high_watermark:
        return Refuse(
            f"the leader's log differs from offset {offset} on, but everything below "
            f"{local.high_watermark} is committed here: one of the two has lost records"
        )
    if offset >= local.log_end:
        return Retry(f"it names a fork at {offset}, which is not below the log's end")
    return Truncate(offset)


def first_offset(log_start: Offset, first: BatchHeader | None) -> Offset:
    """Return where a new replica of a log begins.

    ``first`` is the first batch that ends above the log start, None without one. It may begin below
    (DeleteRecords), and is replicated as it is (KAFKA-6975).
    """
    return log_start if first is None else min(log_start, first.base_offset)


def continues(position: Position, first: BatchHeader | None) -> bool:
    """Tell the leader whether a follower below its log start may go on with its first batch.

    Only if it has that batch's leader epoch: where older ones end may be forgotten there.
    """
    if first is None or first.base_offset != position.fetch_offset:
        return False
    return first.leader_epoch == position.last_epoch


def differs(last_epoch: int, log_end: Offset, leaders: EpochStart) -> bool:
    """Tell the leader whether a follower's log differs from its own, and must be cut.

    ``last_epoch`` and ``log_end`` are the follower's, ``leaders`` is where the leader ends
    that epoch.
    """
    return leaders.epoch != last_epoch or leaders.offset < log_end
