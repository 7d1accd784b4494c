"""What a history still promises after a power cut in ``os`` mode.

That mode promises nothing of what was not synced (D1): an acknowledged record may be gone, with it
the end of a transaction, an epoch or an enlistment. What was promised after the power cut holds,
nothing is there twice, and no two readers see different logs: the checker judges that as always.
The monitors hold the log itself to its recovery point. A workload that notes what it does finds
``may_be_lost`` in what it noted before.
"""

from collections.abc import Sequence
from typing import Any

from fencelog.check.history import Event

COMPLETIONS = ("ok", "failed", "indeterminate")
KEPT = ("fault", "end", "group_end")


def surviving(history: list[Event], lost_at: float | None) -> list[Event]:
    """Return the history; what was done before ``lost_at`` may have happened or not, in part."""
    if lost_at is None:
        return history
    return [
        each
        for event in history
        for each in ([event] if _is_after(event, lost_at) else _weakened(event))
    ]


def _is_after(event: Event, lost_at: float) -> bool:
    time: Any = event.get("time", 0.0)
    return event["type"] in KEPT or time > lost_at


def _weakened(event: Event) -> Sequence[Event]:
    """The sends of an event, each for itself and of unknown outcome; no polls."""
    steps: Any = event.get("steps", ())
    sends = [step for step in steps if step[0] == "send"]
    if event["type"] == "meta":
        return [{**event, "may_be_lost": True}]
    if event["type"] == "invoke":
        return [{**event, "transactional": False, "steps": sends}]
    if event["type"] in COMPLETIONS:
        unknown = [[*step[:3], None, *step[4:]] for step in sends]
        return [{**event, "type": "indeterminate", "steps": unknown}]
    return []
