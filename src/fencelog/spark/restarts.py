"""``fencelog run --restart-on-failure``: which failed queries are started again, and when."""

from dataclasses import dataclass, field
from typing import Final

DELAY_MIN_S: Final = 1.0
DELAY_MAX_S: Final = 60.0

FINAL: Final = ("FencedError", "OptionError", "SchemaError", "DataLossError")
"""Errors that a restart does not cure. A fenced query must not come back: it would fence the newer
driver in turn."""


@dataclass
class Restarts:
    """The waits of failed queries: a second at first, doubled to a minute until a batch is done."""

    enabled: bool
    _failures: dict[str, int] = field(default_factory=dict)
    _batches: dict[str, int] = field(default_factory=dict)
    _due_s: dict[str, float] = field(default_factory=dict)

    def after(self, name: str, cause: str, batches: int, now_s: float) -> float | None:
        """How long the query waits before it starts again, None if it does not.

        ``batches`` is how many it has finished altogether.
        """
        kind = cause.partition(":")[0].rpartition(".")[2]
        if not self.enabled or kind in FINAL:
            return None
        progress = batches > self._batches.get(name, 0)
        self._batches[name] = batches
        self._failures[name] = 0 if progress else self._failures.get(name, -1) + 1
        delay_s = min(DELAY_MAX_S, DELAY_MIN_S * (1 << min(self._failures[name], 10)))
        self._due_s[name] = now_s + delay_s
        return delay_s

    def waits(self, name: str | None = None) -> bool:
        """Whether this query, or any, waits to be started again."""
        return bool(self._due_s) if name is None else name in self._due_s

    def take_due(self, now_s: float) -> list[str]:
        """The queries to start now; they no longer wait."""
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s]
        for name in due:
            del self._due_s[name]
        return due
