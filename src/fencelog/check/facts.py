"""Facts that follow from a history: which sends took place, and each partition's records.

A send took place if a reader saw its value, if its operation is ok, or if its operation is a
transaction without a known end of which a reader saw another value: one visible record proves that
it committed. Offsets come from all polls, also those of failed operations, because no reader may
ever see wrong records; and from sends that took place.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from fencelog.check.history import Value
from fencelog.check.tables import FAILED, NONE, OK, History


@dataclass
class Facts:
    """A history and its facts. A rank is an index into the known offsets of a key."""

    history: History
    certain: bytearray
    """For each operation, whether it took place as a whole: it is ok, or proven committed."""
    position: "array[int]"
    """For each send its offset, or ``NONE`` where it is unknown or the send may not be there."""
    unread: list[dict[int, int]]
    """For each key, sends that took place at an offset that no reader polled."""
    misplaced: list[int]
    """Sends whose acknowledged offset differs from the offset where they were seen."""
    overwritten: list[int]
    """Sends whose acknowledged offset has another value."""
    orders: list["array[int]"]
    """For each key its known offsets, ascending."""
    final_seen: list[bytearray]
    """For each key and rank, whether a final reader saw it."""
    finals: list[int]
    """The final readers."""
    passed: list[list[range]]
    """For each key, ranks that some reader skipped; filled while polls are checked."""

    def went_past(self, key: int, offset: int) -> bool:
        """Whether readers were shown what lies behind an offset, and should have been shown it.

        Without final readers, where readers were sent to other places in between, only those count
        that were reading on: one that was sent behind it says nothing.
        """
        if self.finals:
            return offset < self.final_horizons[key]
        if not self.history.resets:
            return offset < self.horizons[key]
        rank = self.rank(key, offset)
        return any(rank in ranks for ranks in self.passed[key])

    def rank(self, key: int, offset: int) -> int:
        """How many known offsets are below this one."""
        return bisect_left(self.orders[key], offset)

    def send_at(self, key: int, rank: int) -> int:
        """The send whose value is there."""
        offset = self.orders[key][rank]
        value = self.history.logs[key].get(offset)
        if value is None:
            return self.unread[key][offset]
        return self.history.writers[key][value]

    def values(self, key: int, ranks: range) -> list[Value]:
        """The values at these ranks."""
        return [self.history.sends.value[self.send_at(key, rank)] for rank in ranks]

    def log_start(self, key: int) -> int:
        """The first offset that was not deleted, as far as is known."""
        ends = self.history.ends.get(key)
        return (ends[-1].log_start or 0) if ends else 0

    def log_end(self, key: int) -> int | None:
        """The log end, if known."""
        ends = self.history.ends.get(key)
        return ends[-1].log_end if ends else None

    @cached_property
    def horizons(self) -> list[int]:
        """For each key the highest offset that any reader saw, or ``NONE``."""
        return [max(log, default=NONE) for log in self.history.logs]

    @cached_property
    def final_horizons(self) -> list[int]:
        """The same for final readers."""
        return [
            order[last] if (last := seen.rfind(1)) >= 0 else NONE
            for order, seen in zip(self.orders, self.final_seen, strict=True)
        ]

    @cached_property
    def final_runs(self) -> dict[int, list[int]]:
        """For each key the runs of final readers."""
        history, finals = self.history, set(self.finals)
        found: dict[int, list[int]] = {}
        for run, (op, key) in enumerate(zip(history.runs.op, history.runs.key, strict=True)):
            if history.ops.process[op] in finals:
                found.setdefault(key, []).append(run)
        return found

    def who_went_past(self, key: int, offset: int) -> tuple[int, int] | None:
        """(operation, offset) of a poll that was shown something above, the nearest.

        Of a final reader, if there were any.
        """
        history = self.history
        if not self.finals:
            order = self.orders[key]
            for rank in range(bisect_left(order, offset + 1), len(order)):
                send = self.send_at(key, rank)
                if history.sends.polled[send] == order[rank]:
                    return history.sends.reader[send], order[rank]
            return None
        nearest: tuple[int, int] | None = None
        for run in self.final_runs.get(key, ()):
            above = min((each for each in history.runs.offsets_of(run) if each > offset), default=0)
            if above and (nearest is None or above < nearest[1]):
                nearest = history.runs.op[run], above
        return nearest


def establish(history: History) -> Facts:
    """The facts of these tables; ``final_seen`` is filled later."""
    certain = _certain(history)
    sends = history.sends
    unread: list[dict[int, int]] = [{} for _ in history.logs]
    facts = Facts(
        history,
        certain,
        position=array("q", sends.polled),
        unread=unread,
        misplaced=[],
        overwritten=[],
        orders=[],
        final_seen=[],
        finals=history.final_processes(),
        passed=[[] for _ in history.logs],
    )
    outcome = history.ops.outcome
    for send, (op, told, polled) in enumerate(zip(sends.op, sends.told, sends.polled, strict=True)):
        if told in (polled, NONE):
            continue
        if polled != NONE:
            if outcome[op] != FAILED:
                facts.misplaced.append(send)
        elif certain[op]:
            _place_unread(facts, send, told)
    for log, more in zip(history.logs, unread, strict=True):
        order = array("q", sorted([*log, *more] if more else log))
        facts.orders.append(order)
        facts.final_seen.append(bytearray(len(order)))
    return facts


def _certain(history: History) -> bytearray:
    ops, sends = history.ops, history.sends
    certain = bytearray(each == OK for each in ops.outcome)
    for op, polled in zip(sends.op, sends.polled, strict=True):
        if (
            NONE not in (polled, op)
            and not certain[op]
            and ops.transactional[op]
            and ops.outcome[op] != FAILED
        ):
            certain[op] = True
    return certain


def _place_unread(facts: Facts, send: int, told: int) -> None:
    """Place an unseen send at its acknowledged offset, unless another value is there."""
    key = facts.history.sends.key[send]
    facts.position[send] = told
    if told in facts.history.logs[key] or facts.unread[key].setdefault(told, send) != send:
        facts.overwritten.append(send)
