"""What a client says of reader groups: options, descriptions, errors, names."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from fencelog.client.model import Isolation, Record
from fencelog.errors import FencelogError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC_PREFIX = "_fencelog.readers."
LEASE_S = 10.0
STATE_BYTES_MAX = 8 << 20
"""The largest state and update: of 1,000 readers, 10,000 segments and 16 checkpoints."""

OnCheckpoint = Callable[[str], Awaitable[None]]


class ReaderGroupError(FencelogError):
    """What was asked of a reader group is not done; the message says why, and what to do."""


class ReaderGroupNotFoundError(ReaderGroupError):
    """There is no reader group of this name."""


class ReaderOfflineError(ReaderGroupError):
    """The group's state calls this reader offline: others go on with its segments (R6, R9).

    It must stop; it may join again, as another incarnation.
    """


class StreamMadeAgainError(ReaderGroupError):
    """The group's positions are of a stream that was deleted and made again by the same name."""

    def __init__(self, stream: str) -> None:
        """Say what to do."""
        super().__init__(
            f"stream {stream} was deleted and made again, and the group's positions are of the "
            "earlier one; reset the group, to the earliest or to a cut of the new one, or delete it"
        )


@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """How a reader reads.

    Attributes:
        isolation: ``transactional`` or ``replicated``; a segment ends where its end is visible.
        lease_s: for how long the reader, and each of its segments, lives without an answer from the
            broker (O10).
        window_s: it gives away one segment at most in such a time (R7).
        commit_interval_s: how often processed positions are committed; None: at checkpoints only.
        fetch_bytes: how much is asked for at once, of each segment.
        on_checkpoint: awaited between two events, when a checkpoint is reached: all that was handed
            out before is processed, and its effects are to be stored now.
    """

    isolation: Isolation = "transactional"
    lease_s: float = LEASE_S
    window_s: float = 1.0
    commit_interval_s: float | None = 5.0
    fetch_bytes: int = 1 << 20
    on_checkpoint: OnCheckpoint | None = None


@dataclass(frozen=True, kw_only=True)
class EventBatch:
    """Events of one segment, in order; all are processed when the next batch is asked for."""

    segment: int
    events: tuple[Record, ...]


@dataclass(frozen=True, kw_only=True)
class ReaderDescription:
    """An online reader and its segments, with the positions that the state has."""

    name: str
    incarnation: int
    segments: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class ReaderGroupDescription:
    """A reader group as its state has it (R5).

    Attributes:
        unassigned: segments that no reader has, and where they go on.
        future: segments and the predecessors that they wait for.
        checkpoints: the cut of each complete one; None for one that is not.
    """

    name: str
    stream: str
    readers: tuple[ReaderDescription, ...]
    unassigned: Mapping[int, int]
    future: Mapping[int, tuple[int, ...]]
    checkpoints: Mapping[str, Mapping[int, int] | None]
    is_finished: bool


def check_name(what: str, name: str) -> str:
    """Return the name. Raises ValueError unless it may be part of a topic's name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} {name!r}: expected 1 to 200 letters, digits, dots, underscores and hyphens"
        )
    return name


def state_topic(group: str) -> str:
    """Return the topic with the state of a group; also the group in which its readers are claimed.

    Readers have resources there that are no partitions, apart from those of the segments, so that
    who watches the readers is not told of every segment.
    """
    return _TOPIC_PREFIX + group


def group_of(topic: str) -> str | None:
    """Return the group whose state is in a topic, None for any other topic."""
    return topic.removeprefix(_TOPIC_PREFIX) if topic.startswith(_TOPIC_PREFIX) else None
