"""``minOffsetsPerTrigger`` and ``maxTriggerDelay``: when a small batch waits for more records."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class TriggerDelay:
    """Holds batches of fewer than ``offsets_min`` offsets for up to ``delay_max_ms``.

    The delay runs from the last batch; without one in this run nothing is held, as in Spark's Kafka
    connector, so a restart does not wait.
    """

    offsets_min: int | None
    delay_max_ms: int
    last_s: float | None = None

    def holds(self, available: int, now_s: float) -> bool:
        """Whether to wait, with so many offsets available; if not, a batch begins now."""
        if self.offsets_min is None or available == 0:
            return False
        if self.last_s is not None and available < self.offsets_min:
            waited_ms = (now_s - self.last_s) * 1000
            if waited_ms < self.delay_max_ms:
                return True
        self.last_s = now_s
        return False
