"""What a reader does next (R7, R8, R10, R11): from the state alone, so that all agree.

A group is balanced when the numbers of segments of any two readers differ by one at most. Segments
count, not events.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fencelog.coordination.reader_group.state import GroupState


@dataclass(frozen=True, slots=True)
class Take:
    """Take these segments."""

    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shed:
    """Give one segment away: this one."""

    segment: int


@dataclass(frozen=True, slots=True)
class Reach:
    """Stop between two events, and report the positions of all segments for these checkpoints."""

    checkpoints: tuple[str, ...]


Step = Take | Shed | Reach


def fair_shares(state: GroupState) -> dict[str, int]:
    """Return how many segments each reader is to have.

    All have the same number; of what remains, those have one more that have most now, so that
    nobody gives away what another one would then have too much.
    """
    if not state.readers:
        return {}
    least, more = divmod(state.readable, len(state.readers))
    order = sorted(state.readers, key=lambda name: (-len(state.readers[name].segments), name))
    return {name: least + (place < more) for place, name in enumerate(order)}


def next_step(state: GroupState, name: str, *, may_shed: bool, take_max: int) -> Step | None:
    """Return what an online reader is to do, None for nothing.

    ``may_shed``: the last one was a window ago (R7). ``take_max``: segments at a time.
    """
    reader = state.readers[name]
    waiting = tuple(
        each
        for each, found in state.checkpoints.items()
        if any(index in found.waiting for index in reader.segments)
    )
    if waiting:
        return Reach(waiting)
    shares = fair_shares(state)
    lacking = shares[name] - len(reader.segments)
    if lacking < 0 and may_shed:
        # The one that was taken last: what others took over from it is not moved on.
        return Shed(max(reader.segments, key=lambda each: (reader.segments[each].taken, each)))
    if lacking > 0 and take_max > 0 and state.unassigned:
        return _take(state, name, shares, min(lacking, take_max))
    return None


def _take(state: GroupState, name: str, shares: Mapping[str, int], count: int) -> Take | None:
    """Return the part of the unassigned segments that is this reader's."""
    before = 0
    for other, share in shares.items():
        if other == name:
            break
        before += max(share - len(state.readers[other].segments), 0)
    free = sorted(state.unassigned)
    first = before % len(free)  # all do it at once: let them not want the same ones
    found = (free[first:] + free[:first])[:count]
    return Take(tuple(found))


def is_balanced(state: GroupState) -> bool:
    """Whether every reader has its fair share."""
    shares = fair_shares(state)
    return all(len(each.segments) == shares[name] for name, each in state.readers.items())


def detectors(state: GroupState, dead: str) -> list[str]:
    """Return who declares a reader offline, in the order in which they try (R9).

    One does it at once; the others only if that one does not either.
    """
    others = sorted(each for each in state.readers if each != dead)
    later = [each for each in others if each > dead]
    return later + others[: len(others) - len(later)]
