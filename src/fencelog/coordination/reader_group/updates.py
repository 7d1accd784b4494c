"""The updates of a reader group's state, and their stored form: a JSON list, its first item a name.

Every update of a reader names its incarnation, and counts only while that is online (R6).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fencelog.coordination.reader_group.state import (
    Cut,
    Settings,
    dump_cut,
    dump_settings,
    load_cut,
    load_settings,
)


@dataclass(frozen=True, slots=True)
class Created:
    """The group exists from here on: the first update. ``cut``: where reading begins."""

    settings: Settings
    base: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class Joined:
    """A reader is online. An older incarnation of the name is offline with it, as by WentOffline.

    A lower incarnation than the one that is online is refused.
    """

    reader: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class WentOffline:
    """A reader is offline, and its segments are unassigned (R9).

    Attributes:
        positions: where they go on; without one, where the state has them.
        is_exact: offsets that were committed do not count: somebody else than the reader says so.
    """

    reader: str
    incarnation: int
    positions: Cut
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Took:
    """A reader owns these segments, which were unassigned."""

    reader: str
    incarnation: int
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """A reader gives a segment away, at this position (R7)."""

    reader: str
    incarnation: int
    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Completed:
    """A segment was read to its end. ``successors``: each with all of its predecessors (R8)."""

    reader: str
    incarnation: int
    segment: int
    end: int
    successors: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class CheckpointBegun:
    """The group shall pass a checkpoint of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class CheckpointReached:
    """A reader is between two events, and has processed all before these positions."""

    reader: str
    incarnation: int
    names: tuple[str, ...]
    positions: Cut


@dataclass(frozen=True, slots=True)
class CheckpointDropped:
    """The checkpoint is not needed any more."""

    name: str


@dataclass(frozen=True, slots=True)
class Reset:
    """The group goes on at another cut; no reader owns a segment, and all may take some.

    Attributes:
        topic_id: of the stream, where it was made again: checkpoints are of the one before.
    """

    cut: Cut
    topic_id: str | None = None


Update = (
    Created
    | Joined
    | WentOffline
    | Took
    | Released
    | Completed
    | CheckpointBegun
    | CheckpointReached
    | CheckpointDropped
    | Reset
)
OfReader = Took | Released | Completed | CheckpointReached


def dump_update(update: Update) -> list[object]:  # noqa: C901, PLR0911 - a case for each
    """Return the JSON value of an update."""
    match update:
        case Created(settings, base, cut):
            return ["created", dump_settings(settings), base, dump_cut(cut)]
        case Joined(reader, incarnation):
            return ["joined", reader, incarnation]
        case WentOffline(reader, incarnation, positions, is_exact):
            return ["offline", reader, incarnation, dump_cut(positions), is_exact]
        case Took(reader, incarnation, segments):
            return ["took", reader, incarnation, list(segments)]
        case Released(reader, incarnation, segment, offset):
            return ["released", reader, incarnation, segment, offset]
        case Completed(reader, incarnation, segment, end, successors):
            after = [[index, list(before)] for index, before in sorted(successors.items())]
            return ["completed", reader, incarnation, segment, end, after]
        case CheckpointReached(reader, incarnation, names, positions):
            return ["reached", reader, incarnation, list(names), dump_cut(positions)]
        case CheckpointBegun(name):
            return ["begun", name]
        case CheckpointDropped(name):
            return ["dropped", name]
        case Reset(cut, None):
            return ["reset", dump_cut(cut)]
        case Reset(cut, topic_id):
            return ["reset", dump_cut(cut), topic_id]


def load_update(value: Any) -> Update:  # noqa: ANN401, C901, PLR0911 - JSON; a case for each
    """Return the update of a JSON value. Raises ValueError or TypeError for another."""
    match value:
        case ["created", settings, base, cut]:
            return Created(load_settings(settings), int(base), load_cut(cut))
        case ["joined", str(reader), int(incarnation)]:
            return Joined(reader, incarnation)
        case ["offline", str(reader), int(incarnation), positions, is_exact]:
            return WentOffline(reader, incarnation, load_cut(positions), bool(is_exact))
        case ["took", str(reader), int(incarnation), segments]:
            return Took(reader, incarnation, tuple(int(each) for each in segments))
        case ["released", str(reader), int(incarnation), int(segment), int(offset)]:
            return Released(reader, incarnation, segment, offset)
        case ["completed", str(reader), int(incarnation), int(segment), int(end), after]:
            successors = {int(index): tuple(int(each) for each in old) for index, old in after}
            return Completed(reader, incarnation, segment, end, successors)
        case ["reached", str(reader), int(incarnation), names, positions]:
            return CheckpointReached(reader, incarnation, tuple(names), load_cut(positions))
        case ["begun", str(name)]:
            return CheckpointBegun(name)
        case ["dropped", str(name)]:
            return CheckpointDropped(name)
        case ["reset", cut]:
            return Reset(load_cut(cut))
        case ["reset", cut, str(topic_id)]:
            return Reset(load_cut(cut), topic_id)
        case _:
            raise ValueError(f"{str(value)[:80]} is no update of a reader group")
