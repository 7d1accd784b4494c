"""Checks that readers saw records in the log's order, without gaps."""

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from fencelog.check.facts import Facts
from fencelog.check.tables import FAILED, NONE, OK
from fencelog.check.verdict import Findings


@dataclass
class Place:
    """The possible positions of a reader in a key after an operation: its last ranks.

    They differ after an operation without a known end: it may have been rolled back or not.
    """

    low: int
    high: int
    op: int


@dataclass
class Reader:
    """One process and its positions, by key."""

    places: dict[int, Place] = field(default_factory=dict)
    from_start: bool = False
    """Whether a key without a position must be read from its start."""


class Polls:
    """One pass over all runs, in the order of completions."""

    def __init__(self, facts: Facts, found: Findings) -> None:
        """Adds findings to ``found``, and what final readers saw to the facts."""
        self._facts = facts
        self._found = found
        history = facts.history
        self._ops, self._runs = history.ops, history.runs
        finals = set(facts.finals)
        self._readers = [Reader(from_start=p in finals) for p in range(len(history.processes))]
        self._is_final = bytearray(p in finals for p in range(len(history.processes)))

    def check(self) -> None:
        """Check every run once."""
        runs, ops = self._runs, self._ops
        resets = iter([*self._facts.history.resets, (len(runs) + 1, NONE)])
        reset_before, process = next(resets)
        last_op = NONE
        inside: dict[int, int] = {}
        for run, (op, key) in enumerate(zip(runs.op, runs.key, strict=True)):
            while reset_before <= run:
                before_reset = self._readers[process]
                # A reader that is reset before its first read still begins at the start.
                self._readers[process] = Reader(
                    from_start=before_reset.from_start and not before_reset.places
                )
                reset_before, process = next(resets)
            if op != last_op:
                last_op, inside = op, {}
            first, last = self._within(run, op, key)
            if op in ops.reset_inside:
                self._readers[ops.process[op]].places.pop(key, None)
                continue
            before = inside.get(key)
            inside[key] = last
            if before is None:
                self._after_another(op, key, first)
            elif first != before + 1:
                self._jump(op, key, before, first)
            self._move(op, key, first, last)

    def _within(self, run: int, op: int, key: int) -> tuple[int, int]:
        """Check the order inside one run; the ranks of its first and last record."""
        offsets = self._runs.offsets_of(run)
        order = self._facts.orders[key]
        first = bisect_left(order, offsets[0])
        after = first + len(offsets)
        is_final = self._is_final[self._ops.process[op]]
        if order[first:after] == offsets:
            if is_final:
                self._facts.final_seen[key][first:after] = b"\1" * len(offsets)
            return first, after - 1
        ranks = [bisect_left(order, each) for each in offsets]
        if is_final:
            for rank in ranks:
                self._facts.final_seen[key][rank] = 1
        for before, rank in itertools.pairwise(ranks):
            if rank != before + 1:
                self._jump(op, key, before, rank)
        return ranks[0], ranks[-1]

    def _jump(self, op: int, key: int, before: int, rank: int) -> None:
        """Report two records of one operation that do not follow each other."""
        order = self._facts.orders[key]
        if rank <= before:
            if self._found.more("int-nonmonotonic-poll"):
                where = f"{self._facts.history.keys.all[key]}: {order[rank]} after {order[before]}"
                self._found.keep(
                    "int-nonmonotonic-poll",
                    where,
                    [(op, f"polled {where}")],
                    key=key,
                    offsets=(order[before], order[rank]),
                )
            return
        skipped = self._skipped(key, before, rank)
        if skipped:
            self._facts.passed[key].append(skipped)
        if skipped and self._found.more("int-poll-skip"):
            self._found.keep(
                "int-poll-skip",
                f"{self._gap(key, before, rank)} {self._what(key, skipped)}",
                [(op, f"polled {self._gap(key, before, rank)}"), *self._proofs(key, skipped)],
                key=key,
                offsets=(order[before], *(order[each] for each in skipped[:3]), order[rank]),
            )

    def _skipped(self, key: int, before: int, rank: int) -> range:
        """The ranks between the two that were not deleted."""
        first = max(before + 1, self._facts.rank(key, self._facts.log_start(key)))
        return range(first, rank)

    def _gap(self, key: int, before: int, rank: int) -> str:
        order = self._facts.orders[key]
        since = f"{order[before]} and then" if before >= 0 else "first of all"
        return f"{self._facts.history.keys.all[key]}: {since} {order[rank]}"

    def _what(self, key: int, skipped: range) -> str:
        order = self._facts.orders[key]
        values = self._facts.values(key, skipped[:3])
        shown = ", ".join(
            f"{order[rank]} (value {value})" for rank, value in zip(skipped, values, strict=False)
        )
        more = f" and {len(skipped) - 3:,} more" if len(skipped) > 3 else ""
        return f"without {shown}{more}"

    def _proofs(self, key: int, skipped: range) -> Iterator[tuple[int, str]]:
        """The operations that prove that the first skipped record exists."""
        sends = self._facts.history.sends
        send = self._facts.send_at(key, skipped[0])
        offset = self._facts.orders[key][skipped[0]]
        if sends.op[send] != NONE:
            yield sends.op[send], f"sent {sends.value[send]}"
        if sends.polled[send] == offset:
            yield sends.reader[send], f"polled it at {offset}"

    def _after_another(self, op: int, key: int, first: int) -> None:
        """Compare an operation's first record of a key with the position of its process."""
        reader = self._readers[self._ops.process[op]]
        place = reader.places.get(key)
        if place is None:
            if reader.from_start and first > 0:
                self._outer_skip(op, key, NONE, first, None)
        elif place.low < first <= place.high + 1 or self._ops.begun[op] < self._ops.ended[place.op]:
            return
        elif first > place.high:
            self._outer_skip(op, key, place.high, first, place.op)
        elif self._found.more("nonmonotonic-poll"):
            order = self._facts.orders[key]
            name = self._facts.history.keys.all[key]
            self._found.keep(
                "nonmonotonic-poll",
                f"{name}: {order[first]} after {order[place.low]}",
                [
                    (place.op, f"polled {name} up to {order[place.low]}"),
                    (op, f"polled {name} from {order[first]}"),
                ],
                key=key,
                offsets=(order[place.low], order[first]),
            )

    def _outer_skip(self, op: int, key: int, before: int, first: int, last_op: int | None) -> None:
        skipped = self._skipped(key, before, first)
        if skipped:
            self._facts.passed[key].append(skipped)
        if not skipped or not self._found.more("poll-skip"):
            return
        order, name = self._facts.orders[key], self._facts.history.keys.all[key]
        stood = [] if last_op is None else [(last_op, f"polled {name} up to {order[before]}")]
        self._found.keep(
            "poll-skip",
            f"{self._gap(key, before, first)} {self._what(key, skipped)}",
            [*stood, (op, f"polled {name} from {order[first]}"), *self._proofs(key, skipped)],
            key=key,
            offsets=(*(order[each] for each in skipped[:3]), order[first]),
        )

    def _move(self, op: int, key: int, first: int, last: int) -> None:
        """Update the position of the process."""
        ops = self._ops
        outcome = ops.outcome[op]
        places = self._readers[ops.process[op]].places
        place = places.get(key)
        if outcome == OK:
            if place is None:
                places[key] = Place(last, last, op)
            else:
                place.low = place.high = last
                place.op = op
        elif outcome == FAILED and ops.transactional[op]:
            return  # it was rolled back, or its client's next poll will show that it was not
        elif place is None:
            places[key] = Place(first - 1, last, op)
        else:
            places[key] = Place(place.low, max(place.high, last), op)
