"""Runs all checks over the tables of a history."""

from collections.abc import Iterable

from fencelog.check.cycles import check_cycles
from fencelog.check.ends import check_ends
from fencelog.check.facts import Facts, establish
from fencelog.check.groups import check_groups
from fencelog.check.history import Event
from fencelog.check.intake import gather
from fencelog.check.order import check_order
from fencelog.check.polls import Polls
from fencelog.check.records import check_records
from fencelog.check.tables import FAILED, NONE, OK, History
from fencelog.check.verdict import ERRORS, Findings, Outcome, Verdict


def check(events: Iterable[Event]) -> Verdict:
    """Check a history in memory. Raises HistoryError if an event is malformed."""
    return judge(gather(events))


def judge(history: History) -> Verdict:
    """Check a history by its tables, from ``parse``, ``merge`` or ``gather``."""
    found = Findings(history)
    facts = establish(history)
    Polls(facts, found).check()
    check_records(facts, found)
    check_order(facts, found)
    check_ends(facts, found)
    check_cycles(facts, found)
    check_groups(facts, found)
    return _verdict(facts, found)


def _verdict(facts: Facts, found: Findings) -> Verdict:
    history = facts.history
    rank = {kind: place for place, kind in enumerate(ERRORS)}
    problems = sorted(
        (each for each in found.kept if each.is_error),
        key=lambda each: (rank[each.kind], len(each.counterexample)),
    )
    counts = _counts(facts)
    remarks = list(history.remarks)
    outcome: Outcome = "invalid" if problems else "valid"
    if not problems and not (counts["sends acknowledged"] and counts["records polled"]):
        outcome = "nothing-checked"
        remarks.insert(0, "there must be acknowledged sends, and polls that returned records")
    if not facts.finals:
        remarks.append(
            "no final readers (processes named final…): a loss that nobody read past goes unnoticed"
        )
    if not history.ends:
        remarks.append("no end event: lost tails and hanging transactions go unnoticed")
    return Verdict(
        outcome,
        tuple(problems),
        tuple(each for each in found.kept if not each.is_error),
        dict(found.count),
        counts,
        tuple(remarks),
        history.meta,
    )


def _counts(facts: Facts) -> dict[str, int]:
    history, ops, sends = facts.history, facts.history.ops, facts.history.sends
    ok, failed = ops.outcome.count(OK), ops.outcome.count(FAILED)
    return {
        "operations": len(ops),
        "ok": ok,
        "failed": failed,
        "indeterminate": len(ops) - ok - failed,
        "transactions": sum(ops.transactional),
        "sends": len(sends) - sends.op.count(NONE),
        "sends acknowledged": sum(
            count for count, outcome in zip(ops.sends, ops.outcome, strict=True) if outcome == OK
        ),
        "records polled": len(history.runs.offsets),
        "records polled by final readers": sum(map(sum, facts.final_seen)),
        "keys": len(history.keys),
        "processes": len(history.processes),
        "final readers": len(facts.finals),
        "faults": len(history.faults),
    }
