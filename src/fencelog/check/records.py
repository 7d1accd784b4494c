"""Checks each record: visible ones that must not be, and missing ones."""

from collections.abc import Iterable
from dataclasses import dataclass

from fencelog.check.facts import Facts
from fencelog.check.tables import FAILED, NEVER, NONE
from fencelog.check.verdict import Findings


def check_records(facts: Facts, found: Findings) -> None:
    """Run all checks of single records; ``facts.final_seen`` must be filled."""
    _check_visible(facts, found)
    _check_own_reads(facts, found)
    _check_clashes(facts, found)
    _Missing(facts, found).check()


def _sent(facts: Facts, send: int, more: str = "") -> tuple[int, str]:
    """The operation that sent it, as a counterexample."""
    sends, name = facts.history.sends, facts.history.keys.all[facts.history.sends.key[send]]
    told = f", told {sends.told[send]}" if sends.told[send] != NONE else ""
    return sends.op[send], f"sent {sends.value[send]} to {name}{told}{more}"


def _polled(facts: Facts, send: int) -> tuple[int, str]:
    """The operation that saw it first, as a counterexample."""
    sends, name = facts.history.sends, facts.history.keys.all[facts.history.sends.key[send]]
    return sends.reader[send], f"polled {sends.value[send]} from {name} at {sends.polled[send]}"


def _check_visible(facts: Facts, found: Findings) -> None:
    """Find aborted reads, reads before the commit, and values that no client sent."""
    sends, ops = facts.history.sends, facts.history.ops
    # When a record could be visible at the earliest, and when it was certainly seen.
    may_show = [ops.committing.get(op, time) for op, time in enumerate(ops.invoked)]
    seen_by = [ops.committing.get(op, time) for op, time in enumerate(ops.completed)]
    for send, (op, polled, reader) in enumerate(
        zip(sends.op, sends.polled, sends.reader, strict=True)
    ):
        if polled == NONE:
            continue
        if op == NONE:
            if found.more("phantom"):
                _keep_phantom(facts, found, send)
            continue
        if ops.outcome[op] == FAILED and found.more("aborted-read"):
            _keep(facts, found, "aborted-read", send, "is visible although its operation failed")
        if op != reader and seen_by[reader] < may_show[op] and found.more("precommitted-read"):
            asked = "its commit was asked for" if op in ops.committing else "it was sent"
            _keep(
                facts,
                found,
                "precommitted-read",
                send,
                f"was seen before {asked} at {may_show[op]:.3f}",
            )


def _keep(facts: Facts, found: Findings, kind: str, send: int, what: str) -> None:
    sends = facts.history.sends
    key, offset = sends.key[send], sends.polled[send]
    found.keep(
        kind,
        f"{facts.history.keys.all[key]}: {sends.value[send]} at {offset} {what}",
        [_sent(facts, send), _polled(facts, send)],
        key=key,
        offsets=(offset,),
        values=(sends.value[send],),
    )


def _keep_phantom(facts: Facts, found: Findings, send: int) -> None:
    sends, history = facts.history.sends, facts.history
    key, value = sends.key[send], sends.value[send]
    elsewhere = [
        (other, each[value])
        for other, each in enumerate(history.writers)
        if other != key and value in each and sends.op[each[value]] != NONE
    ]
    where = "".join(f"; it was sent to {history.keys.all[other]}" for other, _ in elsewhere[:1])
    found.keep(
        "phantom",
        f"{history.keys.all[key]}: {value} at {sends.polled[send]}, which nobody sent there{where}",
        [_polled(facts, send), *(_sent(facts, other) for _, other in elsewhere[:1])],
        key=key,
        offsets=(sends.polled[send],),
        values=(value,),
    )


def _check_own_reads(facts: Facts, found: Findings) -> None:
    """Find transactions that read their own records, so before their commit."""
    history, ops, sends = facts.history, facts.history.ops, facts.history.sends
    last_op, own = NONE, {}
    for run, (op, key) in enumerate(zip(history.runs.op, history.runs.key, strict=True)):
        if not ops.sends[op] or not ops.transactional[op]:
            continue
        if op != last_op:
            last_op = op
            own = {(sends.key[send], sends.polled[send]): send for send in ops.sends_of(op)}
        for offset in history.runs.offsets_of(run):
            send = own.get((key, offset))
            if send is not None and found.more("precommitted-read"):
                found.keep(
                    "precommitted-read",
                    f"{history.keys.all[key]}: {sends.value[send]} at {offset} was shown to the "
                    "transaction that sent it, so before it committed",
                    [_sent(facts, send, f", and polled it at {offset}")],
                    key=key,
                    offsets=(offset,),
                    values=(sends.value[send],),
                )


def _check_clashes(facts: Facts, found: Findings) -> None:
    """Find duplicates, and offsets with two values."""
    history, sends = facts.history, facts.history.sends
    told = {(each, sends.told[each]): sends.op[each] for each in facts.misplaced}
    for (send, offset), op in (told | history.twice).items():
        if not found.more("duplicate"):
            continue
        key = sends.key[send]
        name, value, first = history.keys.all[key], sends.value[send], sends.polled[send]
        how = "was told" if op == sends.op[send] else "polled"
        found.keep(
            "duplicate",
            f"{name}: {value} is at {min(first, offset)} and at {max(first, offset)}",
            [
                *([_sent(facts, send)] if sends.op[send] not in (NONE, op) else []),
                _polled(facts, send),
                (op, f"{how} {value} in {name} at {offset}"),
            ],
            key=key,
            offsets=sorted((first, offset)),
            values=(value,),
        )
    for (send, offset), op in history.conflicts.items():
        if found.more("inconsistent-offset"):
            _keep_inconsistent(facts, found, send, offset, (op, "polled"))
    for send in facts.overwritten:
        if found.more("inconsistent-offset"):
            _keep_inconsistent(facts, found, send, sends.told[send], (sends.op[send], "was told"))


def _keep_inconsistent(
    facts: Facts, found: Findings, send: int, offset: int, how: tuple[int, str]
) -> None:
    """Report a send whose offset has another value; ``how`` is the proof of that value."""
    history, sends = facts.history, facts.history.sends
    key, value = sends.key[send], sends.value[send]
    name = history.keys.all[key]
    other = facts.send_at(key, facts.rank(key, offset))
    proof = _polled(facts, other) if sends.polled[other] == offset else _sent(facts, other)
    found.keep(
        "inconsistent-offset",
        f"{name}: offset {offset} holds {sends.value[other]} and {value}",
        [proof, (how[0], f"{how[1]} {value} in {name} at {offset}")],
        key=key,
        offsets=(offset,),
        values=(sends.value[other], value),
    )


@dataclass(frozen=True)
class _Lack:
    """A record that took place and that readers did not see."""

    send: int
    is_lost: bool
    """Whether readers read past its offset, or the log ends before it; else unseen."""
    how: str


class _Missing:
    """Find lost writes, torn transactions and unseen records."""

    def __init__(self, facts: Facts, found: Findings) -> None:
        self._facts = facts
        self._found = found
        self._lacks: dict[int, list[_Lack]] = {}

    def check(self) -> None:
        for send in self._candidates():
            lack = self._judge(send)
            if lack is not None:
                self._lacks.setdefault(self._facts.history.sends.op[send], []).append(lack)
        for op, lacks in self._lacks.items():
            self._report(op, lacks)

    def _candidates(self) -> Iterable[int]:
        """Sends that took place and that no final reader (nobody, if there are none) saw."""
        facts, sends = self._facts, self._facts.history.sends
        all_seen = [0 not in seen for seen in facts.final_seen]
        moved: dict[int, list[int]] = {}
        for send, offset in facts.history.twice:
            moved.setdefault(send, []).append(offset)
        log_ends = [facts.log_end(key) for key in range(len(facts.orders))]
        vanishes_at = [NEVER if each is None else each for each in log_ends]
        for send, (op, key, polled) in enumerate(
            zip(sends.op, sends.key, sends.polled, strict=True)
        ):
            if op == NONE:
                continue
            if polled == NONE:
                if facts.certain[op]:
                    yield send
            elif (
                not all_seen[key]
                and (facts.finals or polled >= vanishes_at[key])
                and not any(self._is_final_seen(key, o) for o in (polled, *moved.get(send, ())))
                and facts.history.ops.outcome[op] != FAILED
            ):
                yield send

    def _is_final_seen(self, key: int, offset: int) -> bool:
        return bool(self._facts.final_seen[key][self._facts.rank(key, offset)])

    def _judge(self, send: int) -> _Lack | None:
        """How the record is missing; None if its absence is allowed."""
        facts, sends = self._facts, self._facts.history.sends
        key, offset = sends.key[send], facts.position[send]
        who = "final readers" if facts.finals else "readers"
        if offset == NONE:
            if facts.finals:
                return _Lack(send, False, "no final reader saw it, and its offset is unknown")
            return None
        if offset < facts.log_start(key):
            return None
        is_seen = sends.polled[send] != NONE
        at = f"was seen at {offset}" if is_seen else f"has offset {offset}"
        if facts.went_past(key, offset):
            return _Lack(send, True, f"it {at}, and {who} went past without it")
        log_end = facts.log_end(key)
        if log_end is not None and offset >= log_end:
            return _Lack(send, True, f"it {at}, and the log ends at {log_end}")
        return _Lack(send, False, f"it {at}, and no {who[:-1]} got there")

    def _report(self, op: int, lacks: list[_Lack]) -> None:
        facts, sends, ops = self._facts, self._facts.history.sends, self._facts.history.ops
        torn = (
            [each for each in lacks if each.is_lost or facts.position[each.send] == NONE]
            if ops.transactional[op]
            else []
        )
        missing = {each.send for each in lacks}
        siblings = [
            send for send in ops.sends_of(op) if sends.polled[send] != NONE and send not in missing
        ]
        if torn and siblings:
            if self._found.more("torn-transaction"):
                self._keep_torn(torn, siblings[0])
            lacks = [each for each in lacks if each not in torn]
        for each in lacks:
            kind = "lost-write" if each.is_lost else "unseen" if facts.finals else "unread"
            if self._found.more(kind):
                self._keep_lack(kind, each)

    def _keep_lack(self, kind: str, lack: _Lack) -> None:
        facts, sends = self._facts, self._facts.history.sends
        key, offset = sends.key[lack.send], facts.position[lack.send]
        seen = [_polled(facts, lack.send)] if sends.polled[lack.send] != NONE else []
        self._found.keep(
            kind,
            f"{facts.history.keys.all[key]}: {sends.value[lack.send]} is missing: {lack.how}",
            [_sent(facts, lack.send), *seen, *self._who_went_past(lack)],
            key=key,
            offsets=() if offset == NONE else (offset,),
            values=(sends.value[lack.send],),
        )

    def _who_went_past(self, lack: _Lack) -> list[tuple[int, str]]:
        """The poll that proves the loss, if there is one."""
        facts, key = self._facts, self._facts.history.sends.key[lack.send]
        offset = facts.position[lack.send]
        past = facts.who_went_past(key, offset) if lack.is_lost else None
        if past is None:
            return []
        return [(past[0], f"polled {facts.history.keys.all[key]}, offset {past[1]} in it")]

    def _keep_torn(self, torn: list[_Lack], sibling: int) -> None:
        facts, sends = self._facts, self._facts.history.sends
        lack = torn[0]
        key, offset = sends.key[lack.send], facts.position[lack.send]
        names = facts.history.keys.all
        more = f" (and {len(torn) - 1} more of it)" if len(torn) > 1 else ""
        self._found.keep(
            "torn-transaction",
            f"{names[sends.key[sibling]]} shows {sends.value[sibling]} of a transaction, but "
            f"{names[key]} not its {sends.value[lack.send]}{more}: {lack.how}",
            [
                _sent(facts, lack.send),
                _polled(facts, sibling),
                *self._who_went_past(lack),
            ],
            key=key,
            offsets=() if offset == NONE else (offset,),
            values=(sends.value[sibling], sends.value[lack.send]),
        )
