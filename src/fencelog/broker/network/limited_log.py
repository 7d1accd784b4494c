"""Log lines that clients can cause at will: one of a kind in an interval."""

import logging

from fencelog.types import Instant

INTERVAL_S = 10.0


class LimitedLog:
    """Warnings of one logger, limited for each kind of event."""

    def __init__(self, log: logging.Logger) -> None:
        """Start with nothing logged."""
        self._log = log
        self._next: dict[str, Instant] = {}
        self._suppressed: dict[str, int] = {}

    def warning(self, now: Instant, kind: str, message: str, *arguments: object) -> None:
        """Log the line, or count it if one of this kind was logged less than an interval ago.

        ``kind`` is one of a few constants, not a client's text.
        """
        if now < self._next.get(kind, now):
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        self._next[kind] = Instant(now + INTERVAL_S)
        suppressed = self._suppressed.pop(kind, 0)
        more = f" ({suppressed} more like this since the last such line)" if suppressed else ""
        self._log.warning(f"{message}%s", *arguments, more)
