"""Checks a history of clients for violations of exactly-once."""

from fencelog.check.checker import check, judge
from fencelog.check.intake import HistoryError
from fencelog.check.reading import merge, parse
from fencelog.check.verdict import Finding, Verdict

__all__ = ["Finding", "HistoryError", "Verdict", "check", "judge", "merge", "parse"]
