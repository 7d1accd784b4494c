"""The shared state of a reader group (R5): who reads which segment, from where, and what waits.

It is the replay of its updates (``replay``). Segments are in one of three places: owned by an
online reader, unassigned, or future, which means that a predecessor is not completed (R8).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Cut = Mapping[int, int]
"""A stream cut: segments, each with an offset. Their ranges cover all keys."""
VERSION = 1
READERS_MAX = 1_000
SEGMENTS_MAX = 10_000
CHECKPOINTS_MAX = 16
EARLIEST = "earliest"
LATEST = "latest"


class Position(NamedTuple):
    """Up to where a segment is read.

    Attributes:
        offset: all before it is processed.
        origin: the update that set the offset without regard to what was committed. A committed
            offset that belongs to another origin does not count.
    """

    offset: int
    origin: int


class Owned(NamedTuple):
    """A segment of a reader: its position, and the update by which it was taken."""

    offset: int
    origin: int
    taken: int

    @property
    def position(self) -> Position:
        """What stays when it is given away."""
        return Position(self.offset, self.origin)


@dataclass(frozen=True, slots=True)
class Reader:
    """An online reader: another incarnation of the name is not this one (R6)."""

    incarnation: int
    segments: Mapping[int, Owned]


@dataclass(frozen=True, slots=True)
class Future:
    """A segment that becomes readable with the last of its predecessors (R8).

    Attributes:
        waiting: the predecessors that are not completed.
        done: those that are, and where they ended.
    """

    waiting: frozenset[int]
    done: Cut


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stream cut that the whole group passes, each reader between two events (R10).

    Attributes:
        positions: of the segments whose readers have reached it.
        waiting: the others. It is complete when there are none.
    """

    positions: Cut
    waiting: frozenset[int]

    @property
    def is_complete(self) -> bool:
        """Whether it is a whole stream cut."""
        return not self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a group is created with; creating it again with the same ones is harmless (R4).

    Attributes:
        topic_id: of the stream, in hexadecimal digits.
        start: ``earliest``, ``latest`` or a cut, where reading begins.
        end: where reading ends; None: never.
    """

    stream: str
    topic_id: str
    start: str | Cut = EARLIEST
    end: Cut | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """All of it. ``settings`` is None before the group is created.

    Attributes:
        base: what is added to the offset of an update to make it a generation of ownership: a
            group of this name that was deleted had lower ones.
    """

    settings: Settings | None = None
    base: int = 0
    readers: Mapping[str, Reader] = field(default_factory=dict)
    unassigned: Mapping[int, Position] = field(default_factory=dict)
    future: Mapping[int, Future] = field(default_factory=dict)
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)

    def online(self, name: str, incarnation: int) -> Reader | None:
        """Return the reader if it is online with this incarnation."""
        found = self.readers.get(name)
        return found if found is not None and found.incarnation == incarnation else None

    @property
    def readable(self) -> int:
        """How many segments are owned or unassigned."""
        return len(self.unassigned) + sum(len(each.segments) for each in self.readers.values())

    @property
    def is_finished(self) -> bool:
        """Whether the end of the stream was reached: nothing is left to read (R10)."""
        return self.settings is not None and not self.readable and not self.future

    def cut(self) -> dict[int, int]:
        """Return the group's position as a stream cut: all of its parts cover all keys."""
        found = {index: at.offset for index, at in self.unassigned.items()}
        for reader in self.readers.values():
            found.update((index, at.offset) for index, at in reader.segments.items())
        for each in self.future.values():
            found.update(each.done)
        return found

    def origin_of(self, segment: int) -> int | None:
        """Return the origin of a readable segment's position, None for any other segment."""
        if (at := self.unassigned.get(segment)) is not None:
            return at.origin
        for reader in self.readers.values():
            if (owned := reader.segments.get(segment)) is not None:
                return owned.origin
        return None


EMPTY = GroupState()


def dump(state: GroupState) -> object:
    """Return the JSON value of a state, for a mark."""
    return {
        "version": VERSION,
        "settings": None if state.settings is None else dump_settings(state.settings),
        "base": state.base,
        "readers": [
            [name, each.incarnation, [[index, *owned] for index, owned in each.segments.items()]]
            for name, each in state.readers.items()
        ],
        "unassigned": [[index, *at] for index, at in state.unassigned.items()],
        "future": [
            [index, sorted(each.waiting), dump_cut(each.done)]
            for index, each in state.future.items()
        ],
        "checkpoints": [
            [name, dump_cut(each.positions), sorted(each.waiting)]
            for name, each in state.checkpoints.items()
        ],
    }


def load(value: Any) -> GroupState:  # noqa: ANN401 - JSON, of which any part may be wrong
    """Return the state of a JSON value. Raises ValueError, TypeError or KeyError for another."""
    if value["version"] != VERSION:
        raise ValueError(f"version {value['version']} of a reader group's state is not known")
    settings = value["settings"]
    return GroupState(
        settings=None if settings is None else load_settings(settings),
        base=int(value["base"]),
        readers={
            name: Reader(incarnation, {index: Owned(*owned) for index, *owned in segments})
            for name, incarnation, segments in value["readers"]
        },
        unassigned={index: Position(*at) for index, *at in value["unassigned"]},
        future={
            index: Future(frozenset(waiting), load_cut(done))
            for index, waiting, done in value["future"]
        },
        checkpoints={
            name: Checkpoint(load_cut(positions), frozenset(waiting))
            for name, positions, waiting in value["checkpoints"]
        },
    )


def dump_settings(settings: Settings) -> object:
    """Return the JSON value of settings."""
    start = settings.start
    return [
        settings.stream,
        settings.topic_id,
        start if isinstance(start, str) else dump_cut(start),
        None if settings.end is None else dump_cut(settings.end),
    ]


def load_settings(value: Any) -> Settings:  # noqa: ANN401 - JSON
    """Return the settings of a JSON value. Raises ValueError or TypeError for another."""
    stream, topic_id, start, end = value
    return Settings(
        stream=str(stream),
        topic_id=str(topic_id),
        start=start if isinstance(start, str) else load_cut(start),
        end=None if end is None else load_cut(end),
    )


def dump_cut(cut: Cut) -> list[list[int]]:
    """Return the JSON value of a cut."""
    return [[index, offset] for index, offset in sorted(cut.items())]


def load_cut(value: Iterable[Any]) -> dict[int, int]:
    """Return the cut of a JSON value. Raises ValueError or TypeError for another."""
    return {int(index): int(offset) for index, offset in value}
