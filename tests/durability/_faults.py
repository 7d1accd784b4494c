"""Looks for faults in a trace: syncs that are taken out, and answers that do not wait for one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.durability._audit import Audit
from tests.durability.scenario import RECORDS, live, live_twice
from tests.support.found import Search

RECOVERY = "recovery"
WRITTEN = "was written and not synced"
TOLD = {
    "written": WRITTEN,
    "named": "the name",
    "metadata": "synchronous = 0",
    RECOVERY: WRITTEN,
}
"""What the audit says, by the argument of a fault's ``Found-by: durability`` line."""


def find_in_trace(search: Search) -> tuple[str, Sequence[str]]:
    """Trace a broker that has the fault, or one that starts after a kill."""
    if search.argument == RECOVERY:
        audit = tail_after_a_kill(search.folder, search.environment)
    else:
        trace = live(search.folder, durability="fsync", environment=search.environment)
        audit = Audit(RECORDS).read(trace)
    return search.argument, [each for each in audit.problems if TOLD[search.argument] in each]


def tail_after_a_kill(folder: Path, environment: Mapping[str, str]) -> Audit:
    """What is wrong with the answers of a second run in fsync mode, after one without syncs."""
    first, second = live_twice(folder, environment=environment)
    audit = Audit(RECORDS).read(first)
    (unsynced,) = audit.unsynced
    assert Path(unsynced).parent.name == f"{RECORDS}-0"
    audit.problems.clear()
    return audit.read(second)
