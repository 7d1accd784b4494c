"""How the state of a reader group changes: by its updates alone, each accepted or without effect.

``refusal`` says why one has no effect. Who is about to write one asks first; the replay asks
again, so that what an older incarnation still writes changes nothing (R6).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from fencelog.coordination.reader_group.state import (
    CHECKPOINTS_MAX,
    READERS_MAX,
    SEGMENTS_MAX,
    Checkpoint,
    Future,
    GroupState,
    Owned,
    Position,
    Reader,
)
from fencelog.coordination.reader_group.updates import (
    CheckpointBegun,
    CheckpointDropped,
    CheckpointReached,
    Completed,
    Created,
    Joined,
    OfReader,
    Released,
    Reset,
    Took,
    Update,
    WentOffline,
    load_update,
)

K = TypeVar("K")
V = TypeVar("V")


def apply(state: GroupState, value: object, offset: int) -> GroupState:
    """Return the state after a stored update, which is at this offset.

    Raises ValueError or TypeError for what is no update.
    """
    return replay(state, load_update(value), offset)


def replay(state: GroupState, update: Update, offset: int) -> GroupState:  # noqa: C901, PLR0911 - a case for each update
    """Return the state after an update; the same if it is refused."""
    if refusal(state, update) is not None:
        return state
    match update:
        case Created():
            return _created(state, update, offset)
        case Joined(name, incarnation):
            state = _offline(state, name, {}, None)
            return replace(state, readers={**state.readers, name: Reader(incarnation, {})})
        case WentOffline(name, _, positions, is_exact):
            return _offline(state, name, positions, offset if is_exact else None)
        case Took():
            return _took(state, update, offset)
        case Released(name, _, segment, at):
            owned = state.readers[name].segments[segment]
            state = _without(state, name, [segment])
            position = Position(at, owned.origin)
            state = replace(state, unassigned={**state.unassigned, segment: position})
            return _recorded(state, {segment: at}, state.checkpoints)
        case Completed():
            return _completed(state, update, offset)
        case CheckpointBegun(name):
            return _begun(state, name)
        case CheckpointReached():
            return _reached(state, update)
        case CheckpointDropped(name):
            return replace(state, checkpoints=_less(state.checkpoints, [name]))
        case Reset():
            return _reset(state, update, offset)


def refusal(state: GroupState, update: Update) -> str | None:  # noqa: PLR0911 - a case for each
    """Return why an update has no effect on this state, None if it has one."""
    if isinstance(update, Created):
        return None if state.settings is None else "the group was created before"
    if state.settings is None:
        return "the group was not created"
    match update:
        case Joined(name, incarnation):
            return _refusal_to_join(state, name, incarnation)
        case WentOffline(name, incarnation):
            is_online = state.online(name, incarnation) is not None
            return None if is_online else f"reader {name} is not online"
        case CheckpointBegun(name):
            return _refusal_to_begin(state, name)
        case CheckpointDropped(name):
            return None if name in state.checkpoints else f"there is no checkpoint {name}"
        case Reset(cut, _):
            return None if 0 < len(cut) <= SEGMENTS_MAX else f"a cut of {len(cut)} segments"
        case _:
            return _refusal_of_reader(state, update)


def _refusal_to_join(state: GroupState, name: str, incarnation: int) -> str | None:
    known = state.readers.get(name)
    if known is not None and known.incarnation >= incarnation:
        return f"this or a newer incarnation of reader {name} has joined"
    if known is None and len(state.readers) >= READERS_MAX:
        return f"the group has {READERS_MAX} readers, which are the most"
    return None


def _refusal_to_begin(state: GroupState, name: str) -> str | None:
    if name in state.checkpoints:
        return f"there is a checkpoint {name}"
    pending = sum(not each.is_complete for each in state.checkpoints.values())
    if pending >= CHECKPOINTS_MAX:
        return f"{pending} checkpoints are not complete, which are the most: drop one"
    return None


def _refusal_of_reader(  # noqa: PLR0911 - a case for each
    state: GroupState, update: OfReader
) -> str | None:
    reader = state.online(update.reader, update.incarnation)
    if reader is None:
        return f"reader {update.reader} is not online in this incarnation"
    match update:
        case Took(_, _, segments):
            gone = [each for each in segments if each not in state.unassigned]
            return f"segments {gone} are not unassigned" if gone else None
        case Released(_, _, segment, offset):
            return _refusal_of_positions(reader, {segment: offset})
        case Completed(_, _, segment, end):
            if any(segment not in before for before in update.successors.values()):
                return f"segment {segment} is no predecessor of {sorted(update.successors)}"
            if state.readable + len(state.future) + len(update.successors) > SEGMENTS_MAX:
                return f"a group has at most {SEGMENTS_MAX} segments at a time"
            return _refusal_of_positions(reader, {segment: end})
        case CheckpointReached(_, _, _, positions):
            return _refusal_of_positions(reader, positions)


def _refusal_of_positions(reader: Reader, positions: Mapping[int, int]) -> str | None:
    for segment, offset in positions.items():
        owned = reader.segments.get(segment)
        if owned is None:
            return f"the reader does not own segment {segment}"
        if offset < owned.offset:
            return f"segment {segment} was read up to {owned.offset}, and not only to {offset}"
    return None


def _created(state: GroupState, update: Created, offset: int) -> GroupState:
    return replace(
        state,
        settings=update.settings,
        base=update.base,
        unassigned={index: Position(at, offset) for index, at in update.cut.items()},
    )


def _offline(
    state: GroupState, name: str, positions: Mapping[int, int], origin: int | None
) -> GroupState:
    """Return the state without this reader. ``origin``: positions are to be taken as they are."""
    reader = state.readers.get(name)
    if reader is None:
        return state
    given = {}
    for index, owned in reader.segments.items():
        at = positions.get(index)
        if at is None:
            given[index] = owned.position
        elif origin is not None:
            given[index] = Position(at, origin)
        else:
            given[index] = Position(max(at, owned.offset), owned.origin)
    state = replace(
        state,
        readers=_less(state.readers, [name]),
        unassigned={**state.unassigned, **given},
    )
    return _recorded(state, {index: at.offset for index, at in given.items()}, state.checkpoints)


def _took(state: GroupState, update: Took, offset: int) -> GroupState:
    reader = state.readers[update.reader]
    taken = {each: Owned(*state.unassigned[each], offset) for each in update.segments}
    changed = replace(reader, segments={**reader.segments, **taken})
    return replace(
        state,
        readers={**state.readers, update.reader: changed},
        unassigned=_less(state.unassigned, update.segments),
    )


def _completed(state: GroupState, update: Completed, offset: int) -> GroupState:
    state = _without(state, update.reader, [update.segment])
    future, unassigned = dict(state.future), dict(state.unassigned)
    for index, before in update.successors.items():
        known = future.pop(index, None) or Future(frozenset(before), {})
        waiting = known.waiting - {update.segment}
        if waiting:
            future[index] = Future(waiting, {**known.done, update.segment: update.end})
        else:
            # What was committed of it before belongs to an earlier origin: the group was reset.
            unassigned[index] = Position(0, offset)
    state = replace(state, future=future, unassigned=unassigned)
    return _recorded(state, {update.segment: update.end}, state.checkpoints)


def _begun(state: GroupState, name: str) -> GroupState:
    owned = {index for each in state.readers.values() for index in each.segments}
    known = {index: at for index, at in state.cut().items() if index not in owned}
    checkpoints = dict(state.checkpoints)
    complete = [each for each, found in checkpoints.items() if found.is_complete]
    if len(checkpoints) >= CHECKPOINTS_MAX:
        del checkpoints[complete[0]]  # the oldest one
    return replace(state, checkpoints={**checkpoints, name: Checkpoint(known, frozenset(owned))})


def _reached(state: GroupState, update: CheckpointReached) -> GroupState:
    reader = state.readers[update.reader]
    segments = dict(reader.segments)
    for index, at in update.positions.items():
        segments[index] = segments[index]._replace(offset=at)
    changed = replace(reader, segments=segments)
    state = replace(state, readers={**state.readers, update.reader: changed})
    return _recorded(state, update.positions, update.names)


def _reset(state: GroupState, update: Reset, offset: int) -> GroupState:
    settings, checkpoints = state.settings, state.checkpoints
    assert settings is not None, "it was checked"
    if update.topic_id is not None:
        settings, checkpoints = replace(settings, topic_id=update.topic_id), {}
    return replace(
        state,
        settings=settings,
        readers={name: Reader(each.incarnation, {}) for name, each in state.readers.items()},
        unassigned={index: Position(at, offset) for index, at in update.cut.items()},
        future={},
        checkpoints={n: c for n, c in checkpoints.items() if c.is_complete},
    )


def _recorded(state: GroupState, positions: Mapping[int, int], names: Iterable[str]) -> GroupState:
    """Return the state in which these checkpoints have these positions; the first one counts."""
    checkpoints = dict(state.checkpoints)
    for name in names:
        known = checkpoints.get(name)
        if known is None:
            continue
        news = {index: at for index, at in positions.items() if index in known.waiting}
        if news:
            checkpoints[name] = Checkpoint({**known.positions, **news}, known.waiting - set(news))
    return replace(state, checkpoints=checkpoints)


def _without(state: GroupState, name: str, segments: Iterable[int]) -> GroupState:
    reader = state.readers[name]
    changed = replace(reader, segments=_less(reader.segments, segments))
    return replace(state, readers={**state.readers, name: changed})


def _less(mapping: Mapping[K, V], keys: Iterable[K]) -> dict[K, V]:
    left = dict(mapping)
    for each in keys:
        left.pop(each, None)
    return left
