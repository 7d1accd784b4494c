"""Compares the committed offsets of a group with its outputs: exactly once, end to end.

If outputs name their inputs, each input below the group's committed offset has exactly one visible
output, and inputs at or above it have none. This holds for pipelines that write one record per
input and started at the log start.
"""

from dataclasses import dataclass, field

from fencelog.check.facts import Facts
from fencelog.check.tables import FAILED, NONE
from fencelog.check.verdict import Findings


@dataclass
class _Group:
    """Outputs by their input: (key, offset)."""

    visible: dict[tuple[int, int], int] = field(default_factory=dict)
    doubled: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """All visible outputs of inputs that have more than one."""
    invisible: dict[tuple[int, int], int] = field(default_factory=dict)


def check_groups(facts: Facts, found: Findings) -> None:
    """Compare every group with a ``group_end`` with the outputs of its operations."""
    history = facts.history
    groups = _outputs(facts)
    for number, committed in history.group_ends.items():
        group = groups.get(number)
        if group is not None:
            name = history.groups.all[number]
            _check_visible(facts, found, name, group, committed)
            if facts.finals:
                _check_missing(facts, found, name, group, committed)


def _outputs(facts: Facts) -> dict[int, _Group]:
    """Outputs by group. One whose operation commits for no group is its process's group's."""
    history, sends, ops = facts.history, facts.history.sends, facts.history.ops
    if not history.group_ends:
        return {}
    default = next(iter(history.group_ends)) if len(history.group_ends) == 1 else NONE
    of_process: dict[int, int] = {}
    for op, number in enumerate(ops.group):
        if number != NONE:
            of_process.setdefault(ops.process[op], number)
    groups: dict[int, _Group] = {}
    for send, (op, source) in enumerate(zip(sends.op, sends.source_key, strict=True)):
        if NONE in (source, op):
            continue
        number = ops.group[op]
        if number == NONE:
            number = of_process.get(ops.process[op], default)
        group = groups.setdefault(number, _Group())
        place = source, sends.source_offset[send]
        if sends.polled[send] == NONE or ops.outcome[op] == FAILED:
            group.invisible[place] = send
        elif group.visible.setdefault(place, send) != send:
            group.doubled.setdefault(place, [group.visible[place]]).append(send)
    return groups


def _check_visible(
    facts: Facts, found: Findings, name: str, group: _Group, committed: dict[int, int]
) -> None:
    """Find inputs with two outputs, and outputs of inputs that the group did not commit."""
    names, values = facts.history.keys.all, facts.history.sends.value
    for (key, offset), outputs in group.doubled.items():
        if found.more("doubled-input"):
            found.keep(
                "doubled-input",
                f"{names[key]} at {offset} has {len(outputs)} visible outputs of group {name}",
                [_output(facts, each) for each in outputs[:3]],
                key=key,
                offsets=(offset,),
                values=[values[each] for each in outputs],
            )
    for (key, offset), output in group.visible.items():
        position = committed.get(key, 0)
        if offset >= position and found.more("uncommitted-input"):
            found.keep(
                "uncommitted-input",
                f"{names[key]} at {offset} has a visible output, but group {name} committed "
                f"{position} only",
                [_output(facts, output)],
                key=key,
                offsets=(offset,),
                values=(values[output],),
            )


def _output(facts: Facts, send: int) -> tuple[int, str]:
    sends, names = facts.history.sends, facts.history.keys.all
    source = f"{names[sends.source_key[send]]} at {sends.source_offset[send]}"
    offset = facts.position[send]
    at = "" if offset == NONE else f" at {offset}"
    return sends.op[send], f"sent {sends.value[send]} to {names[sends.key[send]]}{at} for {source}"


def _check_missing(
    facts: Facts, found: Findings, name: str, group: _Group, committed: dict[int, int]
) -> None:
    """Find inputs that the group committed and that have no output."""
    for key, position in committed.items():
        order = facts.orders[key]
        start = facts.log_start(key)
        for rank in range(facts.rank(key, start), facts.rank(key, position)):
            offset = order[rank]
            if (key, offset) in group.visible or not found.more("lost-input"):
                continue
            tried = group.invisible.get((key, offset))
            source = facts.send_at(key, rank)
            counterexample = (
                [] if facts.history.sends.op[source] == NONE else [_input(facts, source)]
            )
            found.keep(
                "lost-input",
                f"{facts.history.keys.all[key]} at {offset} has no visible output, but group "
                f"{name} committed {position}",
                [*counterexample, *([] if tried is None else [_output(facts, tried)])],
                key=key,
                offsets=(offset,),
                values=(facts.history.sends.value[source],),
            )


def _input(facts: Facts, send: int) -> tuple[int, str]:
    sends = facts.history.sends
    return sends.op[send], f"sent {sends.value[send]} to {facts.history.keys.all[sends.key[send]]}"
