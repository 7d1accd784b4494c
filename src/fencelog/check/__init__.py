"""What happened, and whether exactly-once held: histories in, verdicts out."""

from fencelog.check.checker import check, judge
from fencelog.check.intake import HistoryError, parse
from fencelog.check.verdict import Finding, Verdict

__all__ = ["Finding", "HistoryError", "Verdict", "check", "judge", "parse"]
