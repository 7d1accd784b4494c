"""Checks that records are in the log in the order in which they were sent."""

from fencelog.check.facts import Facts
from fencelog.check.tables import NONE, OK
from fencelog.check.verdict import Findings


def check_order(facts: Facts, found: Findings) -> None:
    """Within each operation, and from an acknowledged one to a later one of the process.

    An operation without a known end says nothing about those after it: its request may still be
    in flight when they are sent.
    """
    ops, sends = facts.history.ops, facts.history.sends
    last: list[dict[int, int]] = [{} for _ in facts.history.processes]
    """For each process and key the last send of the newest operation that is ok."""
    for op in range(len(ops)):
        inside: dict[int, int] = {}
        before_op = last[ops.process[op]]
        for send in ops.sends_of(op):
            if facts.position[send] == NONE:
                continue
            key = sends.key[send]
            before = inside.get(key)
            inside[key] = send
            if before is not None:
                _within(facts, found, op, before, send)
            elif (earlier := before_op.get(key)) is not None:
                _between(facts, found, earlier, send)
        if ops.outcome[op] == OK:
            before_op.update(inside)


def _within(facts: Facts, found: Findings, op: int, before: int, send: int) -> None:
    """Two sends of one operation to one key."""
    first, then = facts.position[before], facts.position[send]
    if then == first + 1:
        return
    sends, key = facts.history.sends, facts.history.sends.key[send]
    name = facts.history.keys.all[key]
    if then <= first:
        kind, what = "int-nonmonotonic-send", f"{then} after {first}"
    elif facts.rank(key, then) > facts.rank(key, first) + 1:
        kind, what = "int-send-skip", f"{first} and then {then}, others between them"
    else:
        return
    if found.more(kind):
        found.keep(
            kind,
            f"{name}: {sends.value[before]} and then {sends.value[send]} stand at {what}",
            [(op, f"sent {sends.value[before]}, {sends.value[send]} to {name}")],
            key=key,
            offsets=(first, then),
            values=(sends.value[before], sends.value[send]),
        )


def _between(facts: Facts, found: Findings, before: int, send: int) -> None:
    """The last send of one operation and the first one of a later operation, to one key."""
    sends, ops = facts.history.sends, facts.history.ops
    first, then = facts.position[before], facts.position[send]
    earlier, later = sends.op[before], sends.op[send]
    if then > first or ops.ended[earlier] > ops.begun[later]:
        return
    if found.more("nonmonotonic-send"):
        key = sends.key[send]
        name = facts.history.keys.all[key]
        found.keep(
            "nonmonotonic-send",
            f"{name}: {sends.value[send]} stands at {then}, but {sends.value[before]}, "
            f"which was acknowledged before it was sent, at {first}",
            [
                (earlier, f"sent {sends.value[before]} to {name}, at {first}"),
                (later, f"sent {sends.value[send]} to {name}, at {then}"),
            ],
            key=key,
            offsets=(first, then),
            values=(sends.value[before], sends.value[send]),
        )
